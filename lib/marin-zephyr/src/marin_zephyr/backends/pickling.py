"""Pickling for workers: functions of importable modules by name, all others by value.

A worker is a fresh interpreter with the driver's ``sys.path``. What it could not import (the running script, a
notebook's cell, a module that a test runner loaded by file name) must travel whole.
"""

from __future__ import annotations

import contextlib
import sys
from types import ModuleType
from typing import Any

from marin_zephyr.errors import UserCodeError
from marin_zephyr.sources import find_source


def dumps(value: Any) -> bytes:
    """Pickles a value so that a worker can load it.

    Raises:
        UserCodeError: a function closes over something that cannot be pickled.
    """
    import cloudpickle

    # One module may stand under two names, as a main script does in multiprocessing's children.
    modules = {id(m): m for m in list(sys.modules.values()) if isinstance(m, ModuleType) and _must_travel(m)}
    with contextlib.ExitStack() as stack:
        for module in modules.values():
            cloudpickle.register_pickle_by_value(module)
            stack.callback(cloudpickle.unregister_pickle_by_value, module)
        try:
            return cloudpickle.dumps(value)
        except Exception as e:
            message = f"a function of this stage cannot be sent to a worker ({type(e).__name__}: {e})"
            raise UserCodeError(f'{message}; open such things inside the function, or use backend="inline"') from e


def _must_travel(module: ModuleType) -> bool:
    """Whether a fresh interpreter would not find this very module by its name."""
    file = getattr(module, "__file__", None)
    name = getattr(module, "__name__", "")
    if file is None or name == "__main__" or name.partition(".")[0] in sys.stdlib_module_names:
        return False  # built in; `__main__` travels by value without being told
    if "site-packages" in file or sys.modules.get(name) is not module:
        return False
    return find_source(name) != file
