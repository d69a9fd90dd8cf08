"""Workspace sources: which files are the user's own, what they are called, and where an import leads.

The workspace is every Python file outside the standard library and site-packages; an editable install counts, a wheel
does not (its version stands in the environment digest), and neither does marin_core itself, which runs steps but is
no part of their results. Nothing is imported on the way: a top-level name is found with `importlib.util.find_spec`,
everything below it by path arithmetic, so that a plan that reaches into a JAX package costs no import of JAX.

A module's name is its file's dotted path below the nearest ancestor that is called ``src`` or holds a project file
(``pyproject.toml`` or ``.git``), else below its own directory. So ``python experiments/x.py`` and ``import
experiments.x`` name the same module, whatever the working directory and ``sys.path`` are.
"""

import functools
import importlib.util
import sys
import sysconfig
from pathlib import Path

from marin_core.syntax import Import

_EXECUTOR = "marin_core"


@functools.cache
def module_name(path: Path) -> str:
    """The dotted name of a source file; see the module's docstring."""
    named = path.parent if path.name == "__init__.py" else path.with_suffix("")
    return ".".join(named.relative_to(_import_root(path.parent)).parts) or path.parent.name


@functools.cache
def _import_root(directory: Path) -> Path:
    for ancestor in (directory, *directory.parents):
        if ancestor.name == "src" or (ancestor / "pyproject.toml").exists() or (ancestor / ".git").exists():
            return ancestor
    return directory


@functools.cache
def is_workspace(path: Path) -> bool:
    """True for a source file whose content counts as the user's own."""
    return path.suffix == ".py" and not _is_installed(path) and not path.is_relative_to(Path(__file__).resolve().parent)


def _is_installed(path: Path) -> bool:
    return any(path.is_relative_to(directory) for directory in _installed())


@functools.cache
def _installed() -> tuple[Path, ...]:
    """Directories of the standard library and of installed packages."""
    paths = sysconfig.get_paths()
    return tuple({Path(paths[k]).resolve() for k in ("stdlib", "platstdlib", "purelib", "platlib")})


def target(imported: Import, path: Path) -> Path | None:
    """The module (file, or directory of a namespace package) that an import in the file ``path`` names.

    None outside the workspace. ``imported.attribute`` is not looked at.
    """
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
    if top in sys.stdlib_module_names or top == _EXECUTOR:
        return None
    found = (_descend(base, tuple(rest)) for base in _top_level(top))
    return next((f for f in found if f is not None and (f.is_dir() or is_workspace(f))), None)


@functools.cache
def _top_level(name: str) -> tuple[Path, ...]:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return ()
    if spec is None:
        return ()
    if spec.submodule_search_locations is not None:
        return tuple(p for p in (Path(d).resolve() for d in spec.submodule_search_locations) if not _is_installed(p))
    return (Path(spec.origin).resolve(),) if spec.origin else ()


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
