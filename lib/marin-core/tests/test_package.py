"""The public surface, and what importing it costs."""

import subprocess
import sys

import marin_core


def test_all_equals_the_public_names() -> None:
    loaded = {name for name in marin_core.__all__ if getattr(marin_core, name) is not None}
    submodules = {name for name, value in vars(marin_core).items() if type(value).__name__ == "module"}
    public = {name for name in vars(marin_core) if not name.startswith("_")} - submodules - {"TYPE_CHECKING", "Any"}
    assert loaded == set(marin_core.__all__)
    assert sorted(marin_core.__all__) == marin_core.__all__
    assert public == set(marin_core.__all__) | {"import_module"}


def test_no_public_name_is_a_submodule() -> None:
    for name in marin_core.__all__:
        assert type(getattr(marin_core, name)).__name__ != "module"


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = {"fsspec", "rich", "tyro", "jax", "pyarrow", "ray", "numpy"}
    code = "import sys, marin_core; from marin_core import step, lower, StepRunner; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not heavy & set(done.stdout.split())
