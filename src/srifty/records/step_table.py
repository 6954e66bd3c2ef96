"""StepGrid and StepTable: many (job, machine, layout, batch) rows as columns, asked for or measured.

A file of measured steps has thousands of rows; as single StepTiming records they would take longer to make than to
learn from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from srifty.records.step_timing import StepTiming

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]
    Ints = NDArray[np.int64]

Machine = tuple[str, str]
"""(instance type, GPU): what makes two machines of one kind."""


@dataclass(frozen=True)
class StepGrid:
    """Steps that are asked for, row for row."""

    job: tuple[str, ...]
    machine: tuple[Machine, ...]
    layout: tuple[tuple[int, ...], ...]
    """GPUs used on each node."""
    batch_per_gpu: Ints
    gradient_bytes: Floats
    """NaN: not known."""

    def __len__(self) -> int:
        return len(self.job)

    def rows(self, chosen: Ints) -> StepGrid:
        """These rows alone, in this order."""
        return StepGrid(
            tuple(self.job[i] for i in chosen),
            tuple(self.machine[i] for i in chosen),
            tuple(self.layout[i] for i in chosen),
            self.batch_per_gpu[chosen],
            self.gradient_bytes[chosen],
        )


@dataclass(frozen=True)
class StepTable:
    """Measured steps, row for row."""

    grid: StepGrid
    step_s: Floats
    exposed_allreduce_s: Floats
    """NaN: not measured."""

    def __len__(self) -> int:
        return len(self.grid)

    @classmethod
    def of(cls, timings: Sequence[StepTiming]) -> Self:
        """The same timings as columns."""
        import numpy as np

        def floats(values: list[float | None]) -> Floats:
            return np.array([np.nan if value is None else value for value in values], float)

        grid = StepGrid(
            tuple(timing.job for timing in timings),
            tuple((timing.instance_type, timing.gpu) for timing in timings),
            tuple(timing.layout for timing in timings),
            np.array([timing.batch_per_gpu for timing in timings], np.int64),
            floats([timing.gradient_bytes for timing in timings]),
        )
        step_s = floats([timing.step_s for timing in timings])
        return cls(grid, step_s, floats([timing.exposed_allreduce_s for timing in timings]))

    def rows(self, chosen: Ints) -> StepTable:
        """These rows alone, in this order."""
        return StepTable(self.grid.rows(chosen), self.step_s[chosen], self.exposed_allreduce_s[chosen])


@dataclass(frozen=True)
class StepEstimates:
    """What a step of each row of a grid is expected to take."""

    mean_s: Floats
    p10_s: Floats
    p50_s: Floats
    p90_s: Floats
    extrapolated: tuple[str, ...]
    """In what a row lies outside the measured range; empty: in nothing."""
