"""The package's surface and what importing it costs."""

import subprocess
import sys

import marin_zephyr
from marin_zephyr import errors


def test_every_public_name_resolves():
    for name in set(marin_zephyr.__all__) - {"TokenStore"}:
        assert getattr(marin_zephyr, name) is not None
    assert sorted(marin_zephyr.__all__) == ["Dataset", "Session", "TokenStore", "agg", "col", "lit"]


def test_importing_the_package_loads_nothing_heavy():
    heavy = ("polars", "pyarrow", "numpy", "scipy", "tokenizers", "rich", "tyro")
    code = f"import sys, marin_zephyr; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_errors_survive_the_way_from_a_worker():
    import pickle

    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, Exception):
            again = pickle.loads(pickle.dumps(kind("what happened")))
            assert (type(again), str(again)) == (kind, "what happened")


def test_the_tree_of_errors_in_the_docstring_is_complete():
    names = [n for n, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert all(name in errors.__doc__ for name in names)
