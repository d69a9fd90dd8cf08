"""Files that are whole or absent, whatever stops the writing; directories with one writer."""

import os
import resource
import signal
import subprocess
import sys

import pytest

from marin_zephyr.durability import new_file, replace_file, sole_writer
from marin_zephyr.errors import OutputBusyError, OutputError


@pytest.mark.parametrize("durable", [True, False])
def test_a_block_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, durable):
    path = tmp_path / "below" / "a.txt"
    replace_file(path, b"old", durable=durable)

    def write_half() -> None:
        with new_file(path, durable=durable) as hidden:
            hidden.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert [(p.name, p.read_bytes()) for p in path.parent.iterdir()] == [("a.txt", b"old")]
    replace_file(path, b"new", durable=durable)
    assert path.read_bytes() == b"new"


def test_a_kill_in_the_middle_leaves_the_old_file(tmp_path):
    replace_file(tmp_path / "a.txt", b"old")
    code = """
import os, signal, sys
from pathlib import Path
from marin_zephyr.durability import new_file
with new_file(Path(sys.argv[1])) as hidden:
    hidden.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", code, tmp_path / "a.txt"], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert (tmp_path / "a.txt").read_bytes() == b"old"


def test_what_the_system_will_not_write_is_an_error_that_names_the_path(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"file/a\.txt: cannot write"):
        replace_file(tmp_path / "file" / "a.txt", b"new")
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1][1]))
    try:
        with pytest.raises(OutputError, match=r"a\.txt: cannot write"):
            replace_file(tmp_path / "a.txt", bytes(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before[1])
        signal.signal(signal.SIGXFSZ, before[0])
    assert os.listdir(tmp_path) == ["file"]  # noqa: PTH208  names are all that is asked


def test_a_directory_has_one_writer_until_it_ends(tmp_path):
    with sole_writer(tmp_path / "out"), pytest.raises(OutputBusyError), sole_writer(tmp_path / "out"):
        pass
    with sole_writer(tmp_path / "out"):
        assert list((tmp_path / "out").iterdir()) == []
