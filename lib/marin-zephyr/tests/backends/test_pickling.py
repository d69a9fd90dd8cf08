"""What travels to a worker by value: modules that a fresh interpreter could not import."""

import pickle
import sys
import types

import pytest

from marin_zephyr.backends.pickling import dumps


@pytest.fixture
def script_module(tmp_path):
    """A module made from a file that no import path reaches, as a running script is."""
    path = tmp_path / "a_script.py"
    path.write_text("def double(x):\n    return 2 * x\n")
    module = types.ModuleType("a_script_elsewhere")
    module.__file__ = str(path)
    exec(compile(path.read_text(), path, "exec"), module.__dict__)
    sys.modules["a_script_elsewhere"] = module
    yield module
    sys.modules.pop("a_script_elsewhere", None)


def test_a_function_of_an_unimportable_module_loads_after_the_module_is_gone(script_module):
    data = dumps(script_module.double)
    del sys.modules["a_script_elsewhere"]
    assert pickle.loads(data)(21) == 42


def test_a_module_that_stands_under_two_names_is_pickled_all_the_same(script_module):
    sys.modules["a_second_name"] = script_module
    try:
        assert pickle.loads(dumps(script_module.double))(21) == 42
    finally:
        del sys.modules["a_second_name"]
