"""Datasets of the Hugging Face hub, as a local file: streamed, so that only the rows that are wanted are fetched.

A run must be repeatable years later, so a revision (a commit of the dataset's repository) is asked for, not defaulted.
The loader is `datasets` itself, an extra that is imported here and nowhere else.
"""

import itertools
import json
import os
from pathlib import Path

from marin_zephyr.errors import InputError, MissingExtraError


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

    See: https://huggingface.co/docs/datasets/stream
    """
    try:
        import datasets
    except ImportError:
        raise MissingExtraError(
            f"reading {dataset!r} from the hub needs the extra `hf`: pip install 'marin-zephyr[hf]'"
            " (in the workspace: uv run --extra hf ...)"
        ) from None
    target = Path(out_file)
    partial = target.with_name(f".{target.name}.partial")
    try:
        rows = datasets.load_dataset(dataset, revision=revision, split=split, streaming=True)
        count = 0
        with partial.open("w", encoding="utf-8") as file:
            for row in itertools.islice(rows, num_rows):
                file.write(json.dumps({name: row[name] for name in columns}, ensure_ascii=False) + "\n")
                count += 1
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    except KeyError as e:
        raise InputError(f"{dataset}: no column {e.args[0]!r}; it has {', '.join(row)}") from None
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as e:
        reason = str(e).splitlines()[0] if str(e) else type(e).__name__
        raise InputError(f"{dataset} at revision {revision}, split {split!r}, cannot be read: {reason}") from e
    finally:
        partial.unlink(missing_ok=True)
    return count
