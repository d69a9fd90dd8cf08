"""An attempt: what its body may read, resume and record, and what is never committed."""

import dataclasses
import errno
import json
import math
from pathlib import Path
from typing import Any

import pytest

from marin_core import adopt, leases, run
from marin_core.reasons import Options


@pytest.mark.parametrize("noticed", ["at the next beat", "at once"])
def test_a_runner_that_was_overtaken_kills_its_body_and_commits_nothing(
    module: Any, prefix: str, monkeypatch: pytest.MonkeyPatch, noticed: str
) -> None:
    slow = module("""
        import time
        from marin_core import step

        @step
        def slow() -> int:
            time.sleep(600)
            return 1
    """)
    real = leases.update

    def update_then_lose(store: Any, address: str, holding: Any, *, body: Any) -> None:
        real(store, address, holding, body=body)
        other = dataclasses.replace(holding.lease, nonce="other", epoch=2, run_id="other")
        store.write(leases.key(address), leases._json(other))
        if noticed == "at once":
            real(store, address, holding, body=body)

    monkeypatch.setattr(leases, "update", update_then_lose)
    report = run(slow.slow(), prefix=prefix, lease_seconds=0.5)
    assert report.exit_code == 3
    failure = report.node("slow").failure
    assert failure is not None
    assert failure.type == "LeaseLostError"
    assert not (Path(prefix) / report.node("slow").address / "step.json").exists()


CORPUS = """
    import math, os
    from dataclasses import dataclass
    from pathlib import Path
    from marin_core import Input, Work, step

    @step(retries=3)
    def read(source: Input, *, then: str = "nothing") -> str:
        path = source / "a.txt"
        text = path.read_text()
        if then == "edit":
            path.write_text("b")
        if then == "add":
            (source / "new.txt").touch()
        if then == "delete":
            path.unlink()
        if then == "link":
            os.link(path, source.local().parent / "link")
        return text

    @step(retries=1)
    def train(work: Work, text: str, *, fail: str = "") -> list:
        resumed = (work / "checkpoint").read_text().split() if (work / "checkpoint").exists() else []
        with work.open("checkpoint", "w") as f:
            f.write(" ".join([*resumed, text]))
        if Path(fail).is_file():
            Path(fail).unlink()
            raise RuntimeError("lost a node")
        return resumed

    class ResourceExhaustedError(ValueError):
        pass

    @step(retries=3)
    def full(*, number: int) -> None:
        raise ResourceExhaustedError(f"RESOURCE_EXHAUSTED: /x/ckpt: {os.strerror(number)} [errno {number}]")

    @dataclass(frozen=True)
    class Loss:
        last: float
        all: list

    @step
    def diverge(*, scale: float = 1.0) -> Loss:
        return Loss(last=math.nan, all=[math.inf, -math.inf, 1.5])

    @step
    def judge(loss: Loss) -> bool:
        return math.isnan(loss.last)
"""


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text("a")
    return tmp_path / "corpus"


@pytest.mark.parametrize(("then", "name"), [("edit", "a.txt"), ("delete", "a.txt"), ("add", "new.txt")])
def test_nothing_is_committed_if_the_corpus_changed_while_it_was_read(
    module: Any, prefix: str, corpus: Path, then: str, name: str
) -> None:
    target = module(CORPUS).read(adopt(corpus), then=then)
    report = run(target, prefix=prefix)
    failure = report.node(target).failure
    assert failure is not None
    assert f"{name} changed while it was read" in failure.message
    assert (report.exit_code, report.node(target).attempt) == (2, 1)
    assert not (Path(prefix) / report.node(target).address / "step.json").exists()


def test_a_corpus_may_change_where_the_step_does_not_look(module: Any, prefix: str, corpus: Path) -> None:
    flow = module(CORPUS)
    assert run(flow.read(adopt(corpus, files=["a.txt"]), then="add"), prefix=prefix).ok
    assert run(flow.read(adopt(corpus), then="link"), prefix=prefix).ok
    assert (corpus / "a.txt").stat().st_nlink == 2


def test_work_is_resumed_on_the_same_inputs_alone(module: Any, prefix: str, tmp_path: Path) -> None:
    flow = module(CORPUS)
    fail = tmp_path / "fail"

    def trained(corpus_text: str, **options: Any) -> Any:
        (tmp_path / "corpus" / "a.txt").write_text(corpus_text)
        # The step between has a version, so the recipe of what trains on it stays when the corpus changes.
        read = flow.read(adopt(tmp_path / "corpus", name="raw"), version="v1")
        return run(flow.train(read, fail=str(fail)), prefix=prefix, options=Options(**options)).values.popitem()[1]

    (tmp_path / "corpus").mkdir()
    fail.touch()
    assert trained("a") == ["a"]
    assert trained("b", rebuild=("read",)) == []
    assert trained("b", force=("train",)) == []
    fail.touch()
    assert trained("b", force=("train",)) == ["b"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_one_line_whatever_library_met_it(module: Any, prefix: str, number: int) -> None:
    report = run(module(CORPUS).full(number=number), prefix=prefix)
    failure = report.record.nodes[0].failure
    assert failure is not None
    assert failure.message == "no space left on the device for its output; free some, or choose another prefix"
    assert (report.exit_code, report.record.nodes[0].attempt) == (2, 1)


def test_what_is_not_finite_is_recorded_in_strict_json(module: Any, prefix: str) -> None:
    def strict(constant: str) -> None:
        pytest.fail(f"{constant} is not JSON")

    flow = module(CORPUS)
    loss = flow.diverge(scale=math.inf)
    report = run(target := flow.judge(loss), prefix=prefix)
    assert report.value(target) is True
    assert report.node(loss).value == {"last": "NaN", "all": ["Infinity", "-Infinity", 1.5]}
    assert report.node(loss).arguments == {"scale": "Infinity"}
    records = list(Path(prefix).rglob("*.json"))
    assert len(records) > 6
    for path in records:
        json.loads(path.read_text(), parse_constant=strict)
