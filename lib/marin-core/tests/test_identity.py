"""Recipes: what enters a step's identity, from wherever and however it is asked for."""

import importlib.metadata
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_core import EncodingError, Resources, Step, UsageError, lower, step
from marin_core.graph import Node
from marin_core.provenance.environments import installed_packages


@step
def node(x: Any = None, *, n: int = 0, log_every: int = 1) -> int:
    return n


def only(handle: Step) -> Node:
    graph = lower(handle)
    return graph.nodes[graph.targets[0]]


def address(handle: Step) -> str:
    return only(handle).address


SCRIPT = """
import enum, sys
from dataclasses import dataclass
from marin_core import Input, lower, step
@dataclass(frozen=True)
class Config:
    tags: frozenset
    table: dict
@step
def first(*, config: Config) -> int:
    return 1
@step
def second(a: int, *, names: set) -> int:
    return 2
def show():
    config = Config(frozenset({"a", "b", "c", "d"}), {"x": 1, 2: "y"})
    for node in lower(second(first(config=config), names={"p", "q", "r"})).nodes.values():
        print(node.address, node.recipe_digest, node.code.digest)
if __name__ == "__main__":
    show()
"""


def test_digests_do_not_depend_on_hash_seed_directory_or_being_the_script(tmp_path: Path, python: Any) -> None:
    (tmp_path / "project" / "experiments").mkdir(parents=True)
    (tmp_path / "project" / "pyproject.toml").write_text("")
    script = tmp_path / "project" / "experiments" / "job.py"
    script.write_text(SCRIPT)
    (tmp_path / "elsewhere").mkdir()
    as_module = "import sys; sys.path.insert(0, sys.argv[1]); import experiments.job as j; j.show()"
    as_plain = "import sys; sys.path.insert(0, sys.argv[1]); import job as j; j.show()"
    outputs = {
        python(script, cwd=tmp_path, PYTHONHASHSEED="1").stdout,
        python(script, cwd=tmp_path / "elsewhere", PYTHONHASHSEED="2").stdout,
        python("-c", as_module, script.parent.parent, cwd=tmp_path, PYTHONHASHSEED="3").stdout,
        python("-c", as_plain, script.parent, cwd=tmp_path, PYTHONHASHSEED="4").stdout,
    }
    assert len(outputs) == 1
    assert outputs.pop().count("\n") == 2


def test_digests_do_not_depend_on_where_the_checkout_lies_or_how_it_is_started(tmp_path: Path, python: Any) -> None:
    def checkout(directory: Path) -> Path:
        (directory / "experiments").mkdir(parents=True)
        (directory / "pyproject.toml").write_text("")
        build = "def build():\n    return second(first(config=Config(frozenset('ab'), {})), names={'p'})\n"
        script = SCRIPT.replace("def show", f"{build}def show")
        (directory / "experiments" / "job.py").write_text(script)
        return directory

    here, there = checkout(tmp_path / "here"), checkout(tmp_path / "deep" / "src" / "there")
    linked = tmp_path / "linked"
    linked.symlink_to(here)
    places = (here, there, linked)
    shown = {python("-m", "experiments.job", cwd=place).stdout for place in places}
    shown |= {python("experiments/job.py", cwd=place).stdout for place in places}
    assert [text.count("\n") for text in shown] == [2]
    plan = "import sys; from marin_core.cli import main; sys.exit(main(['plan', sys.argv[1]]))"
    plans = {python("-c", plan, place / "experiments" / "job.py").stdout for place in places}
    assert [text.count("would run") for text in plans] == [1]


def test_it_does_not_matter_where_the_prefix_lies_or_what_starts_a_script(tmp_path: Path, python: Any) -> None:
    script = tmp_path / "project" / "job.py"
    script.parent.mkdir()
    (script.parent / "pyproject.toml").write_text("")
    build = "def build():\n    return second(first(config=Config(frozenset('ab'), {})), names={'p'})\n"
    ends = "from marin_core import main\nif __name__ == '__main__':\n    main(build)\n"
    script.write_text(SCRIPT.partition("def show")[0] + build + ends)
    command = "import sys; from marin_core.cli import main; sys.exit(main(['run', *sys.argv[1:]]))"
    here, there = tmp_path / "here", tmp_path / "deep" / "there"
    made = python("-c", command, "job.py", "--prefix", here, cwd=script.parent)
    assert "done: 2 of 2 steps executed" in made.stdout, made.stderr
    there.parent.mkdir()
    here.rename(there)
    for start in (("job.py",), ("-m", "job")):
        assert "nothing to do: 2 steps" in python(*start, "--plan", "--prefix", there, cwd=script.parent).stdout


VALUES = """
from test_encoding import Colour, Point, double, of
print(of({"a": {"x", "y", "z"}, "b": frozenset("abc"), "c": {1: Point({"q", "r"}), "1": Colour.RED}, "d": double}))
"""


def test_the_encoding_is_the_same_under_any_hash_seed(python: Any) -> None:
    done = [python("-c", VALUES, cwd=Path(__file__).parent, PYTHONHASHSEED=seed) for seed in ("0", "1", "2")]
    assert len({d.stdout for d in done}) == 1
    assert len(done[0].stdout) == 65, done[0].stderr


def test_resources_retries_names_and_ignored_arguments_enter_no_recipe() -> None:
    handles = node(n=1), node(n=1, log_every=9), node(n=1, resources=Resources(cpus=8), retries=3, name="other")
    assert len({only(h).recipe_digest for h in handles}) == 1


def test_a_version_stands_for_its_step_below_it() -> None:
    assert address(node(node(n=1, version="v1"))) == address(node(node(n=2, version="v1")))
    assert address(node(node(n=1, version="v1"))) != address(node(node(n=1, version="v2")))
    assert address(node(node(n=1, version="v1", name="a"))) != address(node(node(n=1, version="v1", name="b")))
    assert address(node(node(n=1))) != address(node(node(n=2)))
    assert len({only(node(node(n=n), version="v1")).recipe_digest for n in (1, 2)}) == 2


def test_a_step_function_that_another_process_would_not_find_is_refused(module: Callable[[str], Any]) -> None:
    flow = module(
        """
        from marin_core import step
        @step
        def twice(): return 1
        first = twice()
        @step
        def twice(): return 2
        second = twice()
        def wrap(f): return lambda: f()
        @wrap
        @step
        def wrapped(): return 1
        """
    )
    lower(flow.second)
    for handle in (flow.first, flow.wrapped()):
        with pytest.raises(UsageError, match="no longer is the function that this step was made of"):
            lower(handle)


def test_two_files_that_come_out_as_one_module_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Callable[[str], Any]
) -> None:
    for name, value in (("one", 1), ("two", 2)):
        (tmp_path / name).mkdir()
        source = f"from marin_core import step\ndef f(): return {value}\n@step\ndef work(): return f()\n"
        (tmp_path / name / "same.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    flow = module(
        """
        import one.same, two.same
        from marin_core import step
        @step
        def both(): return one.same.f() + two.same.f()
        """
    )
    with pytest.raises(EncodingError, match=r"one/same.py and .*two/same.py are both the module 'same'; put a pypro"):
        lower(flow.one.same.work(), flow.two.same.work())
    digests = {only(flow.both()).code.digest}
    for name in ("one", "two"):
        path = tmp_path / name / "same.py"
        path.write_text(path.read_text().replace("return ", "return 7 + "))
        digests.add(only(flow.both()).code.digest)
    assert len(digests) == 3


def test_code_without_a_file_is_told(python: Any, tmp_path: Path) -> None:
    flow = "from marin_core import lower, step\n@step\ndef f(x=None): return 1\n"
    done = python("-c", f"{flow}lower(f())")
    assert (
        "EncodingError: __main__.f has no source file, as in a heredoc or notebook cell: put steps into a module"
        in done.stderr
    )
    (tmp_path / "flow.py").write_text(flow)
    tried = "for x in (g, C):\n  try: lower(f(x))\n  except Exception as e: print(e)"
    done = python("-c", f"from flow import *\ndef g(): pass\nclass C: pass\n{tried}")
    assert done.stdout.count("which has no source file; define it in a module") == 2
    (tmp_path / "inside").mkdir()
    (tmp_path / "flow.py").rename(tmp_path / "inside" / "zipped.py")
    shutil.make_archive(str(tmp_path / "archive"), "zip", tmp_path / "inside")
    done = python("-c", "import sys; sys.path.insert(0, 'archive.zip')\nfrom zipped import *\nlower(f())")
    assert "EncodingError: zipped.f has no source file" in done.stderr


def test_a_script_that_changes_its_directory_is_still_found(python: Any, tmp_path: Path) -> None:
    source = "import os\nfrom marin_core import lower, step\n@step\ndef f(): return 1\nos.chdir('/')\nlower(f())\n"
    (tmp_path / "job.py").write_text(source)
    done = python("job.py")
    assert done.returncode == 0, done.stderr


def test_relative_imports_of_a_linked_file_are_followed(
    module: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "from .helpers import f\nfrom marin_core import step\n@step\ndef work(): return f()\n"
    for file, text in {
        "shared/real.py": source,
        "linked/__init__.py": "",
        "linked/helpers.py": "def f(): pass",
    }.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    (tmp_path / "linked" / "link.py").symlink_to(tmp_path / "shared" / "real.py")
    monkeypatch.syspath_prepend(tmp_path)
    flow = module("import linked.link")
    assert "linked.helpers:f" in only(flow.linked.link.work()).code.units


@given(st.permutations(["a", "b", "c", "d"]))
def test_the_order_of_a_dict_reaches_neither_identity_nor_body(keys: list[str]) -> None:
    handle = node({k: dict.fromkeys(reversed(keys), 0) for k in keys})
    assert list(handle.arguments["x"]) == list(handle.arguments["x"]["a"]) == sorted(keys)
    steps = node({k: node(n=ord(k)) for k in keys})
    assert list(only(steps).upstream) == [address(node(n=ord(k))) for k in sorted(keys)]


def test_installed_packages_are_those_that_importlib_names() -> None:
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        if distribution.name:
            found.setdefault(distribution.name.lower().replace("_", "-"), distribution.version)
    assert installed_packages() == found
