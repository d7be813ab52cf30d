"""Trainings in separate processes that take turns step by step.

So variants share neither threads nor memory, and other load on the machine slows all of them alike.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

_START = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from benchmarks._lib.training_worker import main; main(sys.argv[1])"
)

Figures = dict[str, Any]


class WorkerError(RuntimeError):
    """A worker process has died."""


class Worker:
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
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, json.dumps(job), *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def step(self, variant: str, batch: int) -> Figures:
        """Train for a step in the process and return its figures.

        Raises:
            WorkerError: if the process has died; its standard error shows the reason.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"variant": variant, "batch": batch}
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise WorkerError(f"the worker exited with {self._process.wait()} in step {request}")
        figures: Figures = json.loads(line)
        return figures

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.communicate()


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return low, median, high
