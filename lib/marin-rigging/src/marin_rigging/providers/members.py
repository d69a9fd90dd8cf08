"""Members: one rank as its driver sees it, a keeper at the other end of a lifeline.

The lifeline is a socket pair. The keeper says over it the command's process number and how it ended; the driver says
one thing only, by closing: end everything. So each side learns of the other's death from the kernel, whatever the
cause, and neither polls.

Invariant: a member that is `gone` has been waited for, and until then its group's number cannot be anyone else's, so a
signal to the group never strikes a stranger.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

KEEPER = Path(__file__).with_name("keeper.py")


@dataclass(kw_only=True)
class Member:
    """One rank as the driver sees it: its keeper, the lifeline, and what came over it.

    Attributes:
        rank: its number.
        keeper: the keeper's process, which leads the rank's session and group.
        lifeline: our end.
        started, ended: on the monotonic clock, seconds; ``ended`` holds once ``returncode`` does.
        pid: the command's process number, 0 until it has been started.
        returncode: exit status of the command or minus the signal that killed it; None while it runs.
        gone: whether nothing of the rank is left.
    """

    rank: int
    keeper: subprocess.Popen[bytes]
    lifeline: socket.socket
    started: float
    pid: int = 0
    received: bytearray = field(default_factory=bytearray)
    returncode: int | None = None
    ended: float = 0.0
    gone: bool = False

    def read(self) -> None:
        """Take in what the keeper says; end-of-file means that nothing of the rank is left."""
        chunk = self.lifeline.recv(4096)
        self.received += chunk
        *lines, rest = bytes(self.received).split(b"\n")
        self.received = bytearray(rest)
        for message in map(json.loads, lines):
            self.pid = message.get("pid", self.pid)
            if "returncode" in message:
                self.returncode, self.ended = message["returncode"], message["ended"]
        if not chunk:
            self._bury()

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the rank and all in its group."""
        if not self.gone:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.keeper.pid, number)

    def sweep(self) -> None:
        """Tell the keeper to kill everything: its end of the lifeline now reads as closed."""
        if not self.gone:
            with contextlib.suppress(OSError):
                self.lifeline.shutdown(socket.SHUT_WR)

    def _bury(self) -> None:
        if self.returncode is None:  # the keeper was killed, or ended on the driver's word: the group is what is left
            self.signal_group(signal.SIGKILL)
        status = self.keeper.wait()
        if self.returncode is None:
            self.returncode, self.ended = status or -signal.SIGKILL, time.monotonic()
        self.gone = True
        self.lifeline.close()


def spawn(
    command: Sequence[str], *, rank: int, log: Path, environment: Mapping[str, str], cwd: str | Path | None
) -> Member:
    """Start a keeper, which starts the command, in a session and process group of their own.

    Args:
        command: program and arguments.
        rank: its number.
        log: file to which stdout and stderr are appended, unbuffered and in the order of writing.
        environment: complete environment.
        cwd: working directory; this process's own if None.

    Raises:
        OSError: the log cannot be opened or the machine has no room for another process.
    """
    ours, theirs = socket.socketpair()
    with theirs, log.open("ab", buffering=0) as sink:
        keeper = subprocess.Popen(
            # Isolated and without site: the keeper must not depend on what the rank's environment says of Python.
            [sys.executable, "-I", "-S", str(KEEPER), str(theirs.fileno()), *command],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=cwd,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    return Member(rank=rank, keeper=keeper, lifeline=ours, started=time.monotonic())
