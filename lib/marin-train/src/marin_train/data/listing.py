"""What a step is trained on, row by row: the component, its sequence, and where in its store that begins.

It follows from manifests and the mixture alone, so it can be asked of any step of any run, before it or years after.
The store tells the rest: `zephyr inspect STORE --token N` shows the document of a token, and the file that came from.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from marin_train.data.mixture import Mixture
from marin_train.tables import align


@dataclass(frozen=True)
class RowListing:
    """One row of a batch.

    Attributes:
        row: its number in the batch, from 0.
        component: the component's name.
        store: where that component's store is.
        sequence: the number of the sequence in the store's packing.
        first_token: the number of its first token in the store.
        num_tokens: how many of the store's tokens are in it, the last of them a target only.
    """

    row: int
    component: str
    store: str
    sequence: int
    first_token: int
    num_tokens: int

    @property
    def last_token(self) -> int:
        """The number of its last token in the store."""
        return self.first_token + self.num_tokens - 1

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def list_rows(mixture: Mixture, step: int) -> list[RowListing]:
    """The rows of the batch of ``step``, counted from 0. No token is read.

    Raises:
        ExhaustedError: the components' epoch limits leave no data for it.
        IndexError: the step is negative.
    """
    where = mixture.rows(step)
    firsts, sizes = np.empty((2, len(where.component)), np.int64)
    for index in set(where.component.tolist()):
        rows = where.component == index
        firsts[rows], sizes[rows] = mixture.packings[index].extents(where.number[rows])
    paths = {component.name: component.path for component in mixture.config.components}
    return [
        RowListing(row, name := mixture.names[index], paths[name], number, first, size)
        for row, (index, number, first, size) in enumerate(
            zip(where.component.tolist(), where.number.tolist(), firsts.tolist(), sizes.tolist(), strict=True)
        )
    ]


def to_text(rows: list[RowListing], *, step: int) -> str:
    """The rows as a table, and how to go on from there."""
    cells = [
        ("row", "component", "sequence", "tokens"),
        *((str(r.row), r.component, f"{r.sequence:,}", f"{r.first_token}-{r.last_token}") for r in rows),
    ]
    ask = f"a token's document and file: zephyr inspect {rows[0].store} --token {rows[0].first_token}"
    return "\n".join(
        [
            f"step {step}, counted from 0 (metrics.jsonl and blame call it {step + 1})",
            "",
            *align(cells, left={1}),
            "",
            ask,
        ]
    )
