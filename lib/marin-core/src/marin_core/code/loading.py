"""Which text of a file this process has loaded: stamps of the files of its modules.

When Python loads a module it tells nobody, so stamps are taken as soon after as can be: of all modules that a script
has imported, whenever it makes a step; of others, when they are first looked at.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Stamp = tuple[int, int]
"""mtime_ns and size."""

_loaded: dict[Path, Stamp] = {}
_specs: dict[str, tuple[Path | None, Any]] = {}
"""The modules that are noted: their files, and what `importlib.reload` puts another in the place of."""


def stamp(path: Path) -> Stamp:
    """The state of a file."""
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size


def note_loaded(function: Callable[..., Any]) -> None:
    """Remembers the state of a function's file at the time when the function is made of it, and of the files of all
    modules that are new."""
    path = Path(os.path.abspath(function.__code__.co_filename)) if hasattr(function, "__code__") else None  # noqa: PTH100
    with contextlib.suppress(OSError):
        if path is not None:
            _loaded[path] = stamp(path)
    for name in sys.modules.keys() - _specs.keys():
        _note(name, _attributes(name))


def note_seen(path: Path, seen: Stamp) -> None:
    """Remembers the state of a file that is looked at, unless its module was noted when it was loaded."""
    _loaded.setdefault(path, seen)


def note_reloaded() -> None:
    """Takes new stamps of the modules that `importlib.reload` has loaded again."""
    for name, (path, spec) in list(_specs.items()):
        if path is not None and (attributes := _attributes(name)).get("__spec__") is not spec:
            _loaded.pop(path, None)
            _note(name, attributes)


def loaded_otherwise(files: Mapping[Path, Stamp]) -> Path | None:
    """The first of some files, as they were digested, that this process has loaded and that has been edited since, or
    None. A body that runs in this very process would run the old text."""
    edited = [path for path, seen in files.items() if _loaded.get(path, seen) != seen]
    if not edited:
        return None
    loaded = {_attributes(name).get("__file__") for name in list(sys.modules)}
    return next((path for path in edited if str(path) in loaded), None)


def _note(name: str, attributes: Mapping[str, Any]) -> None:
    file = attributes.get("__file__")
    path = Path(file) if isinstance(file, str) and file.endswith(".py") else None
    _specs[name] = path, attributes.get("__spec__")
    with contextlib.suppress(OSError):
        if path is not None and path not in _loaded:
            _loaded[path] = stamp(path)


def _attributes(name: str) -> Mapping[str, Any]:
    """What a module holds, without waking one that loads itself when it is first used."""
    try:
        return object.__getattribute__(sys.modules[name], "__dict__")
    except (KeyError, AttributeError):
        return {}
