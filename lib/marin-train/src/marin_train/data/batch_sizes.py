"""How many sequences each step takes, and so where in the one stream of draws it begins.

A step that takes more sequences changes nothing about the stream: step s takes draws ``offset(s)`` to ``offset(s + 1)``
(an offset is the sum of the sizes before it), so that nothing is skipped or taken twice where the size changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from marin_train.configs import BatchStage


@dataclass(frozen=True)
class BatchSizes:
    """The sizes of a run's batches.

    Args:
        first: sequences a step from step 0 on.
        stages: other sizes from later steps on, in order.
    """

    first: int
    stages: tuple[BatchStage, ...] = ()

    def at(self, step: int) -> int:
        """Sequences of that step."""
        return next((stage.batch_size for stage in reversed(self.stages) if stage.start <= step), self.first)

    def offset(self, step: int) -> int:
        """Sequences of all steps before it."""
        begun = [stage for stage in self.stages if stage.start < step]
        return sum(
            size * (stop - start)
            for start, stop, size in zip(
                [0, *(stage.start for stage in begun)],
                [*(stage.start for stage in begun), step],
                [self.first, *(stage.batch_size for stage in begun)],
                strict=True,
            )
        )

    def step_of(self, draw: int) -> int:
        """The step that takes that draw, which is also how many whole steps the draws before it make."""
        begun = [0, *(stage.start for stage in self.stages if self.offset(stage.start) <= draw)]
        return begun[-1] + (draw - self.offset(begun[-1])) // self.at(begun[-1])

    def until(self, step: int) -> int | None:
        """The next step after it that has another stage's size; None where none follows."""
        return next((stage.start for stage in self.stages if stage.start > step), None)

    def listed(self) -> Sequence[tuple[int, int]]:
        """First step and size of every stage."""
        return [(0, self.first), *((stage.start, stage.batch_size) for stage in self.stages)]
