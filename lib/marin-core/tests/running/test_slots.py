"""Slots: nothing is given out twice, a step that waits for much is not starved, and what is not here is refused."""

import itertools
import os
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_core import Resources, StepRunner, lower, run
from marin_core.errors import UsageError
from marin_core.launchers.process import ProcessLauncher
from marin_core.running.slots import Slots, accelerators_of, capacity, parse_slots

FLOW = """
    import os, time
    from pathlib import Path
    from marin_core import Resources, step

    @step(resources=Resources(cpus=1, accelerators="gpu:1"))
    def train(*, number: int, meet: str, of: int) -> str:
        Path(meet, str(number)).touch()
        while len(os.listdir(meet)) < of:
            time.sleep(0.01)
        return os.environ["CUDA_VISIBLE_DEVICES"]

    @step
    def prepare() -> int:
        return 1

    @step(resources=Resources(accelerators="h100:8"))
    def big(x: int) -> int:
        return x
"""


@pytest.fixture
def flow(module: Callable[[str], ModuleType]) -> ModuleType:
    return module(FLOW)


@pytest.fixture(autouse=True)
def _no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def node(address: str, **resources: Any) -> Any:
    return SimpleNamespace(address=address, name=address, step=SimpleNamespace(resources=Resources(**resources)))


def line_of(here: Slots, *nodes: Any) -> None:
    for order, n in enumerate(nodes):
        here.enter(n)
        here.push(n.address, priority=(0, order))


def started(here: Slots) -> list[str]:
    """Starts what may start now."""
    found = []
    while (address := here.pop()) is not None:
        here.take(address)
        found.append(address)
    return found


@pytest.mark.parametrize(
    ("text", "found"),
    [("h100:8", ("h100", 8)), ("tpu-v5p-8", ("tpu-v5p", 8)), ("GPU", ("gpu", 1)), ("a100-80gb:2", ("a100-80gb", 2))],
)
def test_accelerators_are_a_kind_and_a_count(text: str, found: tuple[str, int]) -> None:
    assert accelerators_of(Resources(accelerators=text)) == found


@pytest.mark.parametrize("text", ["", "8", "gpu:0", "gpu:", "h100:many", "gpu 1"])
def test_other_accelerators_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="write kind:count"):
        accelerators_of(Resources(accelerators=text))


def test_slots_of_a_command_line() -> None:
    assert parse_slots(("gpu=2", "tpu-v5p=8")) == {"gpu": 2, "tpu-v5p": 8}
    for text in ("gpu", "gpu=x", "=1", "gpu=-1"):
        with pytest.raises(UsageError, match="kind=count"):
            parse_slots((text,))


@pytest.mark.parametrize("slots", [{"cpus": 2}, {"gpu": -1}, {"gpu": 1.5}, {"gpu": True}])
def test_slots_that_cannot_be_meant_are_refused(slots: Any) -> None:
    with pytest.raises(UsageError, match="slots: "):
        capacity(2, slots=slots)


def test_ten_tenths_of_a_core_are_one() -> None:
    here = Slots(capacity(1))
    line_of(here, *(node(str(i), cpus=0.1) for i in range(11)))
    assert len(started(here)) == 10


def test_more_cores_or_memory_than_there_are_is_all_there_is() -> None:
    here = Slots(capacity(2, slots={"memory_bytes": 100}))
    line_of(here, node("a", cpus=64, memory_bytes=1000), node("b", memory_bytes=1))
    assert started(here) == ["a"]
    here.give_back("a")
    assert started(here) == ["b"]


def test_memory_bounds_what_runs_side_by_side() -> None:
    here = Slots(capacity(8, slots={"memory_bytes": 100}))
    line_of(here, *(node(str(i), memory_bytes=40) for i in range(3)))
    assert started(here) == ["0", "1"]


def test_a_small_step_starts_beside_a_big_one_that_would_still_fit_next_to_it() -> None:
    here = Slots(capacity(4))
    line_of(here, node("long", cpus=2), node("big", cpus=3), node("small", cpus=1), node("more", cpus=1))
    assert started(here) == ["long", "small"]
    here.give_back("long")
    assert started(here) == ["big"]
    here.give_back("small")
    assert started(here) == ["more"]


WANTED = st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(0, 2))


@given(wanted=st.lists(WANTED, min_size=1, max_size=12), data=st.data())
def test_nothing_is_given_out_twice_and_the_first_in_line_waits_only_for_what_it_found(
    wanted: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    here = Slots(capacity(4, slots={"memory_bytes": 3, "gpu": 2}))
    nodes = {
        str(i): node(str(i), cpus=c, memory_bytes=m or None, accelerators=f"gpu:{g}" if g else None)
        for i, (c, m, g) in enumerate(wanted)
    }
    line_of(here, *nodes.values())
    running: dict[str, list[str]] = {}
    waiting, found = list(nodes), set[str]()
    while waiting:
        first = waiting[0]
        while (address := here.pop()) is not None:
            devices = here.take(address).get("CUDA_VISIBLE_DEVICES", "")
            running[address] = devices.split(",") if devices else []
            waiting.remove(address)
        used = [wanted[int(a)] for a in running]
        assert all(sum(u[k] for u in used) <= most for k, most in enumerate((4, 3, 2)))
        held = list(itertools.chain(*running.values()))
        assert len(held) == len(set(held))
        assert all(len(running[a]) == wanted[int(a)][2] for a in running)
        if waiting and waiting[0] != first:
            found = set(running)  # a new first in line finds these
        if waiting and waiting[0] == first and not found:
            found = set(running)
        if waiting:
            assert found & running.keys(), "all that the first in line found has ended, and it has not started"
            ended = data.draw(st.sampled_from(sorted(running)))
            here.give_back(ended)
            del running[ended]


def test_two_bodies_never_share_a_device(flow: ModuleType, prefix: str, tmp_path: Path) -> None:
    (tmp_path / "meet").mkdir()
    steps = [flow.train(number=i, meet=str(tmp_path / "meet"), of=2) for i in range(2)]
    report = run(steps, prefix=prefix, max_workers=8, slots={"gpu": 2})
    assert sorted(report.values.values()) == ["0", "1"]


def test_slots_are_those_that_the_driver_may_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    here = Slots(capacity(2))
    here.enter(node("a", accelerators="gpu:2"))
    assert here.take("a") == {"CUDA_VISIBLE_DEVICES": "3,5"}


def test_a_tpu_is_counted_and_no_cuda_device() -> None:
    here = Slots(capacity(2, slots={"tpu-v5p": 8}))
    here.enter(node("a", accelerators="tpu-v5p-8"))
    assert here.take("a") == {}


def test_a_step_that_asks_for_what_is_not_here_is_refused_before_anything_runs(flow: ModuleType, prefix: str) -> None:
    target = flow.big(flow.prepare())
    message = "step big: it asks for accelerators='h100:8', and this runner has no h100; give --slots h100=8"
    with pytest.raises(UsageError, match=message):
        run(target, prefix=prefix)
    assert not (Path(prefix) / "runs").exists()
    assert run(target, prefix=prefix, slots={"h100": 8}).ok
    assert run(target, prefix=prefix).executed == ()  # to be up to date needs no device


def test_a_launcher_that_places_bodies_itself_is_asked_for_anything(flow: ModuleType, prefix: str) -> None:
    class Elsewhere(ProcessLauncher):
        places = True

    with Elsewhere() as launcher:
        assert StepRunner(prefix, launcher=launcher).run(lower(flow.big(flow.prepare()))).ok


def test_the_command_line_refuses_with_exit_2_and_takes_slots(
    tmp_path: Path, python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    script = tmp_path / "job.py"
    script.write_text(textwrap.dedent(FLOW) + "\nfrom marin_core import main\nmain(lambda: big(prepare()))\n")
    refused = python(script)
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: step big: it asks for accelerators='h100:8'")
    assert python(script, "--slots", "h100=8", CUDA_VISIBLE_DEVICES="").returncode == 0
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
