"""Threads of a daemon executor: they do what they are asked, and hold up nobody."""

import subprocess
import threading
from collections.abc import Callable

import pytest

from marin_core.threads import DaemonExecutor


def test_results_come_in_order_and_errors_are_raised() -> None:
    with DaemonExecutor(3, name="t") as pool:
        assert list(pool.map(lambda i: i * i, range(100))) == [i * i for i in range(100)]
    with pytest.raises(ZeroDivisionError), DaemonExecutor(3, name="t") as pool:
        list(pool.map(lambda i: 1 // i, [1, 0]))


def test_leaving_it_waits_for_all_unless_it_is_left_by_an_interrupt() -> None:
    gate, done = threading.Event(), []
    pool = DaemonExecutor(1, name="t")
    pool.submit(gate.wait)
    never = pool.submit(done.append, "never")
    pool.__exit__(KeyboardInterrupt, None, None)
    assert never.cancelled()
    gate.set()
    with DaemonExecutor(1, name="t") as pool:
        pool.submit(done.append, "always")
    assert done == ["always"]


def test_a_process_ends_whatever_its_threads_are_at(python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    code = (
        "import threading; from marin_core.threads import *; DaemonExecutor(1, name='t').submit(threading.Event().wait)"
    )
    assert python("-c", code).returncode == 0
