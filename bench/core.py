"""Graphs of trivial steps: what marin-core itself costs, against its budgets and against other executors.

    uv run bench/core.py            10,000 steps, three rounds: some minutes
    uv run bench/core.py --quick    2,000 steps, one round
    MARIN_BENCH_PEERS=~/peers uv run bench/core.py     beside the peers, whose environments are made by

    uv venv -p 3.12 ~/peers/wf && uv pip install -p ~/peers/wf/bin/python redun snakemake
    uv venv -p 3.12 ~/peers/m312 && uv pip install -p ~/peers/m312/bin/python --prerelease=allow marin-core \\
        marin-zephyr marin-rigging marin-levanter marin-haliax marin-fray marin-iris marin-dupekit

Every measurement is a process of its own (`flows/`), rounds are interleaved, and the graphs have the same shapes in
every executor; peers that would take minutes get smaller ones, so all are compared by the step. A row: the median and
the range of the rounds, CPU where the process under measurement tells it, our budget, and how many times longer a peer
takes than we do. ``*`` marks a row during which other processes took more than a tenth of the machine. The page's rows
need Chromium and websocket-client, the row of S3 needs moto and obstore.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from flows.rounds import Job, Peer, Results, Row, measure, show

FLOWS = Path(__file__).parent / "flows"


def our_jobs(scratch: Path, sizes: argparse.Namespace) -> dict[str, Job]:
    """What is measured of marin-core. ``large`` is a prefix that the job of that name fills."""
    large, html, n = str(scratch / "large"), str(scratch / "page.html"), str(sizes.n)

    def flow(*arguments: object) -> list[str]:
        return [sys.executable, str(FLOWS / "core_flow.py"), *map(str, arguments)]

    def cold(shape: str, steps: int, launcher: str) -> Job:
        return lambda k: flow(
            "cold", shape, steps, "--launcher", launcher, "--prefix", scratch / f"{shape}-{launcher}-{k}"
        )

    script = [sys.executable, str(FLOWS / "graphs.py"), "--shape", "layers", "--n", n, "--prefix", large]
    return {
        "empty": lambda _: [sys.executable, "-c", "pass"],
        "import": lambda _: [sys.executable, "-c", "from marin_core import lower, main, run, step"],
        "help": lambda _: [sys.executable, "-m", "marin_core.cli", "--help"],
        "large": lambda _: flow("cold", "layers", n, "--prefix", large),
        "lower wide": lambda _: flow("lower", "wide", n),
        "lower layers": lambda _: flow("lower", "layers", n),
        "read chain": lambda _: flow("read", "chain", n),
        "read diamonds": lambda _: flow("read", "diamonds", 30),
        "rerun": lambda _: flow("rerun", "layers", n, "--prefix", large),
        "plan": lambda _: [*script, "--plan"],
        "script": lambda _: script,
        "far": lambda _: flow("far", "layers", n, "--prefix", large),
        "page": lambda _: flow("page", "layers", n, "--prefix", large, "--html", html),
        "serve": lambda _: flow("serve", "layers", n, "--prefix", large),
        "browser": lambda _: [sys.executable, str(FLOWS / "browser.py"), html],
        "wide inline": cold("wide", sizes.wide, "inline"),
        "chain inline": cold("chain", sizes.chain, "inline"),
        "s3": lambda _: flow("s3", "wide", sizes.wide, "--prefix", scratch / "wide-inline-0"),
        "wide process": cold("wide", sizes.wide, "process"),
        "chain process": cold("chain", sizes.chain, "process"),
    }


def our_rows(sizes: argparse.Namespace) -> dict[str, list[Row]]:
    """The table of marin-core, by heading."""
    n = sizes.n

    def cold(title: str, job: str, steps: int, budget: float) -> Row:
        return Row(title, job, "cold", "ms/step", steps, budget)

    return {
        "start": [
            Row("an empty interpreter", "empty"),
            Row("import, whole process", "import", budget=0.3),
            Row("marin --help, whole process", "help"),
        ],
        f"{n:,} steps": [
            Row("called and lowered, wide", "lower wide", "lower", budget=1.5),
            Row("called and lowered, layers", "lower layers", "lower", budget=1.5),
            Row("called and lowered, chain", "read chain", "lower", budget=1.5),
            Row("planned, graphed and explained, chain", "read chain", "read"),
            Row("the same of 30 stacked diamonds", "read diamonds", "read"),
            Row("plan, in process", "rerun", "plan", budget=3),
            Row("plan, whole process", "plan", budget=3),
            Row("no-op rerun, in process", "rerun", "rerun", budget=3),
            Row("no-op rerun, whole process with its page", "script", budget=3),
            Row("no-op rerun, peak memory", "rerun", "memory_mb", "MB", budget=500),
            Row("plan, store 50 ms away", "far", "plan", budget=10),
            Row("no-op rerun, store 50 ms away", "far", "rerun", budget=10),
            Row(f"{sizes.wide:,} steps, no-op rerun, S3 50 ms away", "s3", "rerun"),
            Row("page, written", "page", "page"),
            Row("page, peak memory of writing it", "page", "memory_mb", "MB", budget=500),
            Row("page, size", "page", "html_mb", "MB"),
            Row("page, opened in a browser", "browser", "open", budget=3),
            Row("page, from a new `marin serve`", "serve", "served", budget=3),
        ],
        "cold runs": [
            cold(f"{n:,} inline, layers", "large", n, 3),
            Row("  peak memory", "large", "memory_mb", "MB", budget=500),
            cold(f"{sizes.wide:,} inline, wide", "wide inline", sizes.wide, 3),
            cold(f"{sizes.chain:,} inline, chain", "chain inline", sizes.chain, 8),
            cold(f"{sizes.wide:,} processes, wide", "wide process", sizes.wide, 8),
            cold(f"{sizes.chain:,} processes, chain", "chain process", sizes.chain, 8),
        ],
    }


def marin_peer(where: Path, scratch: Path, sizes: argparse.Namespace) -> Peer:
    """The existing Marin, with its default of 8 slots and with 256."""
    python, slow, many, links = where / "m312/bin/python", sizes.slow, sizes.peer, sizes.slow // 5

    def flow(*arguments: object) -> Job:
        name = "-".join(("marin", *map(str, arguments)))
        command = [str(python), str(FLOWS / "marin_flow.py"), *map(str, arguments), "--prefix"]
        return lambda k: [*command, str(scratch / f"{name}-{k}")]

    def cold(title: str, job: str, steps: int, ours: str, our_steps: int) -> Row:
        return Row(title, job, "cold", "ms/step", steps, against=Row("", ours, "cold", steps=our_steps))

    jobs: dict[str, Job] = {
        "marin import": lambda _: [str(python), "-c", "from marin.execution.lazy import lower, run"],
        "marin lower": flow("layers", sizes.n, "--lower-only"),
        "marin 8": flow("wide", slow),
        "marin 256": flow("wide", many, "--slots", 256),
        "marin chain": flow("chain", links),
    }
    rows = [
        Row("import, whole process", "marin import", against=Row("", "import")),
        Row(f"{sizes.n:,} lowered, layers", "marin lower", "lower", against=Row("", "lower layers", "lower")),
        cold(f"{slow} cold, wide, 8 slots", "marin 8", slow, "wide inline", sizes.wide),
        cold(f"{many} cold, wide, 256 slots", "marin 256", many, "wide inline", sizes.wide),
        cold(f"{links} cold, chain", "marin chain", links, "chain inline", sizes.chain),
    ]
    return Peer("Marin", python, jobs, rows)


def redun_peer(where: Path, scratch: Path, sizes: argparse.Namespace) -> Peer:
    """redun, whose tasks are threads of the scheduler's process."""
    program, n = where / "wf/bin/redun", sizes.peer
    command = [str(program.with_name("python")), str(FLOWS / "redun_flow.py"), str(n)]
    rows = [
        Row(f"{n} cold, wide, threads", "redun", "cold", "ms/step", n,
            against=Row("", "wide inline", "cold", steps=sizes.wide)),
        Row(f"{n} rerun", "redun", "rerun", "ms/step", n, against=Row("", "rerun", "rerun", steps=sizes.n)),
    ]  # fmt: skip
    return Peer("redun", program, {"redun": lambda k: [*command, str(scratch / f"redun-{k}")]}, rows)


def snakemake_peer(where: Path, scratch: Path, sizes: argparse.Namespace) -> Peer:
    """Snakemake, whose jobs are shell commands; its start is part of the measure, as it is for every run."""
    program, n = where / "wf/bin/snakemake", sizes.slow
    command = [str(program), "-s", str(FLOWS / "Snakefile"), "--cores", "2", "--quiet", "all"]
    command += ["--config", f"num_steps={n}", "--directory"]
    runs = ("snakemake cold", "snakemake rerun")
    jobs: dict[str, Job] = {name: lambda k: [*command, str(scratch / f"snakemake-{k}")] for name in runs}
    rows = [
        Row(f"{n} cold, wide, shell, whole process", runs[0], unit="ms/step", steps=n,
            against=Row("", "wide process", "cold", steps=sizes.wide)),
        Row(f"{n} rerun, whole process", runs[1], unit="ms/step", steps=n,
            against=Row("", "script", steps=sizes.n)),
    ]  # fmt: skip
    return Peer("Snakemake", program, jobs, rows)


ONCE = frozenset({"large", "far", "s3"})
"""Jobs of the first round alone: one makes what others read, one waits for what does not vary."""

FULL = argparse.Namespace(n=10_000, wide=1000, chain=300, peer=500, slow=50)
QUICK = argparse.Namespace(n=2000, wide=200, chain=60, peer=100, slow=25)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps, one round")
    parser.add_argument("--rounds", type=int, help="default: 3, or 1 if quick")
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL
    rounds = options.rounds or (1 if options.quick else 3)
    where = Path(os.environ.get("MARIN_BENCH_PEERS") or "/nonexistent").expanduser()
    results, tables = Results(), our_rows(sizes)
    with tempfile.TemporaryDirectory(prefix="marin-bench-", ignore_cleanup_errors=True) as directory:
        scratch = Path(directory)
        peers = [make(where, scratch, sizes) for make in (marin_peer, redun_peer, snakemake_peer)]
        there = [peer for peer in peers if peer.program.exists()]
        jobs = our_jobs(scratch, sizes)
        for peer in there:
            jobs |= peer.jobs
        measure(results, jobs, rounds=rounds, once=ONCE)
    show(results, tables | {peer.name: peer.rows for peer in there})
    if absent := [peer.name for peer in peers if peer not in there]:
        print(f"without {', '.join(absent)}: `bench/core.py --help` says how to make their environments")


if __name__ == "__main__":
    main()
