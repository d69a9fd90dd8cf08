"""Tensors of a safetensors directory, by a parameter table: to leaves of a model, and from them.

The table says a tensor's name, whether it lies transposed there, and which leaves stack one tensor a layer. Reading is
lazy: a leaf is put together on the host, in the part that each device holds, and the files are mapped, so that no more
than the model and one leaf is in memory. Writing holds the model and one file.

The rows that pad a vocabulary (`ModelConfig.vocab_multiple`) exist here alone: zeros when read, left out when written.

See: https://huggingface.co/docs/safetensors
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
    """The tensors of a directory's safetensors files; a file is open, and mapped, only while one of them is read.

    Args:
        directory: with ``model.safetensors``, or several files and their index.
        rename: a tensor's name in the file -> the name by which it is asked for; None for one that is passed over.

    Raises:
        HuggingFaceError: there are no such files, one cannot be opened, or the index names one that is not there.
    """

    def __init__(self, directory: Path, *, rename: Callable[[str], str | None]) -> None:
        self._directory = directory
        self._found: dict[str, _Tensor] = {}
        for file in _files(directory):
            with _open(file) as opened:
                for name in opened.keys():  # noqa: SIM118
                    if (renamed := rename(name)) is not None:
                        tensor = opened.get_slice(name)
                        self._found[renamed] = _Tensor(file, name, tuple(tensor.get_shape()), tensor.get_dtype())

    def has(self, parameter: Parameter) -> bool:
        """Whether any tensor of a leaf is there."""
        return any(name in self._found for name, _ in _tensor_names(parameter))

    def check(self, expected: Mapping[str, tuple[int, ...]], *, ignored: Sequence[str] = ()) -> None:
        """Refuses tensors that are missing, left over, or of another shape or type: all of them in one message.

        Args:
            expected: name -> shape.
            ignored: names that may be there, too.
        """
        missing = [name for name in expected if name not in self._found]
        unexpected = [name for name in self._found if name not in expected and name not in ignored]
        other = [
            f"{name} is {found.dtype}{list(found.shape)}, expected {' or '.join(_TYPES)} {list(expected[name])}"
            for name, found in self._found.items()
            if name in expected and (found.shape != expected[name] or found.dtype not in _TYPES)
        ]
        found = {"missing": missing, "unexpected": unexpected, "of another shape or type": other}
        if any(found.values()):
            told = "; ".join(f"{len(names)} {what}: {_some(names)}" for what, names in found.items() if names)
            raise HuggingFaceError(f"{self._directory}: its tensors are not those of its config.json: {told}")

    def equal(self, first: str, second: str) -> bool:
        """Whether two tensors are the same, or the second is not there."""
        return second not in self._found or np.array_equal(self._found[first].read(), self._found[second].read())

    def read(self, parameter: Parameter, sharding: Sharding) -> Float[Array, "..."]:
        """A leaf in float32, each device's part read from the files on its own."""

        def part(index: Any) -> np.ndarray:
            spans = [range(*s.indices(size)) for s, size in zip(index, parameter.shape, strict=True)]
            leaf = np.zeros([len(span) for span in spans], np.float32)
            stacked = len(_stacked(parameter))
            limits = _tensor_shape(parameter)
            there = [slice(s.start, min(s.stop, limit)) for s, limit in zip(spans[stacked:], limits, strict=True)]
            if any(s.start >= s.stop for s in there):
                return leaf  # nothing but padding
            here = tuple(slice(0, s.stop - s.start) for s in there)
            there = there[::-1] if parameter.hf_transpose else there
            for place in np.ndindex(leaf.shape[:stacked]):
                numbers = tuple(span[i] for span, i in zip(spans, place, strict=False))
                values = self._found[_tensor_name(parameter, numbers)].read(*there)
                leaf[place][here] = values.T if parameter.hf_transpose else values
            return leaf

        return jax.make_array_from_callback(parameter.shape, sharding, part)


class _Tensor(NamedTuple):
    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str

    def read(self, *index: slice) -> np.ndarray:
        with _open(self.file) as opened:
            return opened.get_slice(self.name)[index or slice(None)]


def shapes(table: Iterable[Parameter]) -> dict[str, tuple[int, ...]]:
    """Every tensor's name and shape in a Hugging Face checkpoint of this model."""
    expected = {}
    for parameter in table:
        shape = _tensor_shape(parameter)
        shape = shape[::-1] if parameter.hf_transpose else shape
        for name, _ in _tensor_names(parameter):
            expected[name] = shape
    return expected


def write(directory: Path, leaves: Mapping[str, Any], *, table: ParameterTable, dtype: Any, shard_bytes: int) -> None:
    """Writes ``model.safetensors``, or several files of at most `shard_bytes` with an index.

    Args:
        directory: where.
        leaves: the model's, by path.
        table: what they are.
        dtype: of the tensors; rounding is to the nearest, and to even between two.
        shard_bytes: bytes of a file's tensors; a tensor that has more gets a file of its own.
    """
    from safetensors.numpy import save_file

    shards: list[list[tuple[str, Parameter, tuple[int, ...]]]] = [[]]
    sizes, expected = [0], shapes(table)
    for parameter in table:
        for name, place in _tensor_names(parameter):
            size = int(np.prod(expected[name])) * dtype.itemsize
            if shards[-1] and sizes[-1] + size > shard_bytes:
                shards.append([])
                sizes.append(0)
            shards[-1].append((name, parameter, place))
            sizes[-1] += size
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        file = SINGLE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        tensors = {n: _tensor(leaves[p.path], p, place, dtype) for n, p, place in shard}
        save_file(tensors, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(sizes)}, "weight_map": weight_map}
        (directory / INDEX).write_text(json.dumps(index, indent=1, sort_keys=True) + "\n")


def _tensor(leaf: Any, parameter: Parameter, place: tuple[int, ...], dtype: Any) -> np.ndarray:
    values = np.asarray(leaf)[place]
    values = values[tuple(slice(0, limit) for limit in _tensor_shape(parameter))]
    # The writer reads memory as it lies.
    return np.ascontiguousarray(values.T if parameter.hf_transpose else values, dtype=dtype)


def _tensor_names(parameter: Parameter) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The name of each tensor that the leaf stacks, and its place in the leaf."""
    for place in np.ndindex(parameter.shape[: len(_stacked(parameter))]):
        yield _tensor_name(parameter, place), place


def _tensor_name(parameter: Parameter, place: tuple[int, ...]) -> str:
    numbers = dict(zip(_stacked(parameter), place, strict=True))
    if LAYER in numbers:
        numbers[LAYER] += parameter.first_layer
    return parameter.hf_key.format(**numbers)


def _stacked(parameter: Parameter) -> tuple[str, ...]:
    """The dims along which a leaf stacks tensors: layers, and in these experts."""
    return tuple(dim for dim in parameter.dims[:2] if f"{{{dim}}}" in parameter.hf_key)


def _tensor_shape(parameter: Parameter) -> tuple[int, ...]:
    """The shape of one tensor's values, without a vocabulary's padding."""
    return parameter.real_shape[len(_stacked(parameter)) :]


def _files(directory: Path) -> list[Path]:
    if (directory / SINGLE).is_file():
        return [directory / SINGLE]
    if not (directory / INDEX).is_file():
        raise HuggingFaceError(f"{directory} holds neither {SINGLE} nor {INDEX}; other formats are not read")
    try:
        names = sorted(set(json.loads((directory / INDEX).read_text())["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise HuggingFaceError(f"{directory / INDEX} cannot be read: {error}") from None
    if foreign := [str(name) for name in names if Path(str(name)).name != name]:
        raise HuggingFaceError(f"{directory / INDEX} names {_some(foreign)}, which is no file of that directory")
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
