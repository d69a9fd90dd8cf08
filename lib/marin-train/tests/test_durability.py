import signal
import subprocess
import sys
from pathlib import Path

import pytest

from marin_train.durability import to_json, write_whole

DIES = """
import os, pathlib, signal, sys
from marin_train import durability

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

setattr(os if sys.argv[2] == "fsync" else pathlib.Path, sys.argv[2], die)
durability.write_whole(pathlib.Path(sys.argv[1]), "new")
"""


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_process_killed_while_it_writes_leaves_the_file_that_was_there(tmp_path: Path, moment: str) -> None:
    path = tmp_path / "run.json"
    write_whole(path, "old")
    done = subprocess.run([sys.executable, "-c", DIES, str(path), moment])
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "old"


def test_what_is_written_takes_the_place_of_what_was_there_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    for values in ({"step": 1}, {"step": 2}):
        write_whole(path, to_json(values))
    assert path.read_text() == '{\n "step": 2\n}\n'
    assert list(tmp_path.iterdir()) == [path]
