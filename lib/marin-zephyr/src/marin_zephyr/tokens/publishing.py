"""A finished token store, copied below a URL: the manifest last, so that there too it is whole or does not exist.

A copy that was cut off goes on where it stopped. What it began with is written first, in a marker: files that are
there under the marker of this very store, at their size, are not sent again; under any other, all are.
"""

import contextlib
import hashlib
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate

from marin_zephyr.errors import InputError, MissingExtraError, OutputError, TokenStoreError
from marin_zephyr.formats import remote
from marin_zephyr.tokens.blocks import default_directory
from marin_zephyr.tokens.manifest import MANIFEST_FILE
from marin_zephyr.tokens.store import TokenStore
from marin_zephyr.tokens.tokenizer import TOKENIZER_FILE

if TYPE_CHECKING:
    from marin_zephyr.tokens.encoding import TokenizeReport

_MARKER = "publishing"
_UPLOADS = 4  # at a time


@dataclass(frozen=True)
class Publication:
    """What `publish_store` did.

    Attributes:
        url: the store's new place.
        num_files: files of the store.
        num_sent: those that were not there yet.
        num_bytes: bytes of these.
    """

    url: str
    num_files: int
    num_sent: int
    num_bytes: int


def publish_store(store: str | Path, url: str) -> Publication:
    """Copies a store below a URL; repeat the call if it is cut off.

    Args:
        store: the directory of a finished store.
        url: where it goes, such as ``s3://bucket/store``: a place with nothing else, or an unfinished copy.

    Raises:
        TokenStoreError: ``store`` is no store, or not whole.
        OutputError: another store, or something else, is there; or the URL cannot be written.
        MissingExtraError: the URL's protocol needs an extra; the message has its install line.
    """
    opened = TokenStore.open(store)
    directory, url = Path(store), url.rstrip("/")
    manifest = (directory / MANIFEST_FILE).read_bytes()
    names = [*(name for part in opened.parts for name in part.record.files), *opened.rejects, TOKENIZER_FILE]
    try:
        sizes = {name: (directory / name).stat().st_size for name in names}
    except FileNotFoundError as error:
        raise TokenStoreError(f"{error.filename} is missing: restore it, or tokenize again") from error
    try:
        fs, root = remote.file_system(url)
        with remote.failures(url, "cannot be written"):
            return _copy(fs, root.rstrip("/"), directory, url=url, manifest=manifest, sizes=sizes)
    except MissingExtraError:
        raise
    except InputError as error:
        raise OutputError(str(error)) from error


def publishable[**P](
    tokenize: Callable[Concatenate[Any, Any, P], "TokenizeReport"],
) -> Callable[Concatenate[Any, Any, P], "TokenizeReport"]:
    """Lets a function that makes a store in a directory also make one below a URL: by a directory, and `publish_store`.

    The directory is ``work_dir``, where the store stays, so that a repeated call has nothing to do. Without one it is
    below the user's cache, and is removed when the store has been published.
    """

    @wraps(tokenize)
    def call(inputs: Any, out_dir: Any, *args: P.args, **options: P.kwargs) -> "TokenizeReport":
        if "://" not in str(out_dir):
            return tokenize(inputs, out_dir, *args, **options)
        url, given = str(out_dir), options.pop("work_dir", None)
        remote.file_system(url)  # a missing extra is told before the work, not after
        name = hashlib.sha256(url.encode()).hexdigest()[:16]
        staged = Path(str(given)) if given is not None else default_directory().with_name("publishing") / name
        report = tokenize(inputs, staged, *args, **options)
        publish_store(staged, url)
        if given is None:
            shutil.rmtree(staged)
        return replace(report, out_dir=url)

    return call


def _copy(fs: Any, root: str, directory: Path, *, url: str, manifest: bytes, sizes: Mapping[str, int]) -> Publication:
    there = _there(fs, root)
    if MANIFEST_FILE in there:
        if fs.cat_file(f"{root}/{MANIFEST_FILE}") != manifest:
            raise OutputError(f"{url} holds another token store: choose another place, or delete it")
        return Publication(url=url, num_files=len(sizes) + 1, num_sent=0, num_bytes=0)
    marker = hashlib.sha256(manifest).hexdigest().encode()
    is_ours = _MARKER in there and fs.cat_file(f"{root}/{_MARKER}") == marker
    if there and _MARKER not in there:
        raise OutputError(f"{url} is not empty, it holds {min(there)}: choose a new place for the store")
    fs.makedirs(root, exist_ok=True)
    fs.pipe_file(f"{root}/{_MARKER}", marker)
    missing = [name for name, size in sizes.items() if not (is_ours and there.get(name) == size)]
    for name in {name.rpartition("/")[0] for name in missing if "/" in name}:
        fs.makedirs(f"{root}/{name}", exist_ok=True)
    with ThreadPoolExecutor(_UPLOADS) as pool:
        for _ in pool.map(lambda name: fs.put_file(str(directory / name), f"{root}/{name}"), missing):
            pass
    there = _there(fs, root)
    if short := [name for name, size in sizes.items() if there.get(name) != size]:
        raise OutputError(f"{url}/{short[0]} has {there.get(short[0])} bytes after {sizes[short[0]]} were sent")
    fs.pipe_file(f"{root}/{MANIFEST_FILE}", manifest)
    fs.rm_file(f"{root}/{_MARKER}")
    num_bytes = sum(sizes[name] for name in missing) + len(manifest)
    return Publication(url=url, num_files=len(sizes) + 1, num_sent=len(missing) + 1, num_bytes=num_bytes)


def _there(fs: Any, root: str) -> dict[str, int]:
    """The files below ``root`` and their sizes."""
    fs.invalidate_cache()
    with contextlib.suppress(FileNotFoundError):
        found = fs.find(root, detail=True)
        below = root.strip("/") + "/"
        return {name.lstrip("/").removeprefix(below): int(info["size"]) for name, info in found.items()}
    return {}
