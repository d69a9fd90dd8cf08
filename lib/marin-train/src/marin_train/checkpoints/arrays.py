"""Arrays of a state by name, on disk and back: all that is known here of Orbax.

A part of a state (its model, its optimizer) is a directory in which every array is stored once, whatever the mesh: each
process writes the shards that it holds, and reads those that the target's mesh gives it, straight into their places.
Leaves are read few at a time, so that what is on its way from the disk stays small beside the state.
"""

import logging
import os
import sys
import traceback
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from marin_train.certificates import DamagedError, Leaf
from marin_train.checkpoints.memory import blocks_given_back
from marin_train.digests import MODULUS, add_up
from marin_train.errors import CheckpointError

if TYPE_CHECKING:
    import jax
    import orbax.checkpoint as ocp

_CHUNK_BYTES = 2**23
"""An array's unit on disk, read and decoded as a whole."""
_READ_BYTES = 2**25
"""Leaves of so many bytes are read together."""
_ORBAX = f"{os.sep}orbax{os.sep}"
"""Part of the path of each of its files."""
_STORES = ("orbax-checkpoint", "OCDBT")
"""What the errors name that come from the store below it, in whose futures no code is named."""


def named_leaves(state: Any) -> dict[str, Any]:
    """The arrays of a pytree by their paths: ``model.blocks.query`` and the like."""
    import equinox as eqx
    import jax

    leaves, _ = jax.tree_util.tree_flatten_with_path(eqx.filter(state, _is_leaf))
    return {_name(path): leaf for path, leaf in leaves}


def replace_leaves(template: Any, leaves: Mapping[str, Any], *, prefix: str = "") -> Any:
    """The template with the leaves of those names, less ``prefix``, in place of its own."""
    import jax

    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaves[prefix + _name(path)] if _is_leaf(leaf) else leaf, template
    )


def part_of(name: str) -> str:
    """The part in which a leaf is stored: ``model``, ``ema``, or ``optimizer`` for all that only training needs."""
    first = name.partition(".")[0]
    return first if first in ("model", "ema") else "optimizer"


def by_part(leaves: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Leaves by name, by part."""
    parts: dict[str, dict[str, Any]] = {}
    for name, leaf in leaves.items():
        parts.setdefault(part_of(name), {})[name] = leaf
    return parts


def save_leaves(path: Path, leaves: Mapping[str, "jax.Array"]) -> None:
    """Writes one part; every process calls it with the same leaves, and returns when all have written."""
    import orbax.checkpoint as ocp

    with _checkpointer() as checkpointer:
        options = {name: ocp.SaveArgs(chunk_byte_size=_CHUNK_BYTES) for name in leaves}
        checkpointer.save(path.absolute(), args=ocp.args.PyTreeSave(dict(leaves), save_args=options))


def load_leaves(path: Path, wanted: Mapping[str, "jax.ShapeDtypeStruct"]) -> dict[str, "jax.Array"]:
    """Reads leaves of one part, each into the place that ``wanted`` gives it.

    Raises:
        DamagedError: a file cannot be read.
    """
    import jax
    import orbax.checkpoint as ocp

    default = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    leaves: dict[str, jax.Array] = {}
    try:
        with blocks_given_back(), _checkpointer() as checkpointer:
            for group in _groups(wanted):
                arguments = {
                    name: ocp.ArrayRestoreArgs(
                        sharding=leaf.sharding or default, global_shape=leaf.shape, dtype=leaf.dtype
                    )
                    for name, leaf in group.items()
                }
                asked = ocp.args.PyTreeRestore(item=group, restore_args=arguments, partial_restore=True)
                leaves |= checkpointer.restore(path.absolute(), args=asked)
    except Exception as error:  # whatever a damaged file makes of the layers below, the answer is the same
        raise DamagedError(f"{path.name}: {first_line(error)}") from None
    return leaves


def shares(leaves: Mapping[str, "jax.Array"]) -> dict[str, int]:
    """This process's share of every leaf's digest."""
    return {name: _share(leaf) for name, leaf in leaves.items()}


def check_leaves(leaves: Mapping[str, "jax.Array"], recorded: Mapping[str, Leaf], *, part: str) -> None:
    """Compares leaves with the digests they were saved with, where they lie.

    Raises:
        DamagedError: naming one that differs.
    """
    import jax

    sums = shares(leaves)
    if jax.process_count() > 1:
        from jax.experimental.multihost_utils import process_allgather

        halves = np.array([[share >> 32, share & 0xFFFFFFFF] for share in sums.values()], np.uint32)
        gathered = process_allgather(halves).astype(object)
        totals = [sum(int(high << 32 | low) for high, low in gathered[:, i]) for i in range(len(sums))]
        sums = {name: total % MODULUS for name, total in zip(sums, totals, strict=True)}
    for name, total in sums.items():
        if f"{total:016x}" != recorded[name].digest:
            raise DamagedError(f"{part}: leaf {name} does not have the digest it was saved with")


def check_shapes(wanted: Mapping[str, "jax.ShapeDtypeStruct"], recorded: Mapping[str, Leaf], *, where: Path) -> None:
    """Refuses leaves of other names, shapes or types than the program needs.

    Raises:
        CheckpointError: naming the first that differs.
    """
    for name, leaf in wanted.items():
        found, needed = recorded.get(name), f"{leaf.dtype}{list(leaf.shape)}"
        saved = "absent" if found is None else f"{found.dtype}{list(found.shape)}"
        if saved != needed:
            raise CheckpointError(
                f"{where}: leaf {name} is {saved}, the model needs {needed}; it was written by another version of the "
                f"model's code"
            )


def first_line(error: BaseException) -> str:
    """What an error of the layers below says in the end, without their tracebacks and paths within paths."""
    line = str(error).strip().partition("\n")[0]
    return line.rpartition('": ')[2].partition(" [os_error_code")[0] or type(error).__name__


def _share(leaf: "jax.Array") -> int:
    total = 0
    for shard in leaf.addressable_shards:
        if shard.replica_id == 0:
            starts = [index.start or 0 for index in shard.index]
            total += add_up(np.asarray(shard.data), starts=starts)
    return total % MODULUS


def _groups(wanted: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The leaves in their order, few enough at a time."""
    group: dict[str, Any] = {}
    size = 0
    for name, leaf in wanted.items():
        bytes_ = leaf.size * leaf.dtype.itemsize
        if group and size + bytes_ > _READ_BYTES:
            yield group
            group, size = {}, 0
        group[name] = leaf
        size += bytes_
    if group:
        yield group


@contextmanager
def _checkpointer() -> "Generator[ocp.Checkpointer]":
    """Orbax, meeting the other processes through the coordinator: a background thread may not ask the devices.

    What it logs stays quiet: of an error it prints the traceback, though we catch it and say it in a line.
    """
    import jax
    import orbax.checkpoint as ocp

    processes = set(range(jax.process_count()))
    meeting = ocp.options.MultiprocessingOptions(
        primary_host=0,
        active_processes=processes if len(processes) > 1 else None,
        barrier_sync_key_prefix="marin" if len(processes) > 1 else None,
    )
    # Mantissas do not compress, and the attempt would take cores from the training step.
    handler = ocp.PyTreeCheckpointHandler(use_compression=False, multiprocessing_options=meeting)
    _drop_late_replies()
    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with ocp.Checkpointer(handler, multiprocessing_options=meeting) as checkpointer:
            yield checkpointer
    finally:
        log.setLevel(level)


@cache
def _drop_late_replies() -> None:
    """From now on nothing is printed of reads and writes whose answer comes after Orbax gave up on one beside them.

    Each would be a traceback of its own, from a thread or a loop of events in which nobody can catch it.
    """
    before = sys.unraisablehook

    def hook(unraisable: "sys.UnraisableHookArgs") -> None:
        code = getattr(unraisable.object, "cr_code", None)
        of_orbax = code is not None and _ORBAX in code.co_filename
        if not of_orbax and str(unraisable.exc_value) != "Event loop is closed":
            before(unraisable)

    sys.unraisablehook = hook
    logging.getLogger("asyncio").addFilter(_is_not_of_orbax)


def _is_not_of_orbax(record: logging.LogRecord) -> bool:
    """Whether what a loop of events logs of a task that ended unheard is of somebody else's task."""
    trace = record.exc_info[2] if record.exc_info else None
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(trace)]
    message = record.getMessage()
    return not any(_ORBAX in text for text in (*files, message)) and not any(text in message for text in _STORES)


def _name(path: Any) -> str:
    import jax

    return jax.tree_util.keystr(path, simple=True, separator=".")


def _is_leaf(leaf: Any) -> bool:
    import equinox as eqx
    import jax

    return eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)
