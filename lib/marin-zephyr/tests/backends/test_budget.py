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
from marin_zephyr import Dataset, Session

def expanded(row):
    for i in range(1000):
        digest = hashlib.sha256(f"{row['n']} {i}".encode()).hexdigest()
        yield {"id": digest[:8], "page": row["n"] * 50 + i % 50, "text": digest * 150}

plan = Dataset.from_rows([{"n": n} for n in range(28)], num_shards=4).flat_map(expanded).sort("text")
with Session(workers=2, memory=int(sys.argv[1]), work_dir=sys.argv[2] + "/work") as session:
    report = session.run(plan.write_parquet(sys.argv[2] + "/out", compression="snappy"))
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
def test_a_partition_larger_than_the_budget_is_sorted_within_it(tmp_path):
    command = [sys.executable, "-c", SCRIPT, str(BUDGET), str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peak = 0
    while process.poll() is None:
        peak = max(peak, held(process.pid))
        try:
            process.wait(timeout=0.02)
        except subprocess.TimeoutExpired:
            continue
    assert process.stdout is not None
    assert process.stdout.read().split() == ["28000", "0"]
    assert 100 * MIB < peak <= BUDGET * 1.1
