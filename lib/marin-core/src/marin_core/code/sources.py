"""Workspace sources: which files are the user's own, what they are called, and where an import leads.

The workspace is every Python file outside the standard library and site-packages; an editable install counts, a wheel
does not (its version stands in the environment digest), and neither does marin_core itself, which runs steps but is
no part of their results. Nothing is imported on the way: a top-level name is found with `importlib.util.find_spec`,
everything below it by path arithmetic, so that a plan that reaches into a JAX package costs no import of JAX.

A module's name is its file's dotted path below the nearest ancestor that holds a project file (``pyproject.toml`` or
``.git``) or is the ``src`` of such a one, else below the directory that its outermost package lies in. So ``python
experiments/x.py`` and ``import experiments.x`` name the same module, whatever the working directory and ``sys.path``
are.
"""

import functools
import importlib.util
import os
import sys
import sysconfig
from importlib.machinery import PathFinder
from pathlib import Path

from marin_core.code.imports import BY_FILE, Import

_EXECUTOR = "marin_core"
_SITES = {"site-packages", "dist-packages"}


@functools.cache
def module_name(path: Path) -> str:
    """The dotted name of a source file; see the module's docstring."""
    named = path.parent if path.name == "__init__.py" else path.with_suffix("")
    return ".".join(named.relative_to(_import_root(path.parent)).parts) or path.parent.name


@functools.cache
def _import_root(directory: Path) -> Path:
    for ancestor in (directory, *directory.parents):
        if _is_project(ancestor) or (ancestor.name == "src" and _is_project(ancestor.parent)):
            return ancestor
    while (directory / "__init__.py").exists():
        directory = directory.parent
    return directory


def _is_project(directory: Path) -> bool:
    return (directory / "pyproject.toml").exists() or (directory / ".git").exists()


@functools.cache
def is_workspace(path: Path) -> bool:
    """True for a source file whose content counts as the user's own."""
    real = path.resolve()  # a package that is linked into site-packages is the user's own
    return (
        path.suffix == ".py"
        and not _is_installed(real)
        and not real.is_relative_to(Path(__file__).resolve().parents[1])
    )


def _is_installed(real: Path) -> bool:
    return not _SITES.isdisjoint(real.parts) or any(real.is_relative_to(directory) for directory in _installed())


@functools.cache
def _installed() -> tuple[Path, ...]:
    """Directories of the standard library and of installed packages."""
    paths = sysconfig.get_paths()
    return tuple({Path(paths[k]).resolve() for k in ("stdlib", "platstdlib", "purelib", "platlib")})


def target(imported: Import, path: Path) -> Path | None:
    """The module (file, or directory of a namespace package) that an import in the file ``path`` names.

    None outside the workspace. ``imported.attribute`` is not looked at.
    """
    if imported.level == BY_FILE:
        return _script(imported.module, path) if imported.module else path
    if not imported.level:
        return locate(imported.module)
    base = path.parent
    for _ in range(imported.level - 1):
        base = base.parent
    return _descend(base, tuple(imported.module.split(".")) if imported.module else ())


@functools.cache
def locate(dotted: str) -> Path | None:
    """File, or namespace directory, of an absolute module name; None outside the workspace."""
    top, *rest = dotted.split(".")
    if top == _EXECUTOR:
        return None
    found = (_descend(base, tuple(rest)) for base in _top_level(top))
    return next((f for f in found if f is not None and (f.is_dir() or is_workspace(f))), None)


def _script(name: str, path: Path) -> Path | None:
    """A script that the file ``path`` names: beside it, or from the top of its project."""
    found = (base / name for base in (path.parent, _import_root(path.parent), _import_root(path.parent).parent))
    return next((f for f in found if f.is_file() and f != path and is_workspace(f)), None)


def loaded_modules(imported: Import, path: Path) -> list[Path]:
    """The modules that an import in the file ``path`` makes Python load: the one it names, the submodule that its
    attribute may be, and the packages around them."""
    module = target(imported, path)
    if module is None:
        return []
    below = submodule(module, imported.attribute) if imported.attribute else None
    found = [m for m in (module, below) if m is not None and m.is_file()]
    return [*found, *(p for m in found for p in packages_around(m))]


@functools.cache
def packages_around(path: Path) -> tuple[Path, ...]:
    """The ``__init__.py`` of every package that a module lies in."""
    found, directory = [], path.parent
    while (package := directory / "__init__.py").exists():
        found.append(package)
        directory = directory.parent
    return tuple(found)


@functools.cache
def _top_level(name: str) -> tuple[Path, ...]:
    # A file beside the script comes before the standard library, whichever of the two this process has loaded.
    find = PathFinder.find_spec if name in sys.stdlib_module_names else importlib.util.find_spec
    try:
        spec = find(name)
    except (ImportError, ValueError, AttributeError):
        return ()
    if spec is None:
        return ()
    if spec.submodule_search_locations is not None:
        places = (Path(os.path.abspath(d)) for d in spec.submodule_search_locations)  # noqa: PTH100
        return tuple(p for p in places if not _is_installed(p.resolve()))
    return (Path(os.path.abspath(spec.origin)),) if spec.origin else ()  # noqa: PTH100


@functools.cache
def _descend(base: Path, rest: tuple[str, ...]) -> Path | None:
    """From a package directory or module file down a dotted path to a module file, or to a namespace directory."""
    for i, name in enumerate(rest):
        if base.suffix == ".py" or not base.is_dir():
            return None
        if (base / f"{name}.py").exists():
            return base / f"{name}.py" if i == len(rest) - 1 else None
        base = base / name
    if base.is_dir():
        return base / "__init__.py" if (base / "__init__.py").exists() else base
    return base if base.exists() else None


def submodule(module: Path, name: str) -> Path | None:
    """The module ``name`` of a package (given as its ``__init__.py``) or namespace directory; None if there is none."""
    if module.suffix == ".py" and module.name != "__init__.py":
        return None
    found = _descend(module if module.is_dir() else module.parent, (name,))
    return found if found is None or found.is_dir() or is_workspace(found) else None


def package_modules(module: Path) -> list[Path]:
    """Every module that lies directly in a package or namespace directory."""
    directory = module if module.is_dir() else module.parent
    return sorted(p for p in directory.glob("*.py") if is_workspace(p))
