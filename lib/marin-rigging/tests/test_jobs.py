"""Jobs on record."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from marin_rigging import Job, Pool
from marin_rigging.errors import JobError
from marin_rigging.gangs import RankExit
from marin_rigging.jobs import JobStore

POOL = Pool(name="here", ranks=2)
JOB = Job(name="hello", pool="here", command=("echo", "hello"), env={"TOKEN": "sentinel-secret"})


def test_a_record_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    store = JobStore(tmp_path)
    record = store.create(JOB, POOL)
    assert (record.id, record.state, record.num_ranks) == ("hello-1", "running", 2)
    assert store.read("hello-1") == record
    exits = (
        RankExit(rank=0, returncode=0, cause="own", seconds=1.5),
        RankExit(rank=1, returncode=-9, cause="gang", seconds=2),
    )
    done = store.finish(record, state="failed", summary="rank 0 was lost", exits=exits)
    assert store.read("hello-1") == done
    assert store.list() == (done,)


def test_drivers_that_race_for_a_directory_each_get_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        records = list(pool.map(lambda _: JobStore(tmp_path).create(JOB, POOL), range(32)))
    assert {r.id for r in records} == {f"hello-{n}" for n in range(1, 33)}


def test_a_variable_s_value_is_written_nowhere(tmp_path: Path) -> None:
    record = JobStore(tmp_path).create(JOB, POOL)
    assert record.env_names == ("TOKEN",)
    assert not any(b"sentinel-secret" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_a_job_whose_driver_is_gone_is_lost(tmp_path: Path) -> None:
    code = (
        "import sys; from marin_rigging import Job, Pool; from marin_rigging.jobs import JobStore\n"
        "JobStore(sys.argv[1]).create(Job(name='a', pool='p', command=('x',)), Pool(name='p'))"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert JobStore(tmp_path).read("a-1").state == "lost"


def test_a_process_that_took_over_the_driver_s_number_is_not_the_driver(tmp_path: Path) -> None:
    store = JobStore(tmp_path)
    path = tmp_path / "rig" / "jobs" / store.create(JOB, POOL).id / "job.json"
    record = json.loads(path.read_text())
    assert record["driver_pid"] == os.getpid()
    record["driver_started"] = "1"
    path.write_text(json.dumps(record))
    assert store.read("hello-1").state == "lost"


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"schema": 2}', '{"schema": 1, "exits": []}'])
def test_a_damaged_record_is_named_and_hides_no_other(tmp_path: Path, content: str) -> None:
    store = JobStore(tmp_path)
    store.create(JOB, POOL)
    good = store.create(JOB, POOL)
    (tmp_path / "rig" / "jobs" / "hello-1" / "job.json").write_text(content)
    with pytest.raises(JobError, match=r"hello-1/job\.json cannot be read"):
        store.read("hello-1")
    assert store.list() == (good,)


@pytest.mark.parametrize("name", ["absent-1", "../jobs/hello-1", "", "."])
def test_a_job_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path, name: str) -> None:
    store = JobStore(tmp_path)
    store.create(JOB, POOL)
    with pytest.raises(JobError, match=r"is not on record under .*; the last ones are: hello-1"):
        store.read(name)


def test_a_rank_that_is_not_there_is_refused(tmp_path: Path) -> None:
    store = JobStore(tmp_path)
    with pytest.raises(JobError, match="rank=2 is not in job 'hello-1'; its ranks are 0 to 1"):
        store.log(store.create(JOB, POOL), 2)


def test_a_prefix_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    prefix = tmp_path / "file"
    prefix.write_text("in the way")
    with pytest.raises(JobError, match=r"prefix '.*file' cannot be written: Not a directory"):
        JobStore(prefix).create(JOB, POOL)
