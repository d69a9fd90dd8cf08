"""Tokenization: from compressed JSON lines to a store of tokens, beside the bare encoder and other pipelines.

    uv run bench/tokens.py            90 MB in 8 files, three rounds
    uv run bench/tokens.py --quick    20 MB, one round
    MARIN_BENCH_PEERS=~/peers uv run bench/tokens.py    beside the peers of `bench/zephyr.py --help`

Everything runs on two threads or two workers with one tokenizer of 16,384 ids (``--tokenizer DIR`` takes another).
Rates are ids a second of the call itself; imports have rows of their own, and peak memory is that of the whole process
tree. How rows are measured: `flows/rounds.py`; a ratio says how many times longer another takes than our base install.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from flows.rounds import Job, Peer, Results, Row, measure, show
from zephyr import command, make_corpus

OURS = Row("", "ours", "seconds")
ENGINES = {"ours": "tokenizers", "ours, fast": "gigatoken"}
PEERS = {"Marin": ("marin", "m312"), "Levanter": ("levanter", "m312"), "datatrove": ("datatrove", "dt")}


def our_jobs(corpus: Path, tokenizer: Path, scratch: Path) -> dict[str, Job]:
    """The bare encoder, and both engines of ours."""

    def flow(task: str, *rest: object) -> list[str]:
        return command(sys.executable, "tokens_flow", task, corpus, tokenizer, *rest)

    jobs: dict[str, Job] = {task: lambda k, task=task: flow(task) for task in ("raw", "raw-fast")}
    for name, engine in ENGINES.items():
        jobs[name] = lambda k, engine=engine: flow("tokenize", scratch / f"{engine}-{k}", "--engine", engine)
    return jobs


def rows_of(job: str, title: str, *, against: Row | None = OURS) -> list[Row]:
    """The rows of one pipeline."""
    return [
        Row(title, job, "seconds", against=against),
        Row("  ids a second", job, "mtokens_per_s", "M/s"),
        Row("  imports", job, "imports"),
        Row("  peak memory", job, "memory_mb", "MB", budget=600 if against is None else None),
    ]


def our_rows() -> dict[str, list[Row]]:
    """The table of ours, by heading."""
    raw = [
        row
        for job, title in (("raw", "encode_batch"), ("raw-fast", "encode_batch_fast"))
        for row in rows_of(job, title)[:2]
    ]
    ours = [row for name in ENGINES for row in rows_of(name, f"marin-zephyr, {ENGINES[name]}", against=None)]
    return {"tokenizers, documents in memory": raw, "marin-zephyr, from files to a store": ours}


def peers(where: Path, corpus: Path, tokenizer: Path, scratch: Path) -> list[Peer]:
    """Other pipelines."""
    found = []
    for title, (name, environment) in PEERS.items():
        python = where / environment / "bin/python"
        job: Job = lambda k, name=name, python=python: command(  # noqa: E731
            python, "tokens_peer_flow", name, corpus, tokenizer, scratch / f"{name}-{k}"
        )
        rows = [
            *rows_of(name, title),
            Row("  against the fast engine", name, "seconds", against=Row("", "ours, fast", "seconds")),
        ]
        found.append(Peer(title, python, {name: job}, rows))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 MB, one round")
    parser.add_argument("--rounds", type=int, help="default: 3, or 1 if quick")
    parser.add_argument("--corpus", type=Path, help="where the corpus is, or is made and kept")
    parser.add_argument("--tokenizer", type=Path, help="a directory with tokenizer.json and tokenizer_config.json")
    options = parser.parse_args()
    where = Path(os.environ.get("MARIN_BENCH_PEERS") or "/nonexistent").expanduser()
    results = Results()
    with tempfile.TemporaryDirectory(prefix="marin-bench-", ignore_cleanup_errors=True) as directory:
        scratch = Path(directory)
        home = options.corpus or scratch / "corpus"
        corpus = make_corpus(home, 20, 4) if options.quick else make_corpus(home, 90, 8)
        tokenizer = options.tokenizer or scratch / "tokenizer"
        if options.tokenizer is None:
            subprocess.run(command(sys.executable, "tokens_flow", "train", corpus, tokenizer), check=True)
        others = peers(where, corpus, tokenizer, scratch)
        there = [peer for peer in others if peer.program.exists()]
        jobs = our_jobs(corpus, tokenizer, scratch)
        for peer in there:
            jobs |= peer.jobs
        measure(results, jobs, rounds=options.rounds or (1 if options.quick else 3))
    show(results, our_rows() | {peer.name: peer.rows for peer in there})
    if absent := [peer.name for peer in others if peer not in there]:
        print(f"without {', '.join(absent)}: `bench/zephyr.py --help` says how to make their environments")


if __name__ == "__main__":
    main()
