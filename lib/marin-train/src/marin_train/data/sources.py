"""Where a store's documents come from: the file, or the page, that each was made of, as the store's writer recorded it.

The layout is that of ``part-*.sources`` on the reference page "The token store" of the documentation; a store may lack
it. It is read part by part, when the first document of a part is asked for.
"""

import json
from functools import cache

import numpy as np

from marin_train.data.store import TokenStore
from marin_train.errors import TokenStoreError


class Sources:
    """The sources of a store's documents, by the documents' numbers in the store."""

    def __init__(self, store: TokenStore) -> None:
        self._store = store
        self._ends = np.cumsum([part["num_documents"] for part in store.manifest["parts"]])
        self._part = cache(self._read_part)

    def of(self, document: int) -> str | None:
        """The source of a document; None where the store does not say.

        Raises:
            TokenStoreError: the record cannot be read.
        """
        part = int(np.searchsorted(self._ends, document, side="right"))
        names, ends = self._part(part)
        if not names:
            return None
        before = int(self._ends[part - 1]) if part else 0
        return names[int(np.searchsorted(ends, document - before, side="right"))]

    def _read_part(self, index: int) -> tuple[list[str], np.ndarray]:
        """The names in a part, and one past the last document of each."""
        part = self._store.manifest["parts"][index]
        name = f"{part['name']}.sources"
        if name not in part["files"]:
            return [], np.zeros(0, np.int64)
        try:
            lines = self._store.local_file(name).read_text(encoding="utf-8").splitlines()
            runs = [(str(source), int(count)) for source, count in map(json.loads, lines)]
        except (OSError, ValueError, TypeError) as error:
            raise TokenStoreError(f"{name} of {self._store.path} cannot be read: {error}") from None
        ends = np.cumsum([count for _, count in runs])
        if not len(ends) or ends[-1] != part["num_documents"]:
            raise TokenStoreError(
                f"{name} of {self._store.path} does not tell of the part's {part['num_documents']} documents; write "
                f"the store again"
            )
        return [source for source, _ in runs], ends
