"""Programs that live through a whole measurement and answer a line with a line, so that rounds of several interleave.

Start-up and compilation are then paid once and apart from what is measured. `answer` is the child's side, `Child` the
parent's. This file needs the standard library alone and runs in every peer's environment.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FLOWS = Path(__file__).parent


@dataclass(frozen=True)
class Child:
    """A program under measurement."""

    process: subprocess.Popen[str]

    @staticmethod
    def start(command: list[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> "Child":
        """Starts ``[program, script of flows/, arguments...]``."""
        program, script, *rest = command
        process = subprocess.Popen(
            [program, str(FLOWS / script), *rest],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=cwd,
            env=os.environ | {"JAX_PLATFORMS": "cpu"} | dict(env or {}),
        )  # fmt: skip
        return Child(process)

    def listen(self) -> dict[str, Any]:
        """Its next line of JSON; raises when it has ended."""
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith('{"'):
                return json.loads(line)
        raise ChildProcessError(f"ended with status {self.process.wait()}; see above")

    def ask(self, line: object) -> dict[str, Any]:
        """Its answer to a line."""
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.listen()

    def close(self) -> None:
        """Ends it: its input is over."""
        assert self.process.stdin
        self.process.stdin.close()

    def wait(self) -> None:
        """Waits until it has ended."""
        self.process.wait(60)


def answer(job: Callable[[str], object]) -> None:
    """Answers every line of input with the seconds that a job took on it, until there is none; first says "ready"."""
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        job(line.strip())
        print(json.dumps({"seconds": time.perf_counter() - start}), flush=True)


def peers_directory() -> Path:
    """Where peers' environments are: ``$MARIN_BENCH_PEERS``."""
    return Path(os.environ.get("MARIN_BENCH_PEERS") or "/nonexistent").expanduser()
