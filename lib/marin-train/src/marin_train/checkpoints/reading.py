"""Checkpoints read back: the newest whole one of a run for its next step, or a model alone to be run."""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marin_train.certificates import (
    CERTIFICATE,
    Certificate,
    RunFacts,
    check_data,
    check_same_policy,
    check_same_run,
    read_certificate,
)
from marin_train.checkpoints import arrays
from marin_train.checkpoints.retention import checkpoints
from marin_train.config_files import from_dict
from marin_train.configs import TrainConfig
from marin_train.errors import CheckpointError, DamagedError

if TYPE_CHECKING:
    from marin_train.policy import Policy
    from marin_train.train_step import TrainState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A checkpoint's model with all that is needed to run it.

    Attributes:
        path: the checkpoint's directory.
        model: the parameters, on the first device; their moving average where the run kept one.
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
        """The tokenizer that it was trained with."""
        return self.path / "tokenizer.json"


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
            check_same_run(_read_json(path / "config.json"), facts.config, where=path)
            check_same_policy(_read_json(path / "policy.json"), facts.policy, where=path)
            check_data(certificate, facts, where=path)
            leaves: dict[str, Any] = {}
            for part, wanted in arrays.by_part(arrays.named_leaves(template)).items():
                leaves |= _load_part(path, part, wanted, certificate)
        except DamagedError as error:
            logger.warning("checkpoint %s is damaged (%s); using the one before it", path, error)
            continue
        return arrays.replace_leaves(template, leaves), certificate.step
    return None


def load_model(path: str | Path) -> TrainedModel:
    """The model of a checkpoint, without its optimizer.

    Args:
        path: a checkpoint's directory, or a run's, whose newest whole checkpoint is taken.

    Raises:
        CheckpointError: there is no checkpoint, it is damaged, or it has other leaves.
    """
    from marin_train.mesh import one_device
    from marin_train.policy import Policy
    from marin_train.train_step import state_template

    found = find(path)
    try:
        certificate = read_certificate(found)
        config = from_dict(TrainConfig, _read_json(found / "config.json"))
        template = state_template(config, mesh=one_device()).model
        # What is run is the moving average, where one was kept; it has the model's leaves.
        part = "ema" if "ema" in certificate.leaves else "model"
        wanted = {f"{part}.{name}": leaf for name, leaf in arrays.named_leaves(template).items()}
        leaves = _load_part(found, part, wanted, certificate)
        policy = Policy.from_dict(_read_json(found / "policy.json"))
    except DamagedError as error:
        raise CheckpointError(f"{found} is damaged: {error}; use another checkpoint of the run") from None
    return TrainedModel(
        path=found,
        model=arrays.replace_leaves(template, leaves, prefix=f"{part}."),
        config=config,
        policy=policy,
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


def _load_part(path: Path, part: str, wanted: dict[str, Any], certificate: Certificate) -> dict[str, Any]:
    recorded = certificate.leaves.get(part, {})
    arrays.check_shapes(wanted, recorded, where=path)
    leaves = arrays.load_leaves(path / part, wanted)
    arrays.check_leaves(leaves, recorded, part=part)
    return leaves


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DamagedError(f"{path.name}: {error}") from None
