"""Fails when a public name lacks a docstring, or a module of a wheel does not open with its idea.

Public names are those of each package's ``__all__``, and the methods of its public classes.
"""

import importlib
import inspect
import pkgutil
import sys

PACKAGES = ("marin_core", "marin_zephyr", "marin_rigging", "marin_train", "marin_delphi")


def missing(package: str) -> list[str]:
    """Names under ``package`` that say nothing."""
    root = importlib.import_module(package)
    found = []
    for name in root.__all__:
        value = getattr(root, name)
        if not callable(value) and not inspect.ismodule(value):
            continue
        if not inspect.getdoc(value):
            found.append(f"{package}.{name}")
        if inspect.isclass(value) and value.__module__.startswith("marin_"):
            found += [
                f"{package}.{name}.{method}"
                for method, body in vars(value).items()
                if inspect.isfunction(body) and not method.startswith("_") and not inspect.getdoc(body)
            ]
    for info in pkgutil.walk_packages(root.__path__, f"{package}."):
        if not info.name.endswith("__main__") and not inspect.getdoc(importlib.import_module(info.name)):
            found.append(f"{info.name} (module)")
    return found


if __name__ == "__main__":
    names = [name for package in PACKAGES for name in missing(package)]
    sys.exit("\n".join(["no docstring:", *names]) if names else 0)
