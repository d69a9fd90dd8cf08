"""Token stores read by Megatron-core's own IndexedDataset: every document, both types of ids.

    python megatron_reader.py STORE...

Each part is opened by Megatron-core, memory-mapped and not, and each of its documents compared with the ids that the
layout in ``docs/reference/token-store.md`` says it has, read here with NumPy alone. One line a store; exit code 1 at
the first difference. It runs in an environment of its own (torch is large): ``nox -s peers``.

See: NVIDIA Megatron-LM, ``megatron/core/datasets/indexed_dataset.py``.
"""

import json
import sys
import warnings
from importlib.metadata import version
from pathlib import Path

import numpy as np

warnings.filterwarnings("ignore", category=UserWarning)

from megatron.core.datasets.indexed_dataset import IndexedDataset  # noqa: E402


def documents(prefix: Path, dtype: str) -> list[np.ndarray]:
    """The ids of each document of a part, by the documented layout."""
    index = prefix.with_suffix(".idx").read_bytes()
    count = int.from_bytes(index[18:26], "little")
    lengths = np.frombuffer(index, "<i4", count, 34)
    offsets = np.frombuffer(index, "<i8", count, 34 + 4 * count)
    kind = np.dtype(dtype).newbyteorder("<")
    ids = np.fromfile(prefix.with_suffix(".bin"), kind)
    return [ids[o // kind.itemsize :][:n] for o, n in zip(offsets, lengths, strict=True)]


def compare(store: Path) -> str:
    """What was compared.

    Raises:
        AssertionError: Megatron-core finds something else.
    """
    manifest = json.loads((store / "manifest.json").read_bytes())
    for part in manifest["parts"]:
        expected = documents(store / part["name"], manifest["dtype"])
        assert len(expected) == part["num_documents"]
        for mmap in (True, False):
            dataset = IndexedDataset(str(store / part["name"]), mmap=mmap)
            assert dataset.index.dtype == np.dtype(manifest["dtype"]), dataset.index.dtype
            assert len(dataset) == len(expected), (len(dataset), len(expected))
            assert dataset.document_indices.tolist() == list(range(len(expected) + 1))
            assert int(dataset.sequence_lengths.sum()) == part["num_tokens"]
            for number, ids in enumerate(expected):
                found = dataset[number]
                assert found.dtype == ids.dtype, (found.dtype, ids.dtype)
                assert np.array_equal(found, ids), f"{part['name']}: document {number} differs"
                middle = len(ids) // 2
                assert np.array_equal(dataset.get(number, offset=middle), ids[middle:])
    counts = f"{manifest['num_documents']:,} documents, {manifest['num_tokens']:,} tokens of {manifest['dtype']}"
    return f"{store.name}: equal: {len(manifest['parts'])} parts, {counts}"


if __name__ == "__main__":
    print(f"megatron-core {version('megatron-core')}, torch {version('torch')}, numpy {np.__version__}")
    for name in sys.argv[1:]:
        print(compare(Path(name)))
