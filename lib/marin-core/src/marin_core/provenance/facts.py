"""Facts about the place of a run, for its record: the machine, its packages, and where the code came from.

Asking git takes longer than a run that has nothing to do, so the origin is gathered in a thread of its own, beside the
plan and the first steps (`Gathering`); the runner waits for it only when the first output is to be committed.
"""

import contextlib
import hashlib
import json
import os
import platform
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from marin_core.errors import PrefixError
from marin_core.launchers.worker import SCRIPT_MODULE
from marin_core.processes import this_host
from marin_core.provenance import environments, objects, repository
from marin_core.records import Origin
from marin_core.remembered import recall, remember
from marin_core.running import attempts
from marin_core.store import Store

_MEMORY = "patches"


def environment(lock: Path | None) -> dict[str, Any]:
    """Python, platform, host, user, cpu, number of cpus, memory in bytes, accelerators, version of this package, digest
    of the lock file, packages (name -> version)."""
    packages = environments.installed_packages()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": this_host().split(":")[0],
        "user": attempts.user(),
        "cpu": _cpu(),
        "num_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "accelerators": _accelerators(),
        "marin_core": packages.get("marin-core", ""),
        "lock_digest": environments.file_digest(lock) if lock else "",
        "packages": packages,
    }


def _cpu() -> str:
    if sys.platform == "linux":
        try:
            with open("/proc/cpuinfo", encoding="utf-8") as f:  # noqa: PTH123  long on many cores; the first is enough
                for line in f:
                    if line.startswith("model name"):
                        return line.partition(":")[2].strip()
        except OSError:
            pass
    return platform.processor() or platform.machine()


def _accelerators() -> list[str]:
    """Model names of NVIDIA devices, and TPU devices, as far as the kernel shows them without any library."""
    found = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        found += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return found + [f"tpu {path.name}" for path in sorted(Path("/dev").glob("accel[0-9]*"))]


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """How this process was started, as it is before anything changes directory or arguments."""

    script: Path | None
    launched: Literal["script", "module", "marin"]
    entry: str
    flags: tuple[str, ...]
    directory: Path

    @classmethod
    def current(cls) -> "Invocation":
        """The invocation of the running process."""
        main, argv = sys.modules.get("__main__"), tuple(sys.argv)
        file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
        launched, entry, flags = "script", "", argv[1:]
        if getattr(main, "__name__", "") == SCRIPT_MODULE and argv[1:2] == ("run",):
            launched, flags = "marin", argv[3:]
            entry = argv[2].rpartition(":")[2] if ".py:" in argv[2] else ""
        elif spec is not None:
            launched, entry = "module", spec.name.removesuffix(".__main__")
        return cls(
            script=Path(file).resolve() if file else None,
            launched=launched,
            entry=entry,
            flags=flags,
            directory=Path.cwd(),
        )


class Gathering:
    """The origin of the run that this process makes, gathered beside it. Only reads, until `settled`.

    Args:
        store: the prefix, whose own files belong to no patch.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.invocation = Invocation.current()
        script = self.invocation.script
        self.lock = environments.nearest_lock(script.parent) if script else None
        self._root = repository.root_of(script.parent) if script else None
        self._seen: repository.Snapshot | None = None
        self._patch: bytes | None = b""
        self._patch_digest: str | None = None
        self._origin: Origin | None = None
        self._thread = threading.Thread(target=self._look, name="marin-origin", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        with contextlib.suppress(PrefixError):  # which the run itself will meet and tell
            self._look_and_diff()

    def _look_and_diff(self) -> None:
        seen = repository.snapshot(self._root, without=self._store.local) if self._root is not None else None
        if seen is None:
            return
        stamp = seen.stamp()
        known = recall(_MEMORY, stamp) if stamp else None
        if known in self._store.names("objects"):
            self._patch_digest = known
        else:
            self._patch, why = seen.patch()
            seen = replace(seen, omitted=(*seen.omitted, *filter(None, [why])))
            if stamp and self._patch:
                remember(_MEMORY, stamp, hashlib.sha256(self._patch).hexdigest())
        self._seen = seen

    @property
    def is_known(self) -> bool:
        """Whether `settled` would answer at once."""
        return not self._thread.is_alive()

    def settled(self, environment: dict[str, Any]) -> Origin:
        """The origin, with its patch, lock file and machine kept as objects under the prefix."""
        if self._origin is None:
            self._thread.join()
            self._origin = self._kept(environment)
        return self._origin

    def _kept(self, environment: dict[str, Any]) -> Origin:
        store, invocation, seen = self._store, self.invocation, self._seen
        origin = Origin(
            script=self._relative(invocation.script),
            launched=invocation.launched,
            entry=invocation.entry,
            flags=invocation.flags,
            directory=self._relative(invocation.directory),
            lock=objects.put(store, self.lock.read_bytes()) if self.lock else "",
            lock_path=self._relative(self.lock),
            machine=objects.put(store, json.dumps(environment, sort_keys=True).encode()),
        )
        if seen is None:
            return origin
        return replace(
            origin,
            repository=str(seen.root),
            commit=seen.commit,
            branch=seen.branch,
            dirty=bool(seen.changed),
            patch=self._kept_patch(),
            omitted=seen.omitted,
        )

    def _kept_patch(self) -> str | None:
        if self._patch_digest is not None or self._patch is None:
            return self._patch_digest
        return objects.put(self._store, self._patch) if self._patch else ""

    def _relative(self, path: Path | None) -> str:
        if path is None:
            return ""
        if self._root is None or not path.is_relative_to(self._root):
            return str(path)
        return path.relative_to(self._root).as_posix()
