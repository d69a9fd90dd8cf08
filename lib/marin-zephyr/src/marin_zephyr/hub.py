"""Datasets of the Hugging Face hub: their data files as a source, or their first rows as a local file.

A source is read by this package's own readers, file by file where the tasks run; the loader only says which files a
split has, at the commit that the revision stands for. For a local file the loader streams, so that only the rows that
are wanted are fetched.

A run must be repeatable years later, so a revision (a commit of the dataset's repository) is asked for, not defaulted.
The loader is `datasets` itself, an extra that is imported here and nowhere else.
"""

import itertools
import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from marin_zephyr.durability import new_file
from marin_zephyr.errors import InputError, MissingExtraError
from marin_zephyr.nodes import FileSource, HubSource


def files_of(source: HubSource) -> FileSource:
    """The data files of a split, as a source of files.

    Args:
        source: which split of which dataset; see `marin_zephyr.Dataset.from_hf`.

    Raises:
        MissingExtraError: `datasets` is not installed.
        InputError: the dataset, revision, configuration or split is not there, or the hub cannot be reached.
    """
    name, split = source.dataset, source.split
    with _loading(name, revision=source.revision, split=split) as datasets:
        builder = datasets.load_dataset_builder(name, source.config, revision=source.revision)
    files = {str(key): [str(file) for file in value] for key, value in (builder.config.data_files or {}).items()}
    if split not in files:
        raise InputError(f"{name}: no split {split!r}; it has {', '.join(files) or 'no data files'}")
    return FileSource(
        inputs=tuple(files[split]),
        format=None,
        on_error=source.on_error,
        root=None,
        shard_bytes=source.shard_bytes,
        options=source.options,
    )


def fetch_rows(
    dataset: str,
    out_file: str | Path,
    *,
    revision: str | None,
    split: str = "train",
    num_rows: int | None = None,
    columns: tuple[str, ...] = ("text",),
) -> int:
    """Writes the first rows of a dataset as jsonl, whole or not at all.

    Args:
        dataset: its name on the hub (``roneneldan/TinyStories``), or a local directory of data files.
        out_file: the ``.jsonl`` file to write.
        revision: a commit, tag or branch of the dataset's repository; None only for a local directory.
        split: which split of it.
        num_rows: how many; None takes all.
        columns: what to keep of each row.

    Returns:
        How many rows were written.

    Raises:
        MissingExtraError: `datasets` is not installed.
        InputError: the dataset, revision, split or a column is not there, or the hub cannot be reached.
        OutputError: the file cannot be written.

    See: https://huggingface.co/docs/datasets/stream
    """
    count = 0
    rows = _rows(dataset, revision=revision, split=split, columns=columns)
    with new_file(Path(out_file)) as path, path.open("w", encoding="utf-8") as file:
        for row in itertools.islice(rows, num_rows):
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return count


def _rows(dataset: str, *, revision: str | None, split: str, columns: tuple[str, ...]) -> Iterator[dict[str, object]]:
    """The rows as the loader streams them; its failures as ours."""
    with _loading(dataset, revision=revision, split=split) as datasets:
        for row in datasets.load_dataset(dataset, revision=revision, split=split, streaming=True):
            missing = [name for name in columns if name not in row]
            if missing:
                raise InputError(f"{dataset}: no column {missing[0]!r}; it has {', '.join(row)}")
            yield {name: row[name] for name in columns}


@contextmanager
def _loading(dataset: str, *, revision: str | None, split: str) -> Generator[ModuleType]:
    """Gives the module `datasets`; its failures become ours."""
    try:
        import datasets
        from datasets.exceptions import DatasetsError
    except ImportError:
        raise MissingExtraError(
            f"reading {dataset!r} from the hub needs the extra `hf`: pip install 'marin-zephyr[hf]'"
            " (in the workspace: uv run --extra hf ...)"
        ) from None
    try:
        yield datasets
    except (OSError, ValueError, RuntimeError, DatasetsError) as e:
        reason = str(e).splitlines()[0] if str(e) else type(e).__name__
        raise InputError(f"{dataset} at revision {revision}, split {split!r}, cannot be read: {reason}") from e
