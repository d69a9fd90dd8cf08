"""Retries by the class of the failure, with waits that block nobody; time limits."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_core import Retry, lower, run
from marin_core.errors import UsageError
from marin_core.records import Failure
from marin_core.retries import retry_of
from marin_core.running.progress import Plain

FLOW = """
    import signal, time
    from pathlib import Path
    from marin_core import Retry, Work, step

    class Flaky(ConnectionError):
        pass

    def note(path, word):
        with Path(path).open("a") as f:
            f.write(word + " ")
        return Path(path).read_text().split().count(word)

    @step
    def fail(*, log: str, errors: list) -> int:
        number = note(log, "fail")
        if number <= len(errors):
            error = {"flaky": Flaky, "value": ValueError}.get(errors[number - 1], RuntimeError)("no")
            if errors[number - 1] == "user":
                error.exit_code = 2
            raise error
        return number

    @step
    def other(*, log: str) -> int:
        return note(log, "other")

    @step(timeout_seconds=1)
    def slow(*, log: str, ignore: bool = False) -> int:
        if note(log, "slow") == 2:
            return 2
        if ignore:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(0.01)
"""


@pytest.fixture
def flow(module: Callable[[str], ModuleType]) -> ModuleType:
    return module(FLOW)


def failure(kind: str, *mro: str, exit_code: int | None = None) -> Failure:
    return Failure(type=kind, message="", traceback="", exit_code=exit_code, mro=mro)


RESET = failure("ConnectionResetError", "ConnectionResetError", "ConnectionError", "OSError", "Exception")


@pytest.mark.parametrize("on", [(OSError,), ("OSError",), ("ConnectionResetError",), (ValueError, ConnectionError), ()])
def test_a_failure_is_known_by_any_class_it_is_of(on: tuple[Any, ...]) -> None:
    assert Retry(on=on).covers(RESET, tries=1)
    assert not Retry(on=on).covers(RESET, tries=2)


def test_a_class_of_a_library_goes_by_its_bare_and_its_dotted_name() -> None:
    found = failure("Timeout", "requests.exceptions.Timeout", "requests.exceptions.RequestException", "OSError")
    assert Retry(on=("requests.exceptions.RequestException",)).covers(found, tries=1)
    assert Retry(on=("RequestException",)).covers(found, tries=1)
    assert not Retry(on=("other.RequestException", ValueError)).covers(found, tries=1)


def test_a_mistake_of_the_user_is_never_tried_again() -> None:
    assert not Retry(times=9).covers(failure("OSError", "OSError", exit_code=2), tries=1)


@given(
    address=st.text(),
    tries=st.integers(1, 10_000),
    backoff=st.floats(0, 1e6),
    most=st.floats(0, 1e6),
)
def test_waits_are_bounded_and_the_same_in_every_run(address: str, tries: int, backoff: float, most: float) -> None:
    rule = Retry(backoff_seconds=min(backoff, most), max_backoff_seconds=most)
    wait = rule.wait_seconds(address, tries=tries)
    full = min(most, rule.backoff_seconds * 2.0 ** min(tries - 1, 64))
    assert full / 2 <= wait <= full
    assert wait == rule.wait_seconds(address, tries=tries)


def test_steps_that_fail_together_do_not_come_back_together() -> None:
    assert len({Retry().wait_seconds(f"a/{i}", tries=1) for i in range(50)}) == 50


@pytest.mark.parametrize(
    ("retries", "message"),
    [(-1, "retries=-1"), (True, "retries=True"), ("2", "retries='2'"), (1.5, "retries=1.5")],
)
def test_retries_that_cannot_be_meant_are_refused_at_the_call(flow: ModuleType, retries: Any, message: str) -> None:
    with pytest.raises(UsageError, match=f"step x: {message} must be a whole number"):
        flow.other(log="", name="x", retries=retries)
    with pytest.raises(UsageError, match="whole number"):
        retry_of(retries)


@pytest.mark.parametrize(
    "fields", [{"times": -1}, {"on": (3,)}, {"on": ["OSError"]}, {"backoff_seconds": -1.0}, {"backoff_seconds": 61.0}]
)
def test_a_rule_that_cannot_be_meant_names_its_field(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(fields))):
        Retry(**fields)


def test_the_rule_of_retries_enters_no_digest(flow: ModuleType) -> None:
    plain, with_rule = flow.other(log="a"), flow.other(log="a", retries=Retry(times=7))
    assert lower(plain).addresses == lower(with_rule).addresses


@pytest.mark.parametrize("launcher", ["inline", "process"])
def test_only_failures_of_the_named_classes_are_tried_again(
    flow: ModuleType, prefix: str, tmp_path: Path, launcher: str
) -> None:
    rule = Retry(times=5, on=(ConnectionError,), backoff_seconds=0.01)
    log = str(tmp_path / "log")
    bad = flow.fail(log=log, errors=["flaky", "flaky", "value"], retries=rule)
    report = run(bad, prefix=prefix, launcher=launcher)
    found = report.node(bad)
    assert (found.outcome, found.attempt) == ("failed", 3)
    assert found.failure is not None
    assert found.failure.type == "ValueError"
    assert found.failure.mro == ("ValueError", "Exception", "BaseException")
    again = run(flow.fail(log=log, errors=["flaky", "flaky", "value"], retries=0), prefix=prefix, launcher=launcher)
    assert (again.values.popitem()[1], again.record.nodes[0].failure) == (4, None)


def test_a_wait_for_another_try_blocks_no_other_step(flow: ModuleType, prefix: str, tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    bad = flow.fail(log=log, errors=["flaky"], retries=Retry(backoff_seconds=0.5))
    report = run([bad, flow.other(log=log)], prefix=prefix, launcher="inline")
    assert report.ok
    assert (tmp_path / "log").read_text() == "fail other fail "


def test_a_step_that_waited_when_the_run_failed_has_failed_too(flow: ModuleType, prefix: str, tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    waiting = flow.fail(log=log, errors=["flaky"], name="waiting", retries=Retry(backoff_seconds=60))
    bad = flow.fail(log=str(tmp_path / "bad"), errors=["value"], name="bad")
    report = run([waiting, bad], prefix=prefix, launcher="inline")
    assert [n.outcome for n in report.record.nodes] == ["failed", "failed"]
    assert report.node("waiting").reason == "Flaky, not tried again"


@pytest.mark.parametrize(("launcher", "ignore"), [("inline", False), ("process", False), ("process", True)])
def test_a_body_past_its_time_is_ended_and_may_be_tried_again(
    flow: ModuleType, prefix: str, tmp_path: Path, launcher: str, ignore: bool
) -> None:
    # However busy the machine is: the body that gets as far as its first line is late, the next one is not.
    rule = Retry(times=1000, on=("Timeout",), backoff_seconds=0)
    target = flow.slow(log=str(tmp_path / "log"), ignore=ignore, retries=rule)
    report = run(target, prefix=prefix, launcher=launcher)
    assert report.ok
    attempts = Path(prefix, report.node(target).address, "attempts")
    records = [json.loads((path / "attempt.json").read_text()) for path in sorted(attempts.iterdir(), key=_number)]
    assert [r["state"] for r in records] == ["failed"] * (len(records) - 1) + ["succeeded"]
    assert {(r["failure"]["type"], r["failure"]["message"]) for r in records[:-1]} == {
        ("Timeout", "the body ran past its 1 s")
    }
    assert any("time.sleep(0.01)" in r["failure"]["traceback"] for r in records[:-1]) or ignore


def test_a_late_body_without_another_try_has_failed(flow: ModuleType, prefix: str, tmp_path: Path) -> None:
    report = run(target := flow.slow(log=str(tmp_path / "log")), prefix=prefix)
    failure = report.node(target).failure
    assert failure is not None
    assert failure.type == "Timeout"
    assert "SystemExit" not in failure.traceback
    assert report.exit_code == 1


def test_another_try_is_announced_with_its_number_and_the_wait(flow: ModuleType, prefix: str, tmp_path: Path) -> None:
    stream = io.StringIO()
    rule = Retry(times=3, backoff_seconds=0.001)
    with Plain(stream) as display:
        errors = ["value", "value"]
        run(flow.fail(log=str(tmp_path / "log"), errors=errors, retries=rule), prefix=prefix, observer=display)
    said = [line for line in stream.getvalue().splitlines() if "attempt" in line and "started" not in line]
    assert [line.partition(" ms")[0].rpartition(" in ")[0] for line in said] == [
        f"fail: failed (ValueError: no), attempt {n} of 4" for n in (2, 3)
    ]


def _number(path: Path) -> int:
    return int(path.name)


def test_a_time_limit_is_more_than_nothing(module: Any) -> None:
    with pytest.raises(UsageError, match="timeout_seconds=0 must exceed 0"):
        module("from marin_core import step\n@step(timeout_seconds=0)\ndef f() -> int: return 1")
