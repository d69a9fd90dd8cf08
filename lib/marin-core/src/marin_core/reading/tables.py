"""Tables of plain text: columns as wide as they need, and a last one, of words, that gives way to the terminal.

To a pipe nothing is cut. On a terminal too narrow even for the columns before the last, the last goes to a line of
its own, so that a row is read whole on any width.
"""

from collections.abc import Iterable, Sequence

from marin_core.quantities import format_count

_LEAST_LAST = 16
"""Fewest characters that the last column is worth standing beside the others with."""


MOST_ROWS = 40
"""Rows of single things, a screenful, beyond which a table has a row for all of one name."""


def hidden_line(command: str, number: int, noun: str, rows: int) -> str:
    """Says that a table has been shortened, and how to see all of it."""
    return f"({number:,} {noun}s in {format_count(rows, 'row')} by name; {command} --all lists each)"


def align(rows: Iterable[Sequence[str]], *, width: int | None = None, right: frozenset[int] = frozenset()) -> list[str]:
    """Rows as lines.

    Args:
        rows: cells; all rows have the same number of them.
        width: of the terminal, in characters; None does not cut.
        right: numbers of the columns that are set flush right.
    """
    rows = [[_one_line(cell) for cell in row] for row in rows]
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = sum(w + 2 for w in widths[:-1])
    lines = []
    for *cells, last in rows:
        pairs = enumerate(zip(cells, widths, strict=False))
        line = "".join(f"{c:>{w}}  " if i in right else f"{c:<{w}}  " for i, (c, w) in pairs)
        if width is None or left + len(last) <= width:
            lines.append((line + last).rstrip())
        elif left + _LEAST_LAST <= width:
            lines.append(line + _cut(last, width - left))
        else:
            lines.extend([line.rstrip(), *([f"  {_cut(last, width - 2)}"] if last else [])])
    return lines


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 3)] + "..."


def _one_line(text: str) -> str:
    return " ".join(text.split()) if not text.isprintable() or "\n" in text else text
