"""How long `import` takes, in a fresh interpreter, against the budget of each wheel and against bare Python.

    uv run bench/imports.py            a table: median of 7 interleaved runs, seconds above an empty interpreter
    uv run bench/imports.py --check    exit 1 where the best run exceeds its budget (the layering session runs this)

The budget holds for the fastest run: a busy machine can only add time, never take any away.
"""

import argparse
import statistics
import subprocess
import sys
import time

BUDGETS = {"marin_core": 0.3, "marin_zephyr": 0.4, "marin_rigging": 0.3, "marin_delphi": 0.3, "marin_train": 0.3}
FORBIDDEN = {
    "marin_core": ("jax", "pyarrow", "ray"),
    "marin_zephyr": ("jax", "ray", "datasets"),
    "marin_rigging": ("jax", "ray"),
    "marin_delphi": ("jax", "ray", "scipy"),
    "marin_train": ("jax", "ray"),
}


def seconds(statement: str) -> float:
    """Wall time of a fresh interpreter that runs ``statement``."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return time.perf_counter() - start


def loaded(module: str) -> list[str]:
    """Which of its forbidden packages importing ``module`` pulls in."""
    probe = f"import {module}, sys; print(*[m for m in {FORBIDDEN[module]!r} if m in sys.modules])"
    return subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, text=True).stdout.split()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 when a budget is exceeded")
    check = parser.parse_args().check
    times: dict[str, list[float]] = {name: [] for name in ("pass", *BUDGETS)}
    for _ in range(7):
        for name, runs in times.items():
            runs.append(seconds("pass" if name == "pass" else f"import {name}"))
    empty = min(times["pass"])
    print(f"{'import':<16}{'median s':>10}{'best s':>10}{'budget s':>10}{'x empty':>10}")
    failed = False
    for name, budget in BUDGETS.items():
        best, median = min(times[name]) - empty, statistics.median(times[name]) - empty
        heavy = loaded(name)
        failed |= best > budget or bool(heavy)
        print(f"{name:<16}{median:>10.3f}{best:>10.3f}{budget:>10.1f}{min(times[name]) / empty:>10.1f}"
              + (f"   loads {', '.join(heavy)}" if heavy else ""))  # fmt: skip
    return int(check and failed)


if __name__ == "__main__":
    sys.exit(main())
