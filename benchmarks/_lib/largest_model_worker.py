"""The worker process of `benchmarks.bench_largest_model`: trains one GPT for two steps.

A process of PyTorch does not import offgrad: its libraries count in the limit as well.
"""

import json
import resource
import time
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any

from benchmarks._lib.json_worker import serve

Figures = dict[str, Any]
_STEPS = 2


class Trial:
    """A library and its options under a limit of the process's memory.

    Args:
        library: ``"offgrad"``, or a function of `benchmarks._lib.torch_offload`.
        options: of the library's training.
        sizes: width, heads and context.
        max_nbytes: the limit (Linux's RLIMIT_DATA).
        directory: where libraries write.
    """

    def __init__(
        self,
        library: str,
        options: dict[str, Any],
        sizes: list[int],
        max_nbytes: int,
        directory: str,
    ) -> None:
        self._library, self._options = library, options
        self._sizes, self._max_nbytes, self._directory = sizes, max_nbytes, directory

    def answer(self, layers: int) -> Figures:
        """Train; return the figures, or why it failed."""
        steps = self._offgrad if self._library == "offgrad" else self._torch
        try:
            losses, seconds = steps(layers)
        except Exception as error:  # each library has its own for lack of memory
            return {"failed": f"{type(error).__name__}: {error}"[:2000]}
        if not all(map(isfinite, losses)):
            return {"failed": f"the losses are {losses}"}
        return {"losses": losses, "seconds": seconds, **_memory()}

    def _offgrad(self, layers: int) -> tuple[list[float], list[float]]:
        from benchmarks._lib.out_of_core_worker import Training

        training = Training(
            [layers, *self._sizes],
            1,
            max_nbytes=self._max_nbytes,
            directory=self._directory,
            **self._options,
        )
        replies = [training.answer(number) for number in range(_STEPS)]
        for each in replies:
            if "out_of_memory" in each:
                raise MemoryError(each["out_of_memory"])
        return [each["loss"] for each in replies], [each["seconds"] for each in replies]

    def _torch(self, layers: int) -> tuple[list[float], list[float]]:
        from benchmarks._lib import torch_offload

        make = getattr(torch_offload, self._library)
        context = self._sizes[-1]
        # As for offgrad: libraries are loaded and threads run before the limit applies.
        tiny = make([1, 128, 2, context], self._directory, **self._options)
        _timed(tiny, context)
        del tiny
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (self._max_nbytes, hard))
        step = make([layers, *self._sizes], self._directory, **self._options)
        results = [_timed(step, context) for _ in range(_STEPS)]
        return [loss for loss, _ in results], [seconds for _, seconds in results]


def _timed(step: Callable[[Any, Any], float], context: int) -> tuple[float, float]:
    """Train a step of PyTorch on one sequence; return the loss and the seconds."""
    import torch

    tokens = torch.randint(0, 256, (1, context + 1))
    began = time.perf_counter()
    loss = step(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
    return loss, time.perf_counter() - began


def _memory() -> dict[str, int]:
    """Return the peak of resident memory, and private writable memory now."""
    lines = Path("/proc/self/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    names = {"peak_rss_nbytes": "VmHWM", "data_nbytes": "VmData"}
    return {name: int(status[key].split()[0]) << 10 for name, key in names.items()}


def main(job: str) -> None:
    """Serve the requests on standard input until it ends."""
    serve(Trial(**json.loads(job)).answer)
