import contextlib
import dataclasses
import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_train.certificates import read_certificate, write_certificate
from marin_train.checkpoints import checkpoints, find, load_model, named_leaves
from marin_train.checkpoints.retention import retire
from marin_train.configs import TrainConfig, to_dict
from marin_train.errors import CheckpointError, MarinTrainError
from marin_train.loop import train
from marin_train.tracking import read_metrics

MakeConfig = Callable[..., TrainConfig]
Loaded = tuple[Path, dict[str, bytes]]


def _newest(run: Path) -> Path:
    return checkpoints(run / "checkpoints")[0]


def _largest_file(checkpoint: Path, part: str) -> Path:
    return max((f for f in (checkpoint / part).rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)


def _flip_a_byte(checkpoint: Path) -> None:
    file = _largest_file(checkpoint, "optimizer")
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(bytes(raw))


def _change_a_digest(checkpoint: Path) -> None:
    """As a certificate would be that was written for other leaves: whole in itself."""
    certificate = read_certificate(checkpoint)
    name, leaf = next(iter(certificate.leaves["model"].items()))
    other = {name: dataclasses.replace(leaf, digest="0" * 16)}
    leaves = certificate.leaves | {"model": certificate.leaves["model"] | other}
    write_certificate(checkpoint, dataclasses.replace(certificate, leaves=leaves))


def _replace(file: Path, old: bytes, new: bytes) -> None:
    content = file.read_bytes()
    assert old in content
    file.write_bytes(content.replace(old, new))


DAMAGE: dict[str, Callable[[Path], None]] = {
    "a flipped byte": _flip_a_byte,
    "leaves of another digest": _change_a_digest,
    "a truncated file": lambda c: _largest_file(c, "model").write_bytes(b""),
    "a lost file": lambda c: _largest_file(c, "optimizer").unlink(),
    "no certificate": lambda c: (c / "certificate.json").unlink(),
    "another configuration": lambda c: _replace(c / "config.json", b'"seed": 0', b'"seed": 1'),
    "another step in the certificate": lambda c: _replace(c / "certificate.json", b'"step": 12', b'"step": 11'),
    "half a certificate": lambda c: (c / "certificate.json").write_text('{"step": 12'),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_of_a_damaged_checkpoint_the_one_before_is_used_with_a_warning(
    what: str, tiny_config: MakeConfig, run_copy: Path, finished_run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    DAMAGE[what](_newest(run_copy))
    with caplog.at_level(logging.INFO, logger="marin_train"):
        train(tiny_config(), run_copy)
    assert any("step-00000012 is damaged" in message for message in caplog.messages)
    assert "resuming after step 8 of 12" in caplog.messages
    rows, expected = (read_metrics(run / "metrics.jsonl") for run in (run_copy, finished_run))
    assert [row["loss"] for row in rows] == [row["loss"] for row in expected]
    # The damaged one was written anew.
    assert find(run_copy).name == "step-00000012"


def test_where_all_are_damaged_the_run_begins_anew(
    tiny_config: MakeConfig, run_copy: Path, finished_run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for checkpoint in checkpoints(run_copy / "checkpoints"):
        (checkpoint / "certificate.json").unlink()
    train(tiny_config(), run_copy)
    assert sum("is damaged" in message for message in caplog.messages) == 3
    rows, expected = (read_metrics(run / "metrics.jsonl") for run in (run_copy, finished_run))
    assert [row["loss"] for row in rows] == [row["loss"] for row in expected]


def test_a_checkpoint_alone_is_enough_to_load_its_model(finished_run: Path, tmp_path: Path) -> None:
    alone = _newest(finished_run)
    trained = load_model(Path(shutil.copytree(alone, tmp_path / "elsewhere")))
    assert trained.config == load_model(finished_run).config
    assert trained.policy.name == "float32-reference-keep-scan"
    assert trained.special_ids == {"bos": None, "eos": 0}
    assert trained.tokenizer_file.read_text() == (alone / "tokenizer.json").read_text()
    assert all(np.isfinite(leaf).all() for leaf in named_leaves(trained.model).values())


def test_a_run_means_its_newest_whole_checkpoint(run_copy: Path) -> None:
    assert find(run_copy) == find(run_copy / "checkpoints") == _newest(run_copy)
    assert find(_newest(run_copy)) == _newest(run_copy)
    (_newest(run_copy) / "certificate.json").unlink()
    assert find(run_copy).name == "step-00000008"


def test_a_directory_without_checkpoints_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        find(tmp_path)


def test_a_damaged_checkpoint_asked_for_by_name_is_refused(run_copy: Path) -> None:
    _largest_file(_newest(run_copy), "model").write_bytes(b"")
    with pytest.raises(CheckpointError, match="step-00000012 is damaged"):
        load_model(_newest(run_copy))


FULL_DISK = """
import json, logging, resource, sys
from marin_train import loop
from marin_train.config_files import from_dict
from marin_train.configs import TrainConfig, to_dict
from marin_train.errors import MarinTrainError

config, out_dir, frees = from_dict(TrainConfig, json.loads(sys.argv[1])), sys.argv[2], sys.argv[3] == "freed"

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

class Disk:
    def start(self, record, *, step): pass
    def finish(self, summary): pass
    def log(self, row):
        if row["step"] == 2:
            limit(12_000)

class Freed(logging.Handler):
    def emit(self, record):
        limit(resource.RLIM_INFINITY)

if frees:
    logging.getLogger("marin_train").addHandler(Freed())
logging.basicConfig(level=logging.WARNING, format="%(message)s")
try:
    loop.train(config, out_dir, trackers=[Disk()])
except MarinTrainError as error:
    sys.exit(str(error))
"""


GOES_ON = "; the run goes on, and tries again with step "


@pytest.mark.parametrize(
    ("disk", "told", "saved"),
    [
        ("freed", {4: f"{GOES_ON}8"}, ["step-00000012", "step-00000008"]),
        ("full", {4: f"{GOES_ON}8", 8: f"{GOES_ON}12", 12: "; those before it are intact"}, []),
    ],
)
def test_a_full_disk_costs_a_checkpoint_and_one_line_and_the_run_only_where_it_is_the_last(
    disk: str, told: dict[int, str], saved: list[str], tiny_config: MakeConfig, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", FULL_DISK, json.dumps(to_dict(tiny_config())), str(tmp_path / "out"), disk]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stderr.splitlines()
    assert len(lines) == len(told), done.stderr
    for line, (step, end) in zip(lines, told.items(), strict=True):
        assert line.startswith(f"the checkpoint of step {step} could not be written to ")
        assert "File too large" in line
        assert line.endswith(end)
    assert done.returncode == (1 if disk == "full" else 0)
    assert [path.name for path in checkpoints(tmp_path / "out" / "checkpoints")] == saved
    # What the last one had under way may end after it was told, as the process does; the next start removes it.
    left = {path.name for path in (tmp_path / "out" / "checkpoints").glob(".saving-*")}
    assert left <= ({".saving-step-00000012"} if disk == "full" else set())


LATE = """
import asyncio, logging, sys
from pathlib import Path
import jax.numpy as jnp
from marin_train.checkpoints.arrays import save_leaves

logging.basicConfig(format="%(message)s")
save_leaves(Path(sys.argv[1]) / "part", {"leaf": jnp.zeros(2)})
names = {}
exec(compile("async def fail(why): raise ValueError(why)", sys.argv[2], "exec"), names)
loop = asyncio.new_event_loop()
task = loop.create_task(names["fail"](sys.argv[3]))
loop.run_until_complete(asyncio.wait([task]))
loop.close()
del task
"""


@pytest.mark.parametrize(
    ("file", "why", "told"),
    [
        ("/lib/orbax/serialization.py", "nobody heard of it", False),
        ("/home/own.py", "nobody heard of it", True),
        ("/home/own.py", 'Error writing "a/0" in OCDBT database: nobody heard of it', False),
    ],
)
def test_what_fails_in_orbax_beside_a_failure_that_was_told_is_not_printed_and_all_else_is(
    file: str, why: str, told: bool, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", LATE, str(tmp_path), file, why]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ("nobody heard of it" in done.stderr) == told


def test_a_checkpoint_of_another_format_is_refused_naming_it(tiny_config: MakeConfig, run_copy: Path) -> None:
    earlier = {
        "step": 12,
        "permanent": True,
        "leaves": {"model": "0" * 64},
        "stores": {},
        "next_batch": "",
        "files": {},
    }
    (_newest(run_copy) / "certificate.json").write_text(json.dumps(earlier))
    with pytest.raises(CheckpointError, match="format 1, this version of marin-train reads format 2"):
        train(tiny_config(), run_copy)


def test_a_directory_of_something_else_is_refused_and_left_as_it_is(tiny_config: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(CheckpointError, match=r"holds no run \(run.json is absent, thesis.tex is there\)"):
        train(tiny_config(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@settings(max_examples=40)
@given(data=st.data())
def test_a_byte_changed_or_a_file_cut_anywhere_is_noticed_or_harmless(data: st.DataObject, loaded: Loaded) -> None:
    path, expected = loaded
    file = data.draw(st.sampled_from(sorted(f for f in path.rglob("*") if f.is_file())), label="file")
    content = file.read_bytes()
    at = data.draw(st.integers(0, len(content) - 1), label="at")
    changed = content[:at]
    if not data.draw(st.booleans(), label="cut"):
        changed += bytes([content[at] ^ data.draw(st.integers(1, 255), label="flipped")]) + content[at + 1 :]
    file.write_bytes(changed)
    try:
        with contextlib.suppress(CheckpointError):
            assert _leaves(path) == expected
    finally:
        file.write_bytes(content)


def _leaves(path: Path) -> dict[str, bytes]:
    return {name: np.asarray(leaf).tobytes() for name, leaf in named_leaves(load_model(path).model).items()}


@pytest.fixture(scope="module")
def loaded(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """A checkpoint to damage, and the bytes of its model's leaves."""
    path = Path(shutil.copytree(_newest(finished_run), tmp_path_factory.mktemp("damaged") / "checkpoint"))
    return path, _leaves(path)


def test_going_on_under_another_policy_is_refused(tiny_config: MakeConfig, run_copy: Path) -> None:
    record = json.loads((run_copy / "run.json").read_text())
    record["policy"]["operands"] = "bfloat16"
    (run_copy / "run.json").write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match=r"computed with the policy .*float32.*record says .*bfloat16"):
        train(tiny_config(), run_copy)


def test_a_removal_that_is_cut_short_leaves_nothing_that_stays(
    tiny_config: MakeConfig, run_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = run_copy / "checkpoints"
    for path in checkpoints(directory):
        write_certificate(path, dataclasses.replace(read_certificate(path), permanent=False))
    with monkeypatch.context() as killed:
        killed.setattr(shutil, "rmtree", lambda path: _largest_file(path, "model").unlink())
        retire(directory)
    assert [path.name for path in checkpoints(directory)] == ["step-00000012", "step-00000008"]
    assert list(directory.glob(".saving-*"))
    train(tiny_config(), run_copy)
    assert not list(directory.glob(".saving-*"))


def test_a_process_that_lost_its_directory_commits_nothing(tiny_config: MakeConfig, tmp_path: Path) -> None:
    class TakeOver:
        def start(self, record: object, *, step: int) -> None:
            (tmp_path / "out" / "checkpoints" / "writer").write_text("another process")

        def log(self, row: object) -> None: ...

        def finish(self, summary: object) -> None: ...

    with pytest.raises(MarinTrainError, match="another process has taken over"):
        train(tiny_config(), tmp_path / "out", trackers=[TakeOver()])
    assert checkpoints(tmp_path / "out" / "checkpoints") == []
