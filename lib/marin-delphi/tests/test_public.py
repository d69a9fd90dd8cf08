"""The package's surface, and what importing it costs."""

import subprocess
import sys
import types

import marin_delphi


def test_all_equals_the_public_names() -> None:
    public = {
        name
        for name, value in vars(marin_delphi).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert public == set(marin_delphi.__all__)


def test_every_public_name_is_documented() -> None:
    undocumented = [name for name in marin_delphi.__all__ if not getattr(marin_delphi, name).__doc__]
    assert undocumented == []


def test_no_module_bears_the_name_of_a_public_function() -> None:
    modules = {name for name, value in vars(marin_delphi).items() if isinstance(value, types.ModuleType)}
    assert modules.isdisjoint(marin_delphi.__all__)


def test_import_loads_nothing_heavy() -> None:
    code = "import sys, marin_delphi; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"numpy", "scipy", "rich", "tyro", "jax", "pandas"}.isdisjoint(loaded)
