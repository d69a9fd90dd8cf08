"""Graphs of trivial steps, as a script of marin-core: each body writes one small file.

    python bench/flows/graphs.py --shape layers --n 10000 --launcher inline

``wide``: n - 1 independent steps and one that joins them. ``layers``: ten layers, each step taking two of the layer
before, and a join. ``chain``: each step takes the one before. ``diamonds``: n stacked, with 2^n paths.
"""

from typing import Any, Literal

from marin_core import Input, Out, main, step

Shape = Literal["wide", "layers", "chain", "diamonds"]


@step
def leaf(out: Out, *, i: int) -> int:
    (out / "value.txt").write_text(str(i))
    return i


@step
def link(out: Out, source: Input, *, i: int) -> int:
    (out / "value.txt").write_text(str(i))
    return i


@step
def pair(out: Out, left: Input, right: Input, *, i: int) -> int:
    (out / "value.txt").write_text(str(i))
    return i


@step
def join(out: Out, sources: list[Input]) -> int:
    (out / "value.txt").write_text(str(len(sources)))
    return len(sources)


def build(*, shape: Shape = "wide", n: int = 1000) -> Any:
    """A graph of n steps (3n + 1 for diamonds)."""
    if shape == "wide":
        return join([leaf(i=i) for i in range(n - 1)])
    if shape == "chain":
        last = leaf(i=0)
        for i in range(1, n):
            last = link(last, i=i)
        return last
    if shape == "diamonds":
        last = leaf(i=0)
        for i in range(n):
            last = pair(link(last, i=2 * i), link(last, i=2 * i + 1), i=i)
        return last
    width = (n - 1) // 10
    row = [leaf(i=i) for i in range(width)]
    for depth in range(1, 10):
        row = [pair(row[j], row[(j + 1) % width], i=depth * width + j) for j in range(width)]
    return join(row)


if __name__ == "__main__":
    main(build)
