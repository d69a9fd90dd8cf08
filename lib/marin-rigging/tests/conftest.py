"""Fixtures for tests of real processes: a pipe over which ranks speak to the test, and waiting for a process's end."""

import os
import select
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest
from hypothesis import settings

settings.register_profile("default", deadline=None)  # a deadline would assert a timing
settings.load_profile("default")

# Started in the background of a shell, this process ignores interrupts, and so would those that the tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def mailbox(tmp_path: Path) -> Iterator[tuple[Path, Callable[[int], list[list[str]]]]]:
    """A named pipe that ranks write lines to, and a function that waits for so many and gives their words, sorted."""
    path = tmp_path / "mailbox"
    os.mkfifo(path)
    # Open for writing, too: a pipe that has a writer never reads as ended between two ranks.
    stream: IO[str] = os.fdopen(os.open(path, os.O_RDWR), "r")
    with stream:
        yield path, lambda count: sorted(stream.readline().split() for _ in range(count))


@pytest.fixture
def wait_gone() -> Callable[[int], bool]:
    """Wait for the end of any process, also one that is no child; whether it ended within 60 s."""

    def wait(pid: int) -> bool:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        try:
            return bool(select.select([descriptor], [], [], 60)[0])
        finally:
            os.close(descriptor)

    return wait
