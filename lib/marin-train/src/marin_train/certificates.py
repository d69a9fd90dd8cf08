"""The resume certificate: what a checkpoint claims of itself and of its run, and the checks of these claims.

Three questions are answered before the first resumed step, in the order of what they cost: are the files all there in
their sizes, are the leaves the ones that were saved (sha256), and would the run go on as if it had never stopped (same
configuration, same policy, same token stores, same next batch). The first two are about damage, and an older
checkpoint answers them better; the third is about the user's intent, and is refused with the names of what differs.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from marin_train.configs import TrainConfig, to_dict
from marin_train.errors import CheckpointError

CERTIFICATE = "certificate.json"

CADENCE = re.compile(r"checkpoint_seconds|checkpoint_steps|log_every|mesh\..*|data\.components\.\d+\.path")
"""Fields that may change between a save and a resume: they decide when and where, not what."""


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What a checkpoint claims, checked before the first resumed step.

    Attributes:
        step: steps completed.
        permanent: whether retention keeps it for good.
        leaves: part (``model``, ``optimizer``) -> sha256 over its leaves' names, types, shapes and bytes.
        stores: mixture component -> sha256 of its token store's manifest.
        next_batch: sha256 of the batch the next step trains on.
        special_ids: the tokenizer's ``bos`` and ``eos``, which its file does not tell apart.
        files: every file of the checkpoint but this one -> size in bytes.
    """

    step: int
    permanent: bool
    leaves: dict[str, str]
    stores: dict[str, str]
    next_batch: str
    special_ids: dict[str, int | None]
    files: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What binds a checkpoint to its run.

    Attributes:
        config: the run's configuration.
        policy: the recorded policy, as plain values.
        tokenizer_file: copied into every checkpoint.
        special_ids: ``bos`` and ``eos`` of that tokenizer.
        stores: mixture component -> sha256 of its token store's manifest.
        batch_digest: step (from 0) -> sha256 of its batch.
    """

    config: TrainConfig
    policy: Mapping[str, Any]
    tokenizer_file: Path
    special_ids: Mapping[str, int | None]
    stores: Mapping[str, str]
    batch_digest: Callable[[int], str]


class DamagedError(Exception):
    """This checkpoint cannot be used; the reason is the message."""


def read_certificate(path: Path) -> Certificate:
    """A checkpoint's certificate, once every file has the size it says."""
    try:
        certificate = Certificate(**json.loads((path / CERTIFICATE).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise DamagedError(f"{CERTIFICATE}: {error}") from None
    for name, size in certificate.files.items():
        file = path / name
        found = file.stat().st_size if file.is_file() else "absent"
        if found != size:
            raise DamagedError(f"{name}: size {found}, expected {size}")
    return certificate


def check_same_run(recorded: Mapping[str, Any], config: TrainConfig, *, where: Path) -> None:
    """Refuses a configuration whose result would differ from the recorded one's.

    Raises:
        CheckpointError: naming every differing field with both values.
    """
    old, new = dict(flatten(recorded)), dict(flatten(to_dict(config)))
    differing = [
        f"{name}: {old.get(name, 'absent')} there, {new.get(name, 'absent')} asked for"
        for name in sorted(old.keys() | new.keys())
        if not CADENCE.fullmatch(name) and old.get(name, "absent") != new.get(name, "absent")
    ]
    if differing:
        raise CheckpointError(
            f"{where} belongs to a run with another configuration; choose another output directory. "
            + "; ".join(differing)
        )


def check_same_policy(recorded: Mapping[str, Any], policy: Mapping[str, Any], *, where: Path) -> None:
    """Refuses to go on with another rounding than the run began with.

    Raises:
        CheckpointError: with both policies.
    """
    if recorded != policy:
        raise CheckpointError(
            f"{where} was computed with the policy {dict(recorded)}, the run's record says {dict(policy)}; restore the "
            f"record (run.json), or choose another output directory"
        )


def check_data(certificate: Certificate, facts: RunFacts, *, where: Path) -> None:
    """Refuses data other than those the run was to go on with.

    Raises:
        CheckpointError: naming the components whose stores have changed.
    """
    changed = sorted(n for n, digest in facts.stores.items() if certificate.stores.get(n) != digest)
    if changed:
        raise CheckpointError(
            f"{where} was trained on other data: the token stores of {', '.join(changed)} have changed since; "
            f"restore them, or choose another output directory"
        )
    if facts.batch_digest(certificate.step) != certificate.next_batch:
        raise CheckpointError(
            f"{where}: the batch after step {certificate.step} is not the one that was to come next, though the "
            f"manifests agree; a token store's files were changed, or the mixture's code was"
        )


def digest_leaves(leaves: Mapping[str, np.ndarray]) -> str:
    """sha256 over names, types, shapes and bytes, in the order of the names."""
    hasher = hashlib.sha256()
    for name in sorted(leaves):
        leaf = np.ascontiguousarray(leaves[name])
        hasher.update(f"{name} {leaf.dtype} {leaf.shape}\n".encode())
        hasher.update(leaf.reshape(-1).view(np.uint8))
    return hasher.hexdigest()


def flatten(values: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings and lists with their dotted names."""
    if isinstance(values, Mapping | list | tuple):
        items = values.items() if isinstance(values, Mapping) else enumerate(values)
        for key, value in items:
            yield from flatten(value, f"{name}.{key}" if name else str(key))
    else:
        yield name, values
