"""The resume certificate: what a checkpoint claims of itself and of its run, and the checks of these claims.

Three questions are answered before the first resumed step, in the order of what they cost: are the files all there in
their sizes, would the run go on as if it had never stopped (same configuration, same policy, same token stores, same
next batch), and are the leaves the ones that were saved (`marin_train.digests`). The first and the last are about
damage, and an older checkpoint answers them better; the second is about the user's intent, and is refused with the
names of what differs. The certificate bears its own sha256, and those of the small files beside it, so that damage is
never taken for intent.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from marin_train.config_files import from_dict
from marin_train.configs import TrainConfig, to_dict
from marin_train.durability import to_json
from marin_train.errors import CheckpointError, ConfigError, DamagedError

CERTIFICATE = "certificate.json"
FORMAT = 2
"""Of a checkpoint's directory. Format 1 had one sha256 over all leaves, which needs them in one place."""

CADENCE = re.compile(
    r"(checkpoint|eval|watch)_steps|checkpoint_seconds|log_every|accumulation|mesh\..*|data\.components\.\d+\.path"
)
"""Fields that may change between a save and a resume: they decide when and where, not what, beyond rounding."""


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """What is said of one saved array.

    Attributes:
        dtype: as numpy names it.
        shape: of the whole array, wherever its shards lie.
        digest: 16 hex digits, of `marin_train.digests`.
    """

    dtype: str
    shape: tuple[int, ...]
    digest: str


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What a checkpoint claims, checked before the first resumed step.

    Attributes:
        step: steps completed.
        permanent: whether retention keeps it for good.
        leaves: part (``model``, ``optimizer``, ``ema``) -> leaf by its path -> what was saved.
        stores: mixture component -> sha256 of its token store's manifest.
        next_batch: sha256 of the batch the next step trains on.
        special_ids: the tokenizer's ``bos`` and ``eos``, which its file does not tell apart.
        files: every file of the checkpoint but this one -> size in bytes.
        sha256: every file beside the arrays -> its sha256.
    """

    step: int
    permanent: bool
    leaves: dict[str, dict[str, Leaf]]
    stores: dict[str, str]
    next_batch: str
    special_ids: dict[str, int | None]
    files: dict[str, int]
    sha256: dict[str, str]


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


def write_certificate(path: Path, certificate: Certificate) -> None:
    """Writes a checkpoint's certificate, with its own sha256."""
    body = {"format": FORMAT, "certificate": asdict(certificate)}
    (path / CERTIFICATE).write_text(to_json(body | {"sha256": _sha256_of(body)}))


def read_certificate(path: Path) -> Certificate:
    """A checkpoint's certificate, once every file has the size, and every small one the content, that it says.

    Raises:
        DamagedError: what is there is not what was written.
        CheckpointError: it was written by a version of this program that wrote another format.
    """
    try:
        body = json.loads((path / CERTIFICATE).read_text())
        if "next_batch" in body:
            raise _other_format(path, 1)
        claimed = body.pop("sha256")
        if claimed != _sha256_of(body):
            raise DamagedError(f"{CERTIFICATE}: it does not have its own sha256")
        if body["format"] != FORMAT:
            raise _other_format(path, body["format"])
        values = body["certificate"]
        values["leaves"] = {
            part: {name: Leaf(**leaf | {"shape": tuple(leaf["shape"])}) for name, leaf in leaves.items()}
            for part, leaves in values["leaves"].items()
        }
        certificate = Certificate(**values)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedError(f"{CERTIFICATE}: {error}") from None
    _check_files(path, certificate)
    return certificate


def sha256_of_file(path: Path) -> str:
    """A small file's sha256, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _check_files(path: Path, certificate: Certificate) -> None:
    for name, size in certificate.files.items():
        file = path / name
        found = file.stat().st_size if file.is_file() else "absent"
        if found != size:
            raise DamagedError(f"{name}: size {found}, expected {size}")
    for name, digest in certificate.sha256.items():
        if sha256_of_file(path / name) != digest:
            raise DamagedError(f"{name}: it does not have the sha256 it was saved with")


def _other_format(path: Path, number: Any) -> CheckpointError:
    return CheckpointError(
        f"{path} has checkpoint format {number}, this version of marin-train reads format {FORMAT}; go on with the "
        f"version that wrote it, or choose another output directory"
    )


def _sha256_of(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def check_same_run(recorded: Mapping[str, Any], config: TrainConfig, *, where: Path) -> None:
    """Refuses a configuration whose result would differ from the recorded one's.

    Args:
        recorded: that of the run that was, as plain values.
        config: the one to go on with.
        where: the run's place, for the message.

    Raises:
        CheckpointError: naming every differing field with both values.
    """
    old, new = dict(flatten(_completed(recorded))), dict(flatten(to_dict(config)))
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


def _completed(recorded: Mapping[str, Any]) -> Mapping[str, Any]:
    """A recorded configuration with the fields that it had no notion of, at the values that mean what was done then."""
    try:
        return to_dict(from_dict(TrainConfig, dict(recorded)))
    except ConfigError:
        return recorded


def check_same_policy(recorded: Mapping[str, Any], policy: Mapping[str, Any], *, where: Path) -> None:
    """Refuses to go on with another rounding than the run began with.

    Args:
        recorded: the checkpoint's policy, as plain values.
        policy: the run's.
        where: the checkpoint's place, for the message.

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

    Args:
        certificate: the checkpoint's.
        facts: of the run that goes on.
        where: the checkpoint's place, for the message.

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


def flatten(values: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings and lists with their dotted names."""
    if isinstance(values, Mapping | list | tuple):
        items = values.items() if isinstance(values, Mapping) else enumerate(values)
        for key, value in items:
            yield from flatten(value, f"{name}.{key}" if name else str(key))
    else:
        yield name, values
