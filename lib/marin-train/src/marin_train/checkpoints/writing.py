"""Checkpoints written: in the background, whole or not at all, by the one process that holds the directory's claim.

The order is what makes it safe: arrays, then the files beside them, then the certificate that names all of these, all
flushed to disk, and last the rename. A save that fails (a full disk) costs its checkpoint and no more: it is told in
one line, the run goes on, and the next save tries again; only the run's last save must not fail.
"""

import json
import logging
import shutil
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from marin_train.certificates import Certificate, Leaf, RunFacts, sha256_of_file, write_certificate
from marin_train.checkpoints.arrays import by_part, first_line, named_leaves, save_leaves, shares
from marin_train.checkpoints.retention import TEMPORARY, name_of, retire
from marin_train.checkpoints.snapshots import Snapshots
from marin_train.configs import to_dict
from marin_train.digests import MODULUS
from marin_train.distributed import is_first
from marin_train.durability import flush, to_json
from marin_train.errors import CheckpointError, MarinTrainError

if TYPE_CHECKING:
    import jax

    from marin_train.train_step import TrainState

logger = logging.getLogger(__name__)

_SHARES = "shares-{}.json"


class CheckpointWriter:
    """Saves a run's state in the background; a context manager that waits for the last save when left.

    In a run of several processes each of them holds one, and calls `save` after the same steps.

    Args:
        directory: where checkpoints go; created, and claimed for this process.
        facts: the run's identity.
        like: the shapes, types and places of the states to come.
    """

    def __init__(self, directory: Path, facts: RunFacts, *, like: "TrainState") -> None:
        self._directory, self._facts, self._claim = directory, facts, uuid.uuid4().hex
        self._snapshots = Snapshots()
        if is_first():
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "writer").write_text(self._claim)
            self._remove_leftovers()
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        # In the background, while the training step is compiled.
        self._ready = self._pool.submit(self._snapshots.prepare, named_leaves(like))
        self._saving: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True)
        if is_first() and self._is_claimed():  # else they are another's, which is writing them
            self._remove_leftovers()
        if error is None:
            self.wait()

    def save(self, state: "TrainState", *, step: int, permanent: bool = False) -> None:
        """Copies the state, and has the copy written; first waits for the save before.

        A save before that failed is told in the log: the run goes on, and this one tries again.

        Args:
            state: model, optimizer state and step.
            step: steps completed.
            permanent: kept for good, not only while it is one of the last two.

        Raises:
            CheckpointError: another process claimed the directory.
        """
        try:
            self.wait()
        except CheckpointError:
            raise
        except MarinTrainError as error:
            logger.error("%s; the run goes on, and tries again with step %d", error, step)
        self._ready.result()
        snapshot = self._snapshots.take(named_leaves(state))
        self._saving = self._pool.submit(self._write, snapshot, step, permanent)

    @property
    def busy(self) -> bool:
        """Whether a save is still being written."""
        return self._saving is not None and not self._saving.done()

    def path(self, step: int) -> Path:
        """Where the checkpoint of that step lies, or will."""
        return self._directory / name_of(step)

    def wait(self) -> None:
        """Blocks until the last save is committed.

        Raises:
            MarinTrainError: it could not be written.
            CheckpointError: another process claimed the directory.
        """
        if self._saving is not None:
            saving, self._saving = self._saving, None
            saving.result()

    def check_claim(self) -> None:
        """Returns where this process may write to the run's directory.

        Raises:
            CheckpointError: another process claimed it.
        """
        if is_first() and not self._is_claimed():
            raise CheckpointError(
                f"another process has taken over {self._directory}; this one stops and saves nothing more"
            )

    def _is_claimed(self) -> bool:
        return (self._directory / "writer").read_text() == self._claim

    def _write(self, leaves: "dict[str, jax.Array]", step: int, permanent: bool) -> None:
        temporary = self._directory / f"{TEMPORARY}{name_of(step)}"
        try:
            self.check_claim()
            if is_first():
                self._remove_leftovers()
                temporary.mkdir()
            _meet(f"began {step}")
            self._write_arrays(temporary, leaves)
            _meet(f"wrote {step}")
            if is_first():
                self._write_certificate(temporary, leaves, step=step, permanent=permanent)
                self._commit(temporary, self.path(step))
                retire(self._directory)
            _meet(f"committed {step}")
        except MarinTrainError:
            raise
        except Exception as error:  # what a full disk makes of the layers below is no OSError
            shutil.rmtree(temporary, ignore_errors=True)  # its space may be what the next one lacks
            raise MarinTrainError(
                f"the checkpoint of step {step} could not be written to {self._directory}: {first_line(error)}; "
                f"those before it are intact"
            ) from None

    def _remove_leftovers(self) -> None:
        """What saves left that failed or were cut short; of one that failed, writes that were under way may come back
        after it was told."""
        for leftover in self._directory.glob(f"{TEMPORARY}*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def _write_arrays(self, temporary: Path, leaves: "dict[str, jax.Array]") -> None:
        import jax

        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="digests") as beside:
            digests = beside.submit(shares, leaves)
            for part, values in by_part(leaves).items():
                save_leaves(temporary / part, values)
            (temporary / _SHARES.format(jax.process_index())).write_text(to_json(digests.result()))

    def _write_certificate(
        self, temporary: Path, leaves: "dict[str, jax.Array]", *, step: int, permanent: bool
    ) -> None:
        (temporary / "config.json").write_text(to_json(to_dict(self._facts.config)))
        (temporary / "policy.json").write_text(to_json(self._facts.policy))
        shutil.copyfile(self._facts.tokenizer_file, temporary / "tokenizer.json")
        digests = _add_shares(temporary)
        files = {str(file.relative_to(temporary)): file for file in _files(temporary)}
        certificate = Certificate(
            step=step,
            permanent=permanent,
            leaves=by_part(
                {
                    name: Leaf(dtype=str(leaf.dtype), shape=leaf.shape, digest=f"{digests[name]:016x}")
                    for name, leaf in leaves.items()
                }
            ),
            stores=dict(self._facts.stores),
            next_batch=self._facts.batch_digest(step),
            special_ids=dict(self._facts.special_ids),
            files={name: file.stat().st_size for name, file in files.items()},
            sha256={name: sha256_of_file(file) for name, file in files.items() if "/" not in name},
        )
        write_certificate(temporary, certificate)

    def _commit(self, temporary: Path, final: Path) -> None:
        for path in (*_files(temporary), *(p for p in temporary.rglob("*") if p.is_dir()), temporary):
            flush(path)
        self.check_claim()
        if final.exists():  # only one that was found damaged: a whole one would have been resumed from
            shutil.rmtree(final)
        temporary.rename(final)
        flush(self._directory)


def _add_shares(temporary: Path) -> dict[str, int]:
    """The digests of all leaves, from what the processes left of theirs; these files are removed."""
    totals: dict[str, int] = {}
    for file in sorted(temporary.glob(_SHARES.format("*"))):
        for name, share in json.loads(file.read_text()).items():
            totals[name] = (totals.get(name, 0) + share) % MODULUS
        file.unlink()
    return totals


def _meet(what: str) -> None:
    """Waits for the other processes, if there are any, through the coordinator and not the devices."""
    import jax
    import orbax.checkpoint as ocp

    if jax.process_count() > 1:
        ocp.multihost.sync_global_processes(f"marin checkpoint {what}", processes=set(range(jax.process_count())))


def _files(directory: Path) -> Iterator[Path]:
    return (p for p in sorted(directory.rglob("*")) if p.is_file())
