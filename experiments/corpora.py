"""Where raw text comes from: the standard library, a dataset of the hub, or files of one's own.

`raw_files` turns a name, path or glob into a step whose output holds raw files, and says which of them are meant and
how a document lies in them. Local files are adopted where they are: hashed and read, never copied or written.
"""

import glob
import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from bridge import download
from marin_core import Step, UsageError, adopt

TINYSTORIES = "roneneldan/TinyStories"
TINYSTORIES_REVISION = "f54c09fd23315a6f9c86f9dc80f725de7d8f9c64"
NAMES = ("stdlib", "tinystories")
ROWS = (".jsonl", ".json", ".ndjson", ".parquet")
TEXTS = (".txt", ".md", ".py")
_KINDS = ", ".join((*ROWS, *TEXTS))
COMPRESSIONS = (".gz", ".zst", ".xz", ".bz2")


@dataclass(frozen=True)
class RawFiles:
    """A step that holds raw files, the files meant, and whether a document is a row or a whole file."""

    step: Step
    files: tuple[str, ...]
    """Relative to the step's output; empty takes all of them."""
    documents: Literal["row", "file"]


def raw_files(corpus: str) -> RawFiles:
    """The raw files of a corpus.

    Args:
        corpus: ``stdlib``, ``tinystories``, a file, a directory, or a glob.

    Raises:
        UsageError: there is no such corpus, or nothing in it that can be read.
    """
    if corpus == "stdlib":
        return _standard_library()
    if corpus == "tinystories":
        raw = download(
            dataset=TINYSTORIES, revision=TINYSTORIES_REVISION, split="train", num_documents=40_000, name="tinystories"
        )
        return RawFiles(raw, (), "row")
    return _own_files(corpus)


def _standard_library() -> RawFiles:
    """The sources of the running Python's standard library, tests included, in the order of their names."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = (p.relative_to(root) for p in _below(root) if p.suffix == ".py")
    files = sorted(p.as_posix() for p in found if not {"site-packages", "dist-packages"} & set(p.parts))
    if not files:
        raise UsageError(f"--corpus stdlib: this Python has no sources under {root}; give --corpus a path instead")
    return RawFiles(adopt(root, name="stdlib", files=files), tuple(files), "file")


def _own_files(corpus: str) -> RawFiles:
    paths = _find(corpus)
    kinds = {_suffix(p) for p in paths}
    if unknown := kinds - set(ROWS) - set(TEXTS):
        named = next(p for p in paths if _suffix(p) in unknown)
        raise UsageError(f"--corpus {corpus!r}: {named} is none of {_KINDS}; convert it, or give a glob without it")
    if kinds & set(ROWS) and kinds & set(TEXTS):
        raise UsageError(
            f"--corpus {corpus!r} mixes {', '.join(sorted(kinds))}: in some a document is a row, in others a file; "
            "give a glob of either, such as 'DIR/**/*.jsonl'"
        )
    root = Path(os.path.commonpath([p.parent for p in paths]))
    files = tuple(p.relative_to(root).as_posix() for p in paths)
    return RawFiles(adopt(root, name="corpus", files=files), files, "row" if kinds & set(ROWS) else "file")


def _find(corpus: str) -> list[Path]:
    """Files that a path or glob names, absolute and sorted; a directory stands for all the known files below it."""
    path = Path(corpus).expanduser()
    if "://" in corpus or not corpus.strip():
        raise UsageError(f"--corpus {corpus!r} is no local path; give one, or a name: {', '.join(NAMES)}")
    try:
        if path.is_dir():
            found = [p for p in _below(path) if _suffix(p) in (*ROWS, *TEXTS)]
            missing = f"the directory holds none of {_KINDS}"
        elif path.is_file():
            found, missing = [path], ""
        else:
            found = [Path(p) for p in glob.glob(str(path), recursive=True) if Path(p).is_file()]  # noqa: PTH207
            missing = f"no such file, directory or glob; give one, or a name: {', '.join(NAMES)}"
    except OSError as error:
        raise UsageError(f"--corpus {corpus!r}: {error.filename or path} cannot be read ({error.strerror})") from None
    if not found:
        raise UsageError(f"--corpus {corpus!r}: {missing}")
    return sorted(p.absolute() for p in found)


def _below(directory: Path) -> list[Path]:
    """Files under a directory, hidden ones left out; a directory that cannot be listed is an error, not a gap."""

    def fail(error: OSError) -> None:
        raise error

    found = []
    for folder, folders, names in os.walk(directory, onerror=fail):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(folder, name) for name in names if not name.startswith(".")]
    return [p for p in found if p.is_file()]


def _suffix(path: Path) -> str:
    """The suffix that tells the format, looking through that of a compression."""
    name = PurePosixPath(path.name.lower())
    return PurePosixPath(name.stem).suffix if name.suffix in COMPRESSIONS else name.suffix
