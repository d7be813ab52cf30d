"""The benchmark behind the fixture."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from offgrad import memory
from offgrad.memory import format_nbytes
from offgrad.policies import as_policy
from offgrad.session import OffloadSession

_PER_STEP = ("saved_nbytes", "stored_nbytes", "written_nbytes", "read_nbytes", "stall_seconds")


class OffloadBenchmark:
    """Runs a step under several policies, in turn.

    Args:
        benchmark: pytest-benchmark's fixture.

    Attributes:
        figures: by policy, of the call so far.
    """

    def __init__(self, benchmark: Any) -> None:
        self._benchmark = benchmark
        self.figures: dict[str, dict[str, Any]] = {}

    def __call__(
        self,
        step: Callable[[], object],
        policies: Sequence[Any] = ("keep", "disk"),
        *,
        rounds: int = 5,
        warmup_rounds: int = 1,
        directory: str | None = None,
    ) -> dict[str, dict[str, Any]]:
        """Time the step; see the fixture."""
        if isinstance(policies, str):
            raise TypeError(f"policies is a list, such as [{policies!r}], got text")
        turns = [_Turns(step, policy, directory) for policy in policies]
        names = [each.name for each in turns]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"policies must name at least one policy, and none twice; got {names}")

        def one_round() -> None:
            for each in turns:
                each.take()

        self._benchmark.pedantic(one_round, rounds=rounds, warmup_rounds=warmup_rounds)
        # With --benchmark-disable there is one round and no warm-up.
        self.figures = {each.name: each.figures(warmup_rounds) for each in turns}
        self._benchmark.extra_info["offload"] = self.figures
        return self.figures

    def lines(self, test: str) -> list[str]:
        """Return the figures as a table; nothing if the test made none."""
        if not self.figures:
            return []
        head = ("policy", "median", "peak", "saved", "written", "read", "stall")
        cells: list[tuple[str, ...]] = [head]
        for name, each in self.figures.items():
            sizes = ("peak_nbytes", "saved_nbytes", "written_nbytes", "read_nbytes")
            cells.append(
                (
                    name,
                    f"{each['seconds'] * 1e3:.2f} ms",
                    *(format_nbytes(each[size]) for size in sizes),
                    f"{each['stall_seconds'] * 1e3:.2f} ms",
                )
            )
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return [test] + [
            "  ".join(
                [row[0].ljust(widths[0])]
                + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
            )
            for row in cells
        ]


class _Turns:
    """The turns of one policy."""

    def __init__(self, step: Callable[[], object], policy: Any, directory: str | None) -> None:
        self.name = policy if isinstance(policy, str) else str(as_policy(policy))
        self._step = step
        self._session = OffloadSession(policy, directory=directory)
        self._seconds: list[float] = []
        self._peaks: list[int] = []

    def take(self) -> None:
        memory.reset_peak()
        began = time.perf_counter()
        with self._session:
            self._step()
        self._seconds.append(time.perf_counter() - began)
        self._peaks.append(memory.max_allocated())

    def figures(self, warmup_rounds: int) -> dict[str, Any]:
        seconds = self._seconds[warmup_rounds:] or self._seconds
        low, median, high = np.quantile(seconds, (0.25, 0.5, 0.75)).tolist()
        totals = self._session.ledger.as_dict()
        totals["saved_nbytes"] = totals["logical_nbytes"]
        return {
            "seconds": median,
            "quartiles_seconds": [low, high],
            "peak_nbytes": max(self._peaks[warmup_rounds:] or self._peaks),
            **{name: totals[name] / len(self._seconds) for name in _PER_STEP},
        }
