"""Rebuilding: the second making of a step and its ancestors, below one scratch directory.

A clean checkout with the recorded patch and lock file, a Python to run it with, and a fresh prefix; then the script
itself, with the flags that it was first given, and a look at every step of the ancestry as it came out.
"""

import functools
import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marin_core.errors import UsageError
from marin_core.provenance import environments, objects
from marin_core.reasons import read_record
from marin_core.records import Origin, RunRecord, StepRecord, from_json, origin_of
from marin_core.reproduction import certificates, checkouts
from marin_core.reproduction.certificates import Comparison, Side
from marin_core.reproduction.differences import Output
from marin_core.store import Store, open_store

Tell = Callable[[str], None]
_VALUED = ("only", "until", "force", "accept", "rebuild", "on-code-change", "prefix")
_DRAIN = 8.0
"""Seconds that a script has to stop its bodies in; it needs five."""
_BARE = ("plan", "keep-going", "fail-fast", "json")


@dataclass(kw_only=True)
class Rebuilding:
    """The second making of a step: checkout, Python and fresh prefix below one scratch directory."""

    store: Store
    record: StepRecord
    origin: Origin
    repository: Path
    scratch: Path
    tell: Tell
    notes: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    interpreter: checkouts.Interpreter = field(init=False)
    variables: dict[str, str] = field(init=False)

    @property
    def checkout(self) -> Path:
        return self.scratch / "checkout"

    @functools.cached_property
    def fresh(self) -> Store:
        return open_store(self.scratch / "prefix")

    @functools.cached_property
    def ancestry(self) -> dict[str, StepRecord | None]:
        """Every step that runs, upstream first, and its record; None where that is gone."""
        return _ancestry(self.store, self.record)

    @functools.cached_property
    def adopted(self) -> dict[str, str]:
        """Address of adopted data -> where it lay."""
        return {a: path for r in self.ancestry.values() if r is not None for a, path in r.adopted.items()}

    def prepare(self, patch: bytes) -> None:
        """Makes the checkout and the environment, and sees to the adopted data."""
        origin = self.origin
        self.tell(f"checking out {origin.commit[:12]} of {self.repository}")
        checkouts.check_out(self.repository, origin, self.checkout, patch=patch)
        lock = objects.get(self.store, origin.lock) if origin.lock else None
        restored = checkouts.restore_lock(self.checkout, origin, lock)
        self.notes += [restored] if restored else []
        self.notes += [f"the patch lacks {what}" for what in origin.omitted]
        self.notes += ["submodules are not checked out"] if (self.checkout / ".gitmodules").exists() else []
        if not (self.checkout / origin.script).is_file():
            raise UsageError(f"{origin.script} is neither in commit {origin.commit[:12]} nor in the recorded patch")
        for path in self.adopted.values():
            checkouts.bring_data(self.checkout, origin, self.repository, path)
        python = _machine(self.store, origin).get("python", "")
        self.tell("making the environment")
        self.interpreter = checkouts.make_interpreter(self.checkout, origin, python=python, log=self.scratch / "uv.txt")
        self.variables = checkouts.environment_for_run(
            self.checkout, self.repository, self.interpreter, scratch=self.scratch
        )

    def compared(self) -> tuple[list[Comparison], str]:
        """Runs the script and compares. Also a sentence, if the steps do not say what went differently."""
        moved = self._moved()
        if moved:
            return [], moved
        code, last = self._run("--until", self.record.address)
        steps: list[Comparison] = []
        first: dict[str, str] = {}
        for address, record in self.ancestry.items():
            step = self._step(address, record, first)
            if step.reproduced is False:
                first[address] = next((first[u] for u in record.upstream if u in first), address) if record else address
            steps.append(step)
        if all(s.reproduced is None for s in steps[-1:]) or (code and all(s.reproduced for s in steps)):
            raise UsageError(f"{self.origin.script} did not make {self.record.address} (exit code {code}): {last}")
        return steps, ""

    def _step(self, address: str, old: StepRecord | None, first: dict[str, str]) -> Comparison:
        new = read_record(self.fresh, address)
        if old is None:
            return Comparison(address=address, reproduced=None, explanation="its record is gone")
        if isinstance(new, StepRecord):
            return certificates.compare(_side(self.store, old), _side(self.fresh, new), first=first)
        runs = [n for n in self.fresh.names("runs") if n.endswith(".json")]
        if not runs:
            return Comparison(address=address, reproduced=None, explanation="the run did not begin")
        run = from_json(RunRecord, self.fresh.read(f"runs/{runs[-1]}") or b"", where=f"runs/{runs[-1]}")
        node = next((n for n in run.nodes if n.address == address), None)
        if node is None:
            return Comparison(address=address, reproduced=None, explanation="it is no part of the run")
        return certificates.failed(address, node.failure, node.reason)

    def _moved(self) -> str:
        """Why the script, as it is here, does not make this address at all; empty if it does."""
        planned = {p["address"]: p for p in self._plan()}
        if self.record.address in planned:
            return ""
        wanted = [*self.adopted, *self.ancestry]
        for address in (a for a in wanted if a not in planned):
            name = address.rpartition("/")[0]
            others = [a for a in planned if a.rpartition("/")[0] == name and a not in wanted]
            now = f"the script makes {' and '.join(others[:3])} instead" if others else "the script has no such step"
            if address in self.adopted:
                return f"input {address} differs: {self.adopted[address]} is not what was adopted; {now}"
            reason = f" ({planned[others[0]]['reason']})" if others else ""
            return f"the recipe of {address} differs: {now}{reason}"
        return f"{self.record.address} does not come out"

    def _plan(self) -> list[dict[str, Any]]:
        """The script's plan against the original prefix, so that its reasons name what differs; a plan only reads."""
        command = self._command("--plan", "--json", "--prefix", self.store.url)
        done = subprocess.run(
            command, cwd=self._directory(), env=self.variables, capture_output=True, text=True, check=False
        )
        start = done.stdout.find("[\n")
        try:
            return json.loads(done.stdout[max(start, 0) :])
        except ValueError:
            said = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            raise UsageError(f"{self.origin.script} cannot be planned in the clean checkout: {said[0]}") from None

    def _run(self, *flags: str) -> tuple[int, str]:
        """Runs the script; exit code and the last line it said."""
        self.command = self._command(*flags, "--prefix", str(self.scratch / "prefix"))
        last = ""
        with (
            (self.scratch / "log.txt").open("w", encoding="utf-8") as log,
            subprocess.Popen(
                self.command,
                cwd=self._directory(),
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            ) as process,
        ):
            try:
                for line in process.stdout or ():
                    log.write(line)
                    last = line.strip() or last
                    self.tell(line.rstrip("\n"))
            except BaseException:
                _end(process)
                raise
        return process.returncode, last

    def _command(self, *flags: str) -> list[str]:
        kept = [*build_flags(self.origin.flags), *flags]
        return checkouts.command_for(self.origin, self.interpreter, self.checkout, kept)

    def _directory(self) -> Path:
        """The recorded working directory: its counterpart in the checkout, or the same one outside of it."""
        directory = self.checkout / self.origin.directory
        if self.checkout in (directory, *directory.parents):
            directory.mkdir(parents=True, exist_ok=True)
        return directory if directory.is_dir() else self.checkout


def _end(process: subprocess.Popen[str]) -> None:
    """Ends a script, which stops its bodies by itself if it is given the time."""
    process.terminate()
    try:
        process.wait(_DRAIN)
    except subprocess.TimeoutExpired:
        process.kill()


def build_flags(flags: Sequence[str]) -> Iterator[str]:
    """The flags of a script without those of the runner that choose what to run and where."""
    rest = iter(flags)
    for flag in rest:
        name, equals, _ = flag.removeprefix("--").replace("_", "-").partition("=")
        if flag.startswith("--") and name in _VALUED:
            if not equals:
                next(rest, None)
        elif not (flag.startswith("--") and name in _BARE):
            yield flag


def _ancestry(store: Store, record: StepRecord) -> dict[str, StepRecord | None]:
    """The steps that a step was made from and the step itself, upstream first; adopted data is none."""
    order: dict[str, StepRecord | None] = {}
    stack: list[tuple[str, StepRecord | None, Iterator[str]]] = [(record.address, record, _made(record))]
    seen = {record.address}
    while stack:
        address, found, upstream = stack[-1]
        following = next((u for u in upstream if u not in seen), None)
        if following is None:
            order[address] = found
            stack.pop()
            continue
        seen.add(following)
        read = read_record(store, following)
        below = read if isinstance(read, StepRecord) else None
        stack.append((following, below, _made(below) if below else iter(())))
    return order


def _made(record: StepRecord) -> Iterator[str]:
    return (a for a in record.upstream if a not in record.adopted)


def _side(store: Store, record: StepRecord) -> Side:
    directory = store.local / f"{record.address}/attempts/{record.attempt}/out" if store.local else None
    return Side(
        record=record,
        output=Output(files=record.files, prefix=store.url, directory=directory),
        environment=environments.read(store, record.digests.environment),
        machine=_machine(store, origin_of(record)),
    )


def _machine(store: Store, origin: Origin | None) -> dict[str, Any]:
    data = objects.get(store, origin.machine) if origin and origin.machine else None
    return json.loads(data) if data else {}
