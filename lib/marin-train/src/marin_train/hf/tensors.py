"""Tensors of a safetensors directory, by a parameter table: to leaves of a model, and from them.

The table says a tensor's name, whether it lies transposed there, and which leaves stack one tensor a layer. Reading is
lazy: a leaf is put together on the host, in the part that each device holds, and the files are mapped, so that no more
than the model and one leaf is in memory. Writing holds the model and one file.

The rows that pad a vocabulary (`ModelConfig.vocab_multiple`) exist here alone: zeros when read, left out when written.

See: https://huggingface.co/docs/safetensors
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import numpy as np
from jax.sharding import Sharding
from jaxtyping import Array, Float

from marin_train.errors import HuggingFaceError
from marin_train.parameters import LAYER, Parameter, ParameterTable

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_TYPES = ("F32", "BF16", "F16")
_NAMED = 4
"""Tensors of each kind that a message names."""


class TensorFiles:
    """The safetensors files of a directory, open; a context manager that closes them.

    Args:
        directory: with ``model.safetensors``, or several files and their index.
        rename: a tensor's name in the file -> the name by which it is asked for; None for one that is passed over.

    Raises:
        HuggingFaceError: there are no such files, one cannot be opened, or the index names tensors that they lack.
    """

    def __init__(self, directory: Path, *, rename: Callable[[str], str | None] = str) -> None:
        self._directory, self._stack = directory, ExitStack()
        self._found: dict[str, tuple[Any, str]] = {}
        try:
            for file in _files(directory):
                opened = self._stack.enter_context(_open(file))
                for name in opened.keys():  # noqa: SIM118
                    if (renamed := rename(name)) is not None:
                        self._found[renamed] = opened, name
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def check(self, expected: Mapping[str, tuple[int, ...]], *, ignored: Sequence[str] = ()) -> None:
        """Refuses tensors that are missing, left over, or of another shape or type: all of them in one message.

        Args:
            expected: name -> shape.
            ignored: names that may be there, too.
        """
        slices = {name: self._slice(name) for name in self._found}
        missing = [name for name in expected if name not in slices]
        unexpected = [name for name in slices if name not in expected and name not in ignored]
        other = []
        for name, shape in expected.items():
            if name in slices:
                there, dtype = slices[name].get_shape(), slices[name].get_dtype()
                if tuple(there) != shape or dtype not in _TYPES:
                    other.append(f"{name} is {dtype}{there}, expected {' or '.join(_TYPES)} {list(shape)}")
        found = {"missing": missing, "unexpected": unexpected, "of another shape or type": other}
        if any(found.values()):
            told = "; ".join(f"{len(names)} {what}: {_some(names)}" for what, names in found.items() if names)
            raise HuggingFaceError(f"{self._directory}: its tensors are not those of its config.json: {told}")

    def equal(self, first: str, second: str) -> bool:
        """Whether two tensors are the same, or the second is not there."""
        return second not in self._found or np.array_equal(self._slice(first)[:], self._slice(second)[:])

    def read(self, parameter: Parameter, sharding: Sharding, *, vocab_size: int) -> Float[Array, "..."]:
        """A leaf in float32, each device's part read from the files on its own."""

        def part(index: tuple[slice, ...]) -> np.ndarray:
            spans = [range(*s.indices(size)) for s, size in zip(index, parameter.shape, strict=True)]
            leaf = np.zeros([len(span) for span in spans], np.float32)
            is_stacked = parameter.dims[0] == LAYER
            layers = spans.pop(0) if is_stacked else [0]
            limits = _unpadded(parameter, vocab_size)
            there = [slice(span.start, min(span.stop, limit)) for span, limit in zip(spans, limits, strict=True)]
            if all(s.start < s.stop for s in there):
                here = tuple(slice(0, s.stop - s.start) for s in there)
                for row, layer in zip(leaf if is_stacked else leaf[None], layers, strict=True):
                    row[here] = self._values(parameter, layer, tuple(there))
            return leaf

        return jax.make_array_from_callback(parameter.shape, sharding, part)

    def _values(self, parameter: Parameter, layer: int, index: tuple[slice, ...]) -> np.ndarray:
        tensor = self._slice(parameter.hf_key.format(layer=layer))
        return tensor[index[::-1]].T if parameter.hf_transpose else tensor[index]

    def _slice(self, name: str) -> Any:
        opened, there = self._found[name]
        return opened.get_slice(there)


def shapes(table: ParameterTable, *, vocab_size: int) -> dict[str, tuple[int, ...]]:
    """Every tensor's name and shape in a Hugging Face checkpoint of this model."""
    expected = {}
    for parameter in table:
        shape = _unpadded(parameter, vocab_size)
        shape = shape[::-1] if parameter.hf_transpose else shape
        for name, _ in _tensor_names(parameter):
            expected[name] = shape
    return expected


def write(
    directory: Path, leaves: Mapping[str, Any], *, table: ParameterTable, vocab_size: int, dtype: Any, shard_bytes: int
) -> None:
    """Writes ``model.safetensors``, or several files of at most `shard_bytes` with an index.

    Args:
        directory: where.
        leaves: the model's, by path.
        table: what they are.
        vocab_size: rows of embedding and head that are written.
        dtype: of the tensors; rounding is to the nearest, and to even between two.
        shard_bytes: bytes of a file's tensors; a tensor that has more gets a file of its own.
    """
    from safetensors.numpy import save_file

    shards: list[list[tuple[str, Parameter, int | None]]] = [[]]
    sizes, expected = [0], shapes(table, vocab_size=vocab_size)
    for parameter in table:
        for name, layer in _tensor_names(parameter):
            size = int(np.prod(expected[name])) * dtype.itemsize
            if shards[-1] and sizes[-1] + size > shard_bytes:
                shards.append([])
                sizes.append(0)
            shards[-1].append((name, parameter, layer))
            sizes[-1] += size
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        file = SINGLE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        tensors = {n: _tensor(leaves[p.path], p, layer, vocab_size, dtype) for n, p, layer in shard}
        save_file(tensors, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(sizes)}, "weight_map": weight_map}
        (directory / INDEX).write_text(json.dumps(index, indent=1, sort_keys=True) + "\n")


def _tensor(leaf: Any, parameter: Parameter, layer: int | None, vocab_size: int, dtype: Any) -> np.ndarray:
    values = np.asarray(leaf)
    values = values if layer is None else values[layer]
    values = values[tuple(slice(0, limit) for limit in _unpadded(parameter, vocab_size))]
    # The writer reads memory as it lies.
    return np.ascontiguousarray(values.T if parameter.hf_transpose else values, dtype=dtype)


def _tensor_names(parameter: Parameter) -> Iterator[tuple[str, int | None]]:
    if parameter.dims[0] != LAYER:
        yield parameter.hf_key, None
        return
    for layer in range(parameter.shape[0]):
        yield parameter.hf_key.format(layer=layer), layer


def _unpadded(parameter: Parameter, vocab_size: int) -> tuple[int, ...]:
    """The shape of one layer's values, without a vocabulary's padding."""
    sizes = zip(parameter.dims, parameter.shape, strict=True)
    return tuple(vocab_size if dim == "vocab" else size for dim, size in sizes if dim != LAYER)


def _files(directory: Path) -> list[Path]:
    if (directory / SINGLE).is_file():
        return [directory / SINGLE]
    if not (directory / INDEX).is_file():
        raise HuggingFaceError(f"{directory} holds neither {SINGLE} nor {INDEX}; other formats are not read")
    try:
        names = sorted(set(json.loads((directory / INDEX).read_text())["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise HuggingFaceError(f"{directory / INDEX} cannot be read: {error}") from None
    if absent := [name for name in names if not (directory / name).is_file()]:
        raise HuggingFaceError(f"{directory}: {INDEX} names {_some(absent)}, which is not there")
    return [directory / name for name in names]


def _open(file: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(file, framework="np")
    except (OSError, SafetensorError) as error:
        raise HuggingFaceError(f"{file} cannot be read: {error}; fetch it again") from None


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
