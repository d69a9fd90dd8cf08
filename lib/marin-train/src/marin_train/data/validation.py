"""A component's held-out sequences as batches, in an order that never changes."""

import numpy as np

from marin_train.data.packing import Packing, Sequences


class Validation:
    """What one component of a mixture never trains on.

    Args:
        packing: the component's sequences.
        numbers: Int64[n], those held out.
    """

    def __init__(self, packing: Packing, numbers: np.ndarray) -> None:
        self._packing, self._numbers = packing, numbers

    @property
    def num_sequences(self) -> int:
        """How many there are."""
        return len(self._numbers)

    def batch(self, index: int, batch_size: int) -> Sequences:
        """The ``index``-th ``batch_size`` sequences; the last batch may be short.

        Raises:
            IndexError: there are not so many.
        """
        numbers = self._numbers[index * batch_size : (index + 1) * batch_size]
        if index < 0 or not len(numbers):
            raise IndexError(f"batch {index} of {self.num_sequences} sequences held out, {batch_size} a batch")
        return self._packing.read(numbers)
