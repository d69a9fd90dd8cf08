"""Resources as Ray counts them; none of this needs Ray."""

import sys

import pytest

from marin_core import Resources
from marin_core.errors import UsageError
from marin_core.launchers import make_launcher, placement

SMALL = {"Alive": True, "Resources": {"CPU": 2.0, "memory": 8e9, "node:192.0.2.1": 1.0, "object_store_memory": 1e9}}
GPUS = {"Alive": True, "Resources": {"CPU": 64.0, "memory": 5e11, "GPU": 8.0, "accelerator_type:H100": 1.0}}


@pytest.mark.parametrize(
    ("resources", "wanted"),
    [
        (Resources(), {"CPU": 1}),
        (Resources(cpus=0.5), {"CPU": 0.5}),
        (Resources(cpus=2.5), {"CPU": 3}),
        (Resources(cpus=4, memory_bytes=1 << 30), {"CPU": 4, "memory": 1 << 30}),
        (Resources(accelerators="gpu:2"), {"CPU": 1, "GPU": 2}),
        (Resources(accelerators="h100:8"), {"CPU": 1, "GPU": 8, "accelerator_type:H100": 0.001}),
        (Resources(accelerators="A100-80G"), {"CPU": 1, "GPU": 1, "accelerator_type:A100-80G": 0.001}),
        (Resources(accelerators="v5p-8"), {"CPU": 1, "TPU": 4, "TPU-v5p-8-head": 1}),
        (Resources(accelerators="tpu-v4-2048"), {"CPU": 1, "TPU": 4, "TPU-v4-2048-head": 1}),
        (Resources(accelerators="v5e-8"), {"CPU": 1, "TPU": 8, "TPU-v5litepod-8-head": 1}),
        (Resources(accelerators="v6e-1"), {"CPU": 1, "TPU": 1, "TPU-v6e-1-head": 1}),
        (Resources(accelerators="v6e-16"), {"CPU": 1, "TPU": 4, "TPU-v6e-16-head": 1}),
    ],
)
def test_resources_become_what_ray_counts(resources: Resources, wanted: dict[str, float]) -> None:
    assert placement.request(resources) == wanted
    options = placement.options(wanted)
    named = {"CPU": options["num_cpus"], "GPU": options["num_gpus"], "memory": options["memory"]}
    assert {k: v for k, v in (named | options["resources"]).items() if v} == wanted


@pytest.mark.parametrize("text", ["h100:0", "h100:", "8", "v5p-", "h100 x 8"])
def test_accelerators_of_no_known_form_are_refused_with_examples(text: str) -> None:
    with pytest.raises(UsageError, match=r"accelerators='.*': give a kind and a count as 'h100:8'"):
        placement.request(Resources(accelerators=text))


def test_a_request_that_one_node_could_have_is_let_pass() -> None:
    placement.check(placement.request(Resources(cpus=64, accelerators="h100:8")), [SMALL, GPUS])


@pytest.mark.parametrize(
    "resources", [Resources(cpus=65), Resources(accelerators="a100"), Resources(memory_bytes=10**12)]
)
def test_a_request_that_no_node_can_have_is_refused_with_the_totals(resources: Resources) -> None:
    with pytest.raises(UsageError) as error:
        placement.check(placement.request(resources), [SMALL, GPUS])
    assert "the cluster has 2 nodes with 66 CPU, 8 GPU, H100, " in str(error.value)
    assert "node:" not in str(error.value)


def test_dead_nodes_do_not_count() -> None:
    with pytest.raises(UsageError, match="1 node with 2 CPU"):
        placement.check({"CPU": 64}, [SMALL, GPUS | {"Alive": False}])


def test_without_its_extra_the_ray_launcher_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install 'marin-core\[ray\]'"):
        make_launcher("ray")
