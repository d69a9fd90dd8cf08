"""Runs of the main job, or of another experiment, as users run it: a process of its own, on a corpus made here."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "experiments" / "quickstart.py"
SMALL = ("--steps", "30", "--vocab-size", "512", "--batch-size", "2")


def write_corpus(directory: Path, *, num_documents: int = 300, seed: int = 0) -> Path:
    """Documents of made-up prose with a small vocabulary, some of them twice, as one jsonl file."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(400)]
    documents = [" ".join(draw.choices(words, k=draw.randint(60, 200))) + "." for _ in range(num_documents)]
    documents += documents[:20]
    path = directory / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return path


def start(*flags: str, prefix: Path, script: Path = SCRIPT) -> subprocess.Popen[str]:
    """Starts an experiment, by default the quickstart, as leader of its own process group, its output read by line."""
    return subprocess.Popen(
        [sys.executable, "-u", str(script), "--prefix", str(prefix), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        | {"JAX_PLATFORMS": "cpu", "COLUMNS": "120"},
    )


def finish(*flags: str, prefix: Path, script: Path = SCRIPT) -> tuple[int, str]:
    """Runs an experiment, by default the quickstart, to its end: exit code and all it said."""
    process = start(*flags, prefix=prefix, script=script)
    said, _ = process.communicate()
    return process.returncode, said


def kill_when(condition: Callable[[], bool], *flags: str, prefix: Path) -> None:
    """Starts it, and kills its whole process group by SIGKILL as soon as ``condition`` holds of what lies on disk."""
    process = start(*flags, prefix=prefix)
    while not condition():
        assert process.poll() is None, f"it ended before it could be killed:\n{process.communicate()[0]}"
        time.sleep(0.01)  # how often to look; what is waited for is the condition
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def lines_of(prefix: Path, pattern: str) -> int:
    """Lines of the files that match, all together."""
    return sum(len(path.read_bytes().splitlines()) for path in prefix.glob(pattern))


def run_records(prefix: Path) -> list[dict]:
    """The run records under a prefix, oldest first."""
    records = [json.loads(p.read_text()) for p in (prefix / "runs").glob("*.json")]
    return sorted(records, key=lambda record: record["started_at"])


def executed(record: dict) -> set[str]:
    """Names of the steps that a run executed."""
    return {node["name"] for node in record["nodes"] if node["outcome"] == "succeeded"}


def committed(prefix: Path) -> set[str]:
    """Names of the steps that have a committed output."""
    return {pointer.parent.parent.name for pointer in prefix.glob("*/*/step.json")}


def output(prefix: Path, name: str) -> Path:
    """The committed output directory of the one step of that name."""
    (pointer,) = prefix.glob(f"{name}/*/step.json")
    return pointer.parent / "attempts" / str(json.loads(pointer.read_text())["attempt"]) / "out"


def losses(prefix: Path) -> list[float]:
    """The committed loss curve, exact."""
    return [json.loads(line)["loss"] for line in (output(prefix, "train") / "metrics.jsonl").read_text().splitlines()]
