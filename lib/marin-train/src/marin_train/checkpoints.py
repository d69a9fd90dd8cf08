"""Checkpoints: a directory that is whole or does not exist, with a certificate of the run it continues.

    step-00000120/
      model/  optimizer/                      Orbax, one array a leaf, by the leaf's path
      config.json  policy.json  tokenizer.json   so that the directory alone can be evaluated and sampled
      certificate.json                           written last

Invariants kept here:

- *Atomic.* Everything is written under a temporary name, flushed to disk, and renamed. A checkpoint whose certificate
  (`marin_train.certificates`) does not hold is passed over, with a warning, for the one before it.
- *The same run.* A resume that would not continue exactly the run that was saved is refused.
- *One writer.* Each start claims the directory; a process that lost the claim may not commit.

The step is blocked only while the state is copied to the host. The copy is ours, since the train step donates its
buffers and a writer that still read them would save the future; one background thread does the rest.
"""

import json
import logging
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from marin_train.certificates import (
    CERTIFICATE,
    Certificate,
    DamagedError,
    RunFacts,
    check_data,
    check_same_policy,
    check_same_run,
    digest_leaves,
    read_certificate,
)
from marin_train.config_files import from_dict
from marin_train.configs import MeshConfig, TrainConfig, to_dict
from marin_train.errors import CheckpointError, MarinTrainError

if TYPE_CHECKING:
    from marin_train.policy import Policy
    from marin_train.train_step import TrainState

logger = logging.getLogger(__name__)

_NAME = re.compile(r"step-(\d{8,})")
_TEMPORARY = ".saving-"
_KEEP_LAST = 2


class CheckpointWriter:
    """Saves a run's state in the background; a context manager that waits for the last save when left.

    Args:
        directory: where checkpoints go; created, and claimed for this process.
        facts: the run's identity.
    """

    def __init__(self, directory: Path, facts: RunFacts) -> None:
        self._directory, self._facts, self._claim = directory, facts, uuid.uuid4().hex
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "writer").write_text(self._claim)
        for leftover in directory.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._saving: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True)
        if error is None:
            self.wait()

    def save(self, state: "TrainState", *, step: int, permanent: bool = False) -> None:
        """Copies the state to the host, and has it written; first waits for the save before.

        Args:
            state: model, optimizer state and step.
            step: steps completed.
            permanent: kept for good, not only while it is one of the last two.

        Raises:
            MarinTrainError: the save before could not be written, or another process claimed the directory.
        """
        self.wait()
        leaves = {name: np.array(leaf, copy=True) for name, leaf in named_leaves(state).items()}
        self._saving = self._pool.submit(self._write, leaves, step, permanent)

    @property
    def busy(self) -> bool:
        """Whether a save is still being written."""
        return self._saving is not None and not self._saving.done()

    def path(self, step: int) -> Path:
        """Where the checkpoint of that step lies, or will."""
        return self._directory / _name(step)

    def wait(self) -> None:
        """Blocks until the last save is committed, and raises what it raised."""
        if self._saving is not None:
            saving, self._saving = self._saving, None
            saving.result()

    def _write(self, leaves: dict[str, np.ndarray], step: int, permanent: bool) -> None:
        temporary = self._directory / f"{_TEMPORARY}{_name(step)}"
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            self._write_files(temporary, leaves, step=step, permanent=permanent)
            self._commit(temporary, self._directory / _name(step))
        except MarinTrainError:
            raise
        except Exception as error:  # what a full disk makes of the layers below is no OSError
            raise MarinTrainError(
                f"the checkpoint of step {step} could not be written to {self._directory}: {_first_line(error)}; "
                f"the one before it is intact"
            ) from error
        _retire(self._directory)

    def _write_files(self, temporary: Path, leaves: dict[str, np.ndarray], *, step: int, permanent: bool) -> None:
        temporary.mkdir()
        digests = {}
        for part, values in _split(leaves).items():
            _save_leaves(temporary / part, values)
            digests[part] = digest_leaves(values)
        _write_json(temporary / "config.json", to_dict(self._facts.config))
        _write_json(temporary / "policy.json", dict(self._facts.policy))
        shutil.copyfile(self._facts.tokenizer_file, temporary / "tokenizer.json")
        certificate = Certificate(
            step=step,
            permanent=permanent,
            leaves=digests,
            stores=dict(self._facts.stores),
            next_batch=self._facts.batch_digest(step),
            special_ids=dict(self._facts.special_ids),
            files={str(file.relative_to(temporary)): file.stat().st_size for file in _files(temporary)},
        )
        _write_json(temporary / CERTIFICATE, asdict(certificate))

    def _commit(self, temporary: Path, final: Path) -> None:
        for path in (*_files(temporary), *(p for p in temporary.rglob("*") if p.is_dir()), temporary):
            _flush(path)
        if (self._directory / "writer").read_text() != self._claim:
            raise CheckpointError(
                f"another process has taken over {self._directory}; this one stops without saving step {_step(final)}"
            )
        if final.exists():  # only one that was found damaged: a whole one would have been resumed from
            shutil.rmtree(final)
        temporary.rename(final)
        _flush(self._directory)


def restore_latest(directory: Path, template: "TrainState", *, facts: RunFacts) -> tuple["TrainState", int] | None:
    """Restores the newest whole checkpoint, once its certificate proves that it is this run's.

    Args:
        directory: the run's checkpoints.
        template: the shapes, types and places of the run's state; a restore never holds two states.
        facts: what the checkpoint must agree with.

    Returns:
        The state and the number of completed steps, or None where there is no whole checkpoint.

    Raises:
        CheckpointError: it belongs to another run, or the data are no longer those it was trained on.
    """
    for path in checkpoints(directory):
        try:
            certificate = read_certificate(path)
            leaves = _load_part(path, "model", certificate) | _load_part(path, "optimizer", certificate)
        except DamagedError as error:
            logger.warning("checkpoint %s is damaged (%s); using the one before it", path, error)
            continue
        check_same_run(_read_json(path / "config.json"), facts.config, where=path)
        check_same_policy(_read_json(path / "policy.json"), facts.policy, where=path)
        check_data(certificate, facts, where=path)
        return _fill(template, leaves, where=path), certificate.step
    return None


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A checkpoint's model with all that is needed to run it.

    Attributes:
        path: the checkpoint's directory.
        model: the parameters, on the first device.
        config: the run's configuration.
        policy: the run's policy.
        special_ids: the tokenizer's ``bos`` and ``eos``.
    """

    path: Path
    model: Any
    config: TrainConfig
    policy: "Policy"
    special_ids: dict[str, int | None]

    @property
    def tokenizer_file(self) -> Path:
        return self.path / "tokenizer.json"


def load_model(path: str | Path) -> TrainedModel:
    """The model of a checkpoint, without its optimizer.

    Args:
        path: a checkpoint's directory, or a run's, whose newest whole checkpoint is taken.

    Raises:
        CheckpointError: there is no checkpoint, it is damaged, or it has other leaves.
    """
    from marin_train.mesh import make_mesh
    from marin_train.policy import Policy
    from marin_train.train_step import state_template

    found = find(path)
    try:
        certificate = read_certificate(found)
        leaves = _load_part(found, "model", certificate)
    except DamagedError as error:
        raise CheckpointError(f"{found} is damaged: {error}; use another checkpoint of the run") from None
    config = from_dict(TrainConfig, _read_json(found / "config.json"))
    template = state_template(config, mesh=make_mesh(MeshConfig(data=1)))
    return TrainedModel(
        path=found,
        model=_fill(template, leaves, where=found, part="model").model,
        config=config,
        policy=Policy.from_dict(_read_json(found / "policy.json")),
        special_ids=certificate.special_ids,
    )


def find(path: str | Path) -> Path:
    """The checkpoint that a path means: itself, or the newest whole one of a run's directory.

    Raises:
        CheckpointError: there is none.
    """
    path = Path(path)
    if (path / CERTIFICATE).is_file():
        return path
    for candidate in (*checkpoints(path / "checkpoints"), *checkpoints(path)):
        try:
            read_certificate(candidate)
        except DamagedError as error:
            logger.warning("checkpoint %s is damaged (%s); using the one before it", candidate, error)
        else:
            return candidate
    raise CheckpointError(f"{path} holds no checkpoint; give a run's directory or one of its checkpoints/step-*")


def checkpoints(directory: Path) -> list[Path]:
    """The committed checkpoints of a directory, newest first, damaged ones included."""
    found = [p for p in directory.iterdir() if _NAME.fullmatch(p.name)] if directory.is_dir() else []
    return sorted(found, key=_step, reverse=True)


def named_leaves(state: Any) -> dict[str, Any]:
    """The arrays of a pytree by their paths: ``model.blocks.query`` and the like."""
    import equinox as eqx
    import jax

    leaves, _ = jax.tree_util.tree_flatten_with_path(eqx.filter(state, _is_leaf))
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def _is_leaf(leaf: Any) -> bool:
    import equinox as eqx
    import jax

    return eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


def _fill(template: Any, leaves: Mapping[str, np.ndarray], *, where: Path, part: str | None = None) -> Any:
    """The template with the leaves of those names in place of its own, on its devices."""
    import jax

    def place(path: Any, leaf: Any) -> Any:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if not _is_leaf(leaf) or (part is not None and _part(name) != part):
            return leaf
        value = leaves.get(name)
        if value is None or value.shape != leaf.shape or value.dtype != leaf.dtype:
            found = "absent" if value is None else f"{value.dtype}{list(value.shape)}"
            raise CheckpointError(
                f"{where}: leaf {name} is {found}, the model needs {leaf.dtype}{list(leaf.shape)}; it was written by "
                f"another version of the model's code"
            )
        return jax.device_put(value, getattr(leaf, "sharding", None))

    return jax.tree_util.tree_map_with_path(place, template)


def _split(leaves: Mapping[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    parts: dict[str, dict[str, np.ndarray]] = {"model": {}, "optimizer": {}}
    for name, leaf in leaves.items():
        parts[_part(name)][name] = leaf
    return parts


def _part(name: str) -> str:
    return "model" if name.startswith("model.") else "optimizer"


def _save_leaves(path: Path, leaves: Mapping[str, np.ndarray]) -> None:
    import orbax.checkpoint as ocp

    # Mantissas do not compress, and the attempt would take cores from the training step.
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_compression=False)) as checkpointer:
        checkpointer.save(path.absolute(), args=ocp.args.PyTreeSave(dict(leaves)))


def _load_part(path: Path, part: str, certificate: Certificate) -> dict[str, np.ndarray]:
    import orbax.checkpoint as ocp

    try:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            leaves = checkpointer.restore((path / part).absolute())
    except Exception as error:  # whatever a damaged file makes of the layers below, the answer is the same
        raise DamagedError(f"{part}: {_first_line(error)}") from None
    if digest_leaves(leaves) != certificate.leaves.get(part):
        raise DamagedError(f"{part}: its leaves do not have the digest they were saved with")
    return leaves


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _retire(directory: Path) -> None:
    """Removes all but the last checkpoints and the permanent ones."""
    for path in checkpoints(directory)[_KEEP_LAST:]:
        try:
            permanent = read_certificate(path).permanent
        except DamagedError:
            permanent = False
        if not permanent:
            shutil.rmtree(path, ignore_errors=True)


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _files(directory: Path) -> Iterator[Path]:
    return (p for p in sorted(directory.rglob("*")) if p.is_file())


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1, sort_keys=True) + "\n")
