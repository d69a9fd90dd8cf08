"""Boxes never overlap, edges run downward, and simple shapes are drawn as one would draw them."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_core.web.layout import lay_out


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[float], list[tuple[int, int]]]:
    count = draw(st.integers(1, 30))
    widths = draw(st.lists(st.floats(20, 200), min_size=count, max_size=count))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda p: p[0] < p[1])
    edges = draw(st.lists(pairs, max_size=60, unique=True)) if count > 1 else []
    return widths, edges


@given(graphs())
def test_boxes_never_overlap_and_lie_inside_the_drawing(graph: tuple[list[float], list[tuple[int, int]]]) -> None:
    widths, edges = graph
    layout = lay_out(widths, edges, gap=22)
    rows: dict[float, list[int]] = {}
    for i, (_, y) in enumerate(layout.centers):
        rows.setdefault(y, []).append(i)
    for row in rows.values():
        row.sort(key=lambda i: layout.centers[i][0])
        for a, b in pairwise(row):
            distance = layout.centers[b][0] - layout.centers[a][0]
            assert distance >= (widths[a] + widths[b]) / 2 + 22 - 1e-6
    for (x, y), width in zip(layout.centers, widths, strict=True):
        assert x - width / 2 >= -1e-6
        assert x + width / 2 <= layout.width + 1e-6
        assert 0 < y < layout.height


@given(graphs())
def test_every_edge_runs_downward_from_box_to_box(graph: tuple[list[float], list[tuple[int, int]]]) -> None:
    widths, edges = graph
    layout = lay_out(widths, edges)
    assert len(layout.routes) == len(edges)
    for (a, b), route in zip(edges, layout.routes, strict=True):
        assert route[0] == layout.centers[a]
        assert route[-1] == layout.centers[b]
        assert all(upper[1] < lower[1] for upper, lower in pairwise(route))


@given(graphs())
def test_the_drawing_depends_on_its_arguments_alone(graph: tuple[list[float], list[tuple[int, int]]]) -> None:
    assert lay_out(*graph) == lay_out(*graph)


def test_a_chain_is_a_straight_line() -> None:
    layout = lay_out([50, 90, 70, 30], [(0, 1), (1, 2), (2, 3)])
    assert {round(x, 6) for x, _ in layout.centers} == {45.0}


def test_a_diamond_is_symmetric() -> None:
    layout = lay_out([60, 60, 60, 60], [(0, 1), (0, 2), (1, 3), (2, 3)])
    (top, _), (left, _), (right, _), (bottom, _) = layout.centers
    assert top == pytest.approx(bottom)
    assert abs(left - top) == pytest.approx(abs(right - top))


def test_crossed_pairs_are_uncrossed() -> None:
    layout = lay_out([60] * 4, [(0, 3), (1, 2)])
    (a, _), (b, _), (c, _), (d, _) = layout.centers
    assert (a < b) == (d < c)


def test_a_source_stands_just_above_what_needs_it() -> None:
    layout = lay_out([60] * 4, [(0, 1), (1, 3), (2, 3)], row_height=10)
    assert [y for _, y in layout.centers] == [5, 15, 15, 25]


def test_a_dense_graph_is_laid_out_without_bends() -> None:
    count = 120
    edges = [(a, b) for b in range(count) for a in range(b)]
    layout = lay_out([60] * count, edges)
    assert max(len(route) for route in layout.routes) == 2


def test_nothing_is_laid_out_as_nothing() -> None:
    layout = lay_out([], [])
    assert (layout.width, layout.height, layout.centers) == (0.0, 0, ())
