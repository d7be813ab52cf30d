"""Timers of statements, with the kernels' threads set meanwhile."""

import statistics
import time
import timeit
from collections.abc import Callable
from typing import Any

from offgrad import kernels

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


class Measurement:
    """The times of a statement.

    Attributes:
        number_per_run: how often each run repeated the statement.
        raw_times: seconds of each run.
        times: seconds of the statement in each run.
    """

    def __init__(self, number_per_run: int, raw_times: list[float], title: str, threads: int):
        self.number_per_run = number_per_run
        self.raw_times = raw_times
        self.title = title
        self.num_threads = threads

    @property
    def times(self) -> list[float]:
        """Seconds of the statement in each run."""
        return [each / self.number_per_run for each in self.raw_times]

    @property
    def median(self) -> float:
        """The median of `times`."""
        return statistics.median(self.times)

    @property
    def mean(self) -> float:
        """The mean of `times`."""
        return statistics.fmean(self.times)

    @property
    def iqr(self) -> float:
        """The distance of the quartiles of `times`."""
        if len(self.times) < 2:
            return 0.0
        first, _, third = statistics.quantiles(self.times, n=4, method="inclusive")
        return third - first

    def __repr__(self) -> str:
        scale, unit = next((each for each in _UNITS if self.median >= each[0]), _UNITS[-1])
        runs = len(self.raw_times)
        lines = [f"{self.title}", f"  {self.median / scale:.2f} {unit}"]
        if runs > 1:
            lines[-1] = f"  Median: {self.median / scale:.2f} {unit}"
            lines.append(f"  IQR:    {self.iqr / scale:.2f} {unit}")
        lines.append(
            f"  {runs} measurement{'s' * (runs > 1)}, {self.number_per_run} runs "
            f"{'per measurement' if runs > 1 else ''}, {self.num_threads} "
            f"thread{'s' * (self.num_threads > 1)}"
        )
        return "\n".join(line.replace(" ,", ",") for line in lines)


class Timer:
    """Measures a statement.

    Args:
        stmt: source to measure.
        setup: source that runs before, once for each measurement.
        global_setup: source that runs before `setup`.
        timer: the clock.
        globals: names for the sources.
        label: the title; `stmt` if None.
        sub_label: added to the title.
        description: added to the title.
        env: accepted.
        num_threads: of kernels and matrix products meanwhile.
    """

    def __init__(
        self,
        stmt: str = "pass",
        setup: str = "pass",
        global_setup: str = "",
        timer: Callable[[], float] = time.perf_counter,
        globals: dict[str, Any] | None = None,
        label: str | None = None,
        sub_label: str | None = None,
        description: str | None = None,
        env: str | None = None,
        num_threads: int = 1,
    ) -> None:
        self._threads = num_threads
        names = dict(globals or {})
        source = f"{global_setup}\n{setup}" if global_setup else setup
        self._timer = timeit.Timer(stmt, source, timer, names)
        parts = [label or stmt, sub_label, description]
        self._title = ": ".join(part for part in parts if part)

    def _run(self, number: int) -> float:
        before = kernels.get_num_threads()
        kernels.set_num_threads(self._threads)
        try:
            return self._timer.timeit(number)
        finally:
            kernels.set_num_threads(before)

    def timeit(self, number: int = 1_000_000) -> Measurement:
        """Repeat the statement; return one measurement, after some runs to warm up."""
        self._run(max(number // 100, 2))
        return Measurement(number, [self._run(number)], self._title, self._threads)

    def blocked_autorange(
        self,
        callback: Callable[[int, float], Any] | None = None,
        min_run_time: float = 0.2,
    ) -> Measurement:
        """Measure blocks of runs for at least `min_run_time` seconds.

        A block takes at least a thousandth of that, so that reading the clock does not count.
        """
        number, seconds = 1, self._run(1)
        while seconds < min_run_time / 1000 or (number == 1 and seconds < 1e-5):
            number *= 10
            seconds = self._run(number)
        times: list[float] = []
        while not times or sum(times) < min_run_time:
            times.append(self._run(number))
            if callback is not None:
                callback(number, times[-1])
        return Measurement(number, times, self._title, self._threads)

    def adaptive_autorange(
        self,
        threshold: float = 0.1,
        *,
        min_run_time: float = 0.01,
        max_run_time: float = 10.0,
        callback: Callable[[int, float], Any] | None = None,
    ) -> Measurement:
        """Measure until the quartiles differ by less than `threshold` of the median."""
        found = self.blocked_autorange(callback, min_run_time)
        deadline = time.perf_counter() + max_run_time
        while time.perf_counter() < deadline and (
            len(found.raw_times) < 4 or found.iqr > threshold * found.median
        ):
            seconds = self._run(found.number_per_run)
            found.raw_times.append(seconds)
            if callback is not None:
                callback(found.number_per_run, seconds)
        return found
