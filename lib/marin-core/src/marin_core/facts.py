"""Facts about the place of a run, for its record: machine, Python, packages, and the state of the repository."""

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from marin_core import attempts, leases
from marin_core.identity import installed_packages


def environment(lock_digest: str) -> dict[str, Any]:
    """Python, platform, host, user, cpu, number of cpus, memory in bytes, lock digest, packages (name -> version)."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": leases.this_host().split(":")[0],
        "user": attempts.user(),
        "cpu": _cpu(),
        "num_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "lock_digest": lock_digest,
        "packages": installed_packages(),
    }


def git(directory: Path) -> dict[str, Any]:
    """Commit, branch and whether the tree is dirty; empty outside a repository or without git."""
    command = ["git", "-C", str(directory), "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    lines = done.stdout.splitlines()
    heads = dict(line.removeprefix("# branch.").split(" ", 1) for line in lines if line.startswith("# branch."))
    return {
        "commit": heads.get("oid", ""),
        "branch": heads.get("head", ""),
        "dirty": any(not line.startswith("#") for line in lines),
    }


def _cpu() -> str:
    if sys.platform == "linux":
        try:
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
        except OSError:
            pass
    return platform.processor() or platform.machine()
