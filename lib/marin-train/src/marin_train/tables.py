"""Tables for people: cells under each other, in columns as wide as their widest cell."""

from collections.abc import Collection, Sequence


def align(rows: Sequence[Sequence[str]], *, left: Collection[int]) -> list[str]:
    """A line a row.

    Args:
        rows: of as many cells each; the first are the titles.
        left: columns that begin under each other; the others end so, as numbers are read.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
