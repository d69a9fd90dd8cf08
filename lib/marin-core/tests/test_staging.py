"""Staging: what the dead of this host have left is removed, and nothing else."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from marin_core import staging


def test_only_what_the_dead_have_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = "from marin_core import staging; print(staging.owned_directory('attempt'), flush=True); os.abort()"
    env = {"TMPDIR": str(tmp_path)}
    left = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False).stdout
    assert Path(left.strip()).parent == tmp_path
    kept = [staging.owned_directory("inputs"), tmp_path / "marin-kept-abc", tmp_path / "marin-attempt-12345678-1-1-x"]
    for path in kept[1:]:
        path.mkdir()
    staging.sweep.cache_clear()
    staging.sweep()
    assert sorted(tmp_path.iterdir()) == sorted(kept)
