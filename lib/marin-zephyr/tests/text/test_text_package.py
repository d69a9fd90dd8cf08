"""The package's face: what it exports, and that looking at it loads nothing heavy."""

import subprocess
import sys

from marin_zephyr import text


def test_every_exported_name_resolves() -> None:
    assert {name: getattr(text, name).__name__ for name in text.__all__} == {name: name for name in text.__all__}
    assert dir(text) == sorted(text.__all__)


def test_importing_the_package_loads_no_array_library() -> None:
    code = "import sys, marin_zephyr.text; print(*{'numpy', 'polars', 'pyarrow', 'scipy'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == ""
