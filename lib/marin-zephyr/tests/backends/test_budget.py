"""A run on more than its budget holds stays within the budget, seen from outside, and is stopped by nobody for that."""

import subprocess
import sys
from pathlib import Path

import pytest

MIB = 1 << 20
BUDGET = 256 * MIB

# The plan sees 28 small rows, so all that they become is one partition.
SCRIPT = """
import hashlib, sys
from marin_zephyr import Dataset, Session, agg

def expanded(row):
    for i in range(1000):
        digest = hashlib.sha256(f"{row['n']} {i}".encode()).hexdigest()
        yield {"id": digest[:8], "page": row["n"] * 50 + i % 50, "text": digest * 150}

rows = Dataset.from_rows([{"n": n} for n in range(28)], num_shards=4).flat_map(expanded)
plan = {
    "sort": lambda: rows.sort("text"),
    "collect": lambda: rows.group_by("page").agg(texts=agg.collect("text")),
}[sys.argv[1]]()
with Session(workers=2, memory=int(sys.argv[2]), work_dir=sys.argv[3] + "/work") as session:
    report = session.run(plan.write_parquet(sys.argv[3] + "/out", compression="snappy"))
print(report.counters["rows_out"], sum(stage.retried for stage in report.stages))
"""


def held(pid: int) -> int:
    """Bytes that a process and its descendants hold, pages of files left out."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (OSError, ProcessLookupError):  # it has ended
        return 0
    own = sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss_Anon:"))
    return own + sum(held(int(child)) for child in children)


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="nothing tells what a process holds")
@pytest.mark.parametrize(("task", "rows"), [("sort", 28_000), ("collect", 1_400)])
def test_a_partition_larger_than_the_budget_is_worked_on_within_it(task, rows, tmp_path):
    command = [sys.executable, "-c", SCRIPT, task, str(BUDGET), str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peak = 0
    while process.poll() is None:
        peak = max(peak, held(process.pid))
        try:
            process.wait(timeout=0.02)
        except subprocess.TimeoutExpired:
            continue
    assert process.stdout is not None
    assert process.stdout.read().split() == [str(rows), "0"]
    assert 100 * MIB < peak <= BUDGET * 1.1
