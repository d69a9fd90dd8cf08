"""The page of a plan: drawn, with decisions and reasons, and as harmless as a run's."""

from collections.abc import Callable
from types import ModuleType

from marin_core import StepRunner, lower
from marin_core.web.plan import render_plan

SOURCE = """
from marin_core import Input, Out, step

@step
def text(out: Out, *, word: str) -> int:
    (out / "t.txt").write_text(word)
    return len(word)

@step
def count(source: Input, *, factor: str) -> int:
    return 1
"""
ATTACK = "</script></style><img src=x onerror=alert(1)>'\""


def test_a_plan_is_drawn_with_what_is_reused_and_what_would_run(
    prefix: str, module: Callable[[str], ModuleType]
) -> None:
    flow = module(SOURCE)
    source = flow.text(word="ant")
    assert StepRunner(prefix, launcher="inline").run(lower(flow.count(source, factor="1"))).ok
    graph = lower(flow.count(source, factor="2"))
    page = render_plan(graph, graph.plan(prefix), script="job.py", prefix=prefix, at=0.0)
    assert page.startswith("<!doctype html>")
    assert "<title>job.py · plan · " in page
    assert ">up to date<" in page
    assert ">recipe is new: factor: &#x27;1&#x27; -&gt; &#x27;2&#x27;<" in page
    assert "2: 1 up to date, 1 would run" in page
    assert ">1 would run<" in page
    assert ">reused<" not in page
    assert ">would run<" in page
    assert ">pending<" not in page
    assert page.count('class="edge"') == 1
    assert "http" not in page.split("</head>")[1].replace("http://www.w3.org", "")


def test_nothing_that_a_plan_shows_becomes_markup(prefix: str, module: Callable[[str], ModuleType]) -> None:
    flow = module(SOURCE)
    graph = lower(flow.count(flow.text(word=ATTACK), factor=ATTACK))
    page = render_plan(graph, graph.plan(prefix), script=ATTACK, prefix=prefix, at=0.0)
    assert "<img" not in page
    assert page.count("<script>") == 1
    assert "Content-Security-Policy" in page
