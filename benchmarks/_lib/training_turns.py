"""Trainings in separate processes that take turns step by step.

So variants share neither threads nor memory, and other load on the machine slows all of them alike.
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks._lib.json_worker import JsonWorker

Figures = dict[str, Any]


class Worker(JsonWorker):
    """A process that trains one model of one framework: see `benchmarks._lib.training_worker`.

    It ends with the ``with`` block.
    """

    def __init__(
        self,
        framework: str,
        model: str,
        sizes: Sequence[float],
        folder: Any,
        max_nbytes: int | None = None,
    ) -> None:
        job = {
            "framework": framework,
            "model": model,
            "sizes": list(sizes),
            "folder": os.fspath(folder),
            "max_nbytes": max_nbytes,
        }
        super().__init__("benchmarks._lib.training_worker", job)

    def step(self, variant: str, batch: int) -> Figures:
        """Train for a step in the process and return its figures.

        Raises:
            WorkerError: if the process has died; its standard error shows the reason.
        """
        return self.ask(variant=variant, batch=batch)


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return low, median, high
