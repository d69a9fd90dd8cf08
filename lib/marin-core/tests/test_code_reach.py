"""Reach: whatever way a step comes by a piece of code, its change counts and is named; what it cannot run does not."""

from collections.abc import Callable

import pytest

from marin_core.code import Code

STEP = "from marin_core import step\n"

REACHED = {
    "another library under the same name": (
        {"main": "import math as m\n@step\ndef work(): return m.sqrt"},
        ("main", "math", "cmath"),
        "pkg.main:work",
    ),
    "another function of a library under the same name": (
        {"main": "from math import sin as f\n@step\ndef work(): return f(1)"},
        ("main", "sin", "cos"),
        "pkg.main:work",
    ),
    "two libraries' functions whose names are exchanged between modules": (
        {
            "a": "from math import sin as f",
            "b": "from math import cos as f",
            "main": "from pkg import a, b\ndef g(): return a.f(0), b.f(0)\n@step\ndef work(): return g()",
        },
        ("a", "sin", "tan"),
        "pkg.main:g",
    ),
    "a field of a dataclass inside a function": (
        {
            "main": "from dataclasses import dataclass, fields\n@step\ndef work():\n    @dataclass\n"
            "    class C:\n        n: int = 1\n    return fields(C)"
        },
        ("main", "n: int", "n: float"),
        "pkg.main:work",
    ),
    "which of two imports of one name comes last": (
        {"main": "@step\ndef work():\n    from math import sin as f\n    from math import cos as f\n    return f(0)"},
        ("main", "sin as f\n    from math import cos", "cos as f\n    from math import sin"),
        "pkg.main:work",
    ),
    "a base class": (
        {
            "base": "class Base:\n    def f(self): return 1",
            "main": "from pkg.base import Base\nclass A(Base): pass\n@step\ndef work(): return A().f()",
        },
        ("base", "return 1", "return 2"),
        "pkg.base:Base",
    ),
    "a property": (
        {"main": "class A:\n    @property\n    def f(self): return 1\n@step\ndef work(): return A().f"},
        ("main", "return 1", "return 2"),
        "pkg.main:A",
    ),
    "a method that is set from outside the class": (
        {"main": "class A: pass\ndef g(self): return 1\nA.f = g\n@step\ndef work(): return A().f()"},
        ("main", "return 1", "return 2"),
        "pkg.main:g",
    ),
    "a decorator of a helper": (
        {
            "main": "def twice(f): return lambda: 2 * f()\n@twice\ndef helper(): return 1\n@step\n"
            "def work(): return helper()"
        },
        ("main", "2 * f()", "3 * f()"),
        "pkg.main:twice",
    ),
    "a default of a helper": (
        {"main": "LIMIT = 1\ndef helper(n=LIMIT): return n\n@step\ndef work(): return helper()"},
        ("main", "LIMIT = 1", "LIMIT = 2"),
        "pkg.main:LIMIT",
    ),
    "a computed constant": (
        {"main": "A = 1\nB = [A + n for n in range(3)]\n@step\ndef work(): return B"},
        ("main", "A = 1", "A = 2"),
        "pkg.main:A",
    ),
    "a constant that a loop fills": (
        {"main": "T = {}\nfor n in (1, 2):\n    T[n] = n\n@step\ndef work(): return T"},
        ("main", "(1, 2)", "(1, 3)"),
        "pkg.main:T",
    ),
    "a constant that an entry is taken from": (
        {"main": "T = {1: 1, 2: 2}\ndel T[1]\n@step\ndef work(): return T"},
        ("main", "del T[1]", "del T[2]"),
        "pkg.main:T",
    ),
    "a constant bound on the way": (
        {"main": "print(LIMIT := 1)\n@step\ndef work(): return LIMIT"},
        ("main", ":= 1", ":= 2"),
        "pkg.main:LIMIT",
    ),
    "a constant set by setattr": (
        {"main": "class A: n = 0\nsetattr(A, 'n', 1)\n@step\ndef work(): return A.n"},
        ("main", "'n', 1", "'n', 2"),
        "pkg.main:setattr()",
    ),
    "a constant that a call sets": (
        {
            "main": "n = 0\ndef configure():\n    global n\n    n = 1\nconfigure()\n@step\ndef work(): return n",
        },
        ("main", "    n = 1", "    n = 2"),
        "pkg.main:configure",
    ),
    "another module's constant, set from here": (
        {
            "config": "LIMIT = 1",
            "helper": "from pkg import config\ndef f(): return config.LIMIT",
            "main": "from pkg import config\nfrom pkg.helper import f\nconfig.LIMIT = 2\n@step\ndef work(): return f()",
        },
        ("main", "LIMIT = 2", "LIMIT = 3"),
        "pkg.main:config",
    ),
    "what a decorator registers": (
        {
            "registry": "ALL = {}\ndef register(f):\n    ALL[f.__name__] = f\n    return f",
            "plugins": "from pkg.registry import register\n@register\ndef plugin(): return 1",
            "main": "import pkg.plugins\nfrom pkg.registry import ALL\n@step\ndef work(): return ALL['plugin']()",
        },
        ("plugins", "return 1", "return 2"),
        "pkg.plugins:plugin",
    ),
    "what a call registers, in a module that the body loads": (
        {
            "registry": "ALL = []",
            "plugins": "from pkg.registry import ALL\ndef plugin(): return 1\nALL.append(plugin)",
            "main": "from pkg import registry\n@step\ndef work():\n"
            "    import pkg.plugins\n    return registry.ALL[0]()",
        },
        ("plugins", "return 1", "return 2"),
        "pkg.plugins:plugin",
    ),
    "what a package registers when it is loaded": (
        {
            "__init__": "from pkg.registry import register\nregister(1)",
            "registry": "ALL = []\ndef register(n): ALL.append(n)",
            "main": "from pkg.registry import ALL\n@step\ndef work(): return ALL",
        },
        ("__init__", "register(1)", "register(2)"),
        "pkg:register()",
    ),
    "what the package around a step sets when it is loaded": (
        {
            "__init__": "import os\nos.environ['MARIN_X'] = '1'",
            "main": "import os\n@step\ndef work(): return os.environ['MARIN_X']",
        },
        ("__init__", "'1'", "'2'"),
        "pkg:os",
    ),
    "a subclass that its base class registers": (
        {
            "base": "class Base:\n    all = []\n    def __init_subclass__(cls): Base.all.append(cls)",
            "plugins": "from pkg.base import Base\nclass Mid(Base): pass\n"
            "class Plugin(Mid):\n    def f(self): return 1",
            "main": "from pkg import plugins\nfrom pkg.base import Base\n@step\ndef work(): return Base.all[-1]().f()",
        },
        ("plugins", "return 1", "return 2"),
        "pkg.plugins:Plugin",
    ),
    "an overload of a generic function": (
        {
            "main": "from functools import singledispatch\n@singledispatch\ndef f(x): return 0\n"
            "@f.register\ndef _(x: int): return 1\n@step\ndef work(): return f(1)"
        },
        ("main", "return 1", "return 2"),
        "pkg.main:_",
    ),
    "a function found by name in this module": (
        {"main": "def f(): return 1\n@step\ndef work(n='f'): return globals()[n]()"},
        ("main", "return 1", "return 2"),
        "pkg.main:f",
    ),
    "a function found by name in sys.modules": (
        {"main": "import sys\ndef f(): return 1\n@step\ndef work(n='f'): return getattr(sys.modules[__name__], n)()"},
        ("main", "return 1", "return 2"),
        "pkg.main:f",
    ),
    "a relative import by text": (
        {
            "helpers": "def f(): return 1",
            "main": "from importlib import import_module\n@step\n"
            "def work(): return import_module('.helpers', 'pkg').f()",
        },
        ("helpers", "return 1", "return 2"),
        "pkg.helpers:f",
    ),
    "a function named as module:function": (
        {"helpers": "def f(): return 1\ndef g(): return 1", "main": "@step\ndef work(n='pkg.helpers:f'): return n"},
        ("helpers", "f(): return 1", "f(): return 2"),
        "pkg.helpers:f",
    ),
    "a script that a subprocess runs": (
        {"tool": "print(1)", "main": "import subprocess\n@step\ndef work(): subprocess.run(['python', 'pkg/tool.py'])"},
        ("tool", "print(1)", "print(2)"),
        "pkg.tool:print()",
    ),
    "a lazy export without a declaration": (
        {
            "__init__": "from importlib import import_module\n_LAZY = {'f': 'helpers'}\n"
            "def __getattr__(name): return getattr(import_module(f'{__name__}.{_LAZY[name]}'), name)",
            "helpers": "def f(): return 1",
            "main": "import pkg\n@step\ndef work(): return pkg.f()",
        },
        ("helpers", "return 1", "return 2"),
        "pkg.helpers:f",
    ),
    "the first of two imports of one name": (
        {
            "fast": "def f(): return 1",
            "slow": "def f(): return 2",
            "main": "@step\ndef work():\n    try:\n        from pkg.fast import f\n    except ImportError:\n"
            "        from pkg.slow import f\n    return f()",
        },
        ("fast", "return 1", "return 3"),
        "pkg.fast:f",
    ),
    "one of two imports in a helper": (
        {
            "fast": "def f(): return 1",
            "slow": "def f(): return 2",
            "helper": "def go(n):\n    if n:\n        import pkg.fast as impl\n    else:\n"
            "        import pkg.slow as impl\n    return impl.f()",
            "main": "from pkg.helper import go\n@step\ndef work(): return go(1)",
        },
        ("fast", "return 1", "return 3"),
        "pkg.fast:f",
    ),
    "an import that a body makes global": (
        {
            "helpers": "def f(): return 1",
            "main": "@step\ndef work():\n    global h\n    import pkg.helpers as h\n    return h.f()",
        },
        ("helpers", "return 1", "return 2"),
        "pkg.helpers:f",
    ),
    "a global import that another function reads": (
        {
            "helpers": "def f(): return 1",
            "main": "h = None\ndef setup():\n    global h\n    from pkg import helpers as h\n"
            "def use(): return h.f()\n@step\ndef work():\n    setup()\n    return use()",
        },
        ("helpers", "return 1", "return 2"),
        "pkg.helpers:f",
    ),
    "an import that becomes an attribute of a class": (
        {
            "helpers": "def f(*a): return 1",
            "main": "class C:\n    from pkg.helpers import f\n    def g(self): return self.f()\n@step\n"
            "def work(): return C().g()",
        },
        ("helpers", "return 1", "return 2"),
        "pkg.helpers:f",
    ),
    "a name that a class imports and a method reads from the module": (
        {
            "helpers": "def f(*a): return 1",
            "others": "def f(*a): return 1",
            "main": "from pkg.others import f\nclass C:\n    from pkg.helpers import f\n"
            "    def g(self): return f()\n@step\ndef work(): return C().g()",
        },
        ("others", "return 1", "return 2"),
        "pkg.others:f",
    ),
    "a module that import_module gets by keyword": (
        {
            "main": "import importlib\n@step\ndef work(): return importlib.import_module(name='pkg').f()",
            "__init__": "def f(): return 1",
        },
        ("__init__", "return 1", "return 2"),
        "pkg:f",
    ),
    "a module that a constant names in one word": (
        {
            "__init__": "def f(): return 1",
            "main": "import importlib\nNAME = 'pkg'\n@step\ndef work(): return importlib.import_module(NAME).f()",
        },
        ("__init__", "return 1", "return 2"),
        "pkg:f",
    ),
    "a package that python -m runs": (
        {
            "__main__": "if __name__ == '__main__':\n    print(1)",
            "main": "import subprocess, sys\n@step\ndef work(): subprocess.run([sys.executable, '-m', 'pkg'])",
        },
        ("__main__", "print(1)", "print(2)"),
        "pkg.__main__:print()",
    ),
    "a script whose path is put together by parts": (
        {
            "tool": "print(1)",
            "main": "from pathlib import Path\nHERE = Path(__file__).parent.parent\n@step\n"
            "def work(): return HERE / 'pkg' / 'tool.py'",
        },
        ("tool", "print(1)", "print(2)"),
        "pkg.tool:print()",
    ),
    "a script whose path os.path.join puts together": (
        {
            "tool": "print(1)",
            "main": "import os\n@step\ndef work(here: str): return os.path.join(here, 'pkg', 'tool.py')",
        },
        ("tool", "print(1)", "print(2)"),
        "pkg.tool:print()",
    ),
    "an enum's value": (
        {"main": "import enum\nclass E(enum.Enum):\n    A = 1\n@step\ndef work(): return E.A.value"},
        ("main", "A = 1", "A = 2"),
        "pkg.main:E",
    ),
    "a dataclass's default": (
        {
            "main": "from dataclasses import dataclass\n@dataclass\nclass C:\n    n: int = 1\n@step\n"
            "def work(): return C().n"
        },
        ("main", "n: int = 1", "n: int = 2"),
        "pkg.main:C",
    ),
    "a nested function and a comprehension": (
        {
            "main": "def f(n): return n\n@step\ndef work():\n"
            "    def inner():\n        return [f(n) for n in range(3)]\n    return inner()"
        },
        ("main", "return n\n", "return -n\n"),
        "pkg.main:f",
    ),
    "what a failed import falls back to": (
        {
            "main": "try:\n    from nowhere import f\nexcept ImportError:\n    def f(): return 1\n"
            "@step\ndef work(): return f()"
        },
        ("main", "return 1", "return 2"),
        "pkg.main:f",
    ),
}


@pytest.mark.parametrize("case", REACHED)
def test_whatever_way_code_is_reached_its_change_counts_and_is_named(code_of: Callable[..., Code], case: str) -> None:
    files, (file, old, new), unit = REACHED[case]
    files = {name: STEP + source if name == "main" else source for name, source in files.items()}
    assert old in files[file]
    before, after = code_of(**files), code_of(**(files | {file: files[file].replace(old, new, 1)}))
    changed = {n for n in before.units | after.units if before.units.get(n) != after.units.get(n)}
    assert unit in changed
    assert before.digest != after.digest


NOT_REACHED = {
    "a helper that nobody calls": (
        {"main": "def f(): return 1\n@step\ndef work(): return 2"},
        ("main", "return 1", "return 3"),
    ),
    "what only type checkers import": (
        {
            "types": "class C:\n    def f(self): return 1",
            "main": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pkg.types import C\n"
            "def helper(c):\n    x: C = c\n    return x\n@step\ndef work(): return helper(1)",
        },
        ("types", "return 1", "return 2"),
    ),
    "what runs only when the script does": (
        {"main": "import sys\n@step\ndef work(): return 1\nif __name__ == '__main__':\n    print(1)"},
        ("main", "print(1)", "print(2)"),
    ),
    "the script's own call of main": (
        {
            "main": "from marin_core import main\n@step\ndef work(): return 1\ndef build(): return 1\n"
            "if not work:\n    main(build)"
        },
        ("main", "build(): return 1", "build(): return 2"),
    ),
    "what a library decorates": (
        {"main": "import functools\n@functools.cache\ndef f(): return 1\n@step\ndef work(): return 2"},
        ("main", "return 1", "return 3"),
    ),
    "a library that nobody reads": (
        {"main": "import json as j\n@step\ndef work(): return 1"},
        ("main", "json", "math"),
    ),
    "a library that another function begins to read": (
        {"main": "import json\ndef other(): return 1\n@step\ndef work(): return json"},
        ("main", "import json\ndef other(): return 1", "import json\nimport math\ndef other(): return math.pi"),
    ),
    "imports that are sorted, and moved": (
        {
            "main": "import json\nX = 1\nfrom math import sin, cos\n@step\ndef work():\n    import os\n"
            "    from sys import path, argv\n    return json, sin, cos, os, path, argv, X"
        },
        (
            "main",
            "import json\nX = 1\nfrom math import sin, cos\n@step\ndef work():\n    import os\n"
            "    from sys import path, argv",
            "from math import cos, sin\nX = 1\nimport json\n@step\ndef work():\n"
            "    from sys import argv, path\n    import os",
        ),
    ),
    "another import of the same library": (
        {"main": "import os\n@step\ndef work(): return os.sep"},
        ("main", "import os\n", "import os\nimport os.path\n"),
    ),
    "an import for type checkers": (
        {"main": "@step\ndef work(): return 1"},
        ("main", "@step", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from json import loads\n@step"),
    ),
    "a declaration of a local variable": (
        {"main": "class C: pass\n@step\ndef work():\n    n = 1\n    return n"},
        ("main", "n = 1", "n: C\n    n = 1"),
    ),
    "an annotation of an assignment in a function": (
        {"main": "def f():\n    n = 1\n    return n\n@step\ndef work(): return f()"},
        ("main", "n = 1", "n: undefined = 1"),
    ),
    "what a step is said to return": (
        {"main": "class C: pass\n@step\ndef work(): return 1"},
        ("main", "work():", "work() -> C:"),
    ),
    "a docstring, pass and layout": (
        {
            "main": "def f():\n    'Doc.'\n    if True:\n        pass\n    return (1,\n 2)\n"
            "@step\ndef work(): return f()"
        },
        (
            "main",
            "'Doc.'\n    if True:\n        pass\n    return (1,\n 2)",
            "if (True): 'why'\n    return (1, 2)  # both",
        ),
    ),
}


@pytest.mark.parametrize("case", NOT_REACHED)
def test_what_is_not_reached_does_not_count(code_of: Callable[..., Code], case: str) -> None:
    files, (file, old, new) = NOT_REACHED[case]
    files = {name: STEP + source if name == "main" else source for name, source in files.items()}
    assert old in files[file]
    before = code_of(**files)
    assert before.digest == code_of(**(files | {file: files[file].replace(old, new, 1)})).digest
