"""Interleaved turns of loops over stores, and their figures, for the benchmarks of stores.

Rates are in GB/s of 10**9 bytes. CPU seconds cover all threads of this process, in user code and in
the kernel, and the background work after a loop; the next loop begins when that work is done.

OFFGRAD_BENCH_STORES=quick in the environment shortens every run to a check that it works; its
figures mean little.
"""

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from offgrad.cli.bench_storage.loops import KB, MB, Variants

GB = 1e9
QUICK = os.environ.get("OFFGRAD_BENCH_STORES") == "quick"
WARMUP_ROUNDS, ROUNDS = (1, 3) if QUICK else (2, 11)
TOTAL = 64 * MB if QUICK else 512 * MB
"""Upper bound of the bytes of arrays in a round."""
SIZES = [64 * KB, MB, 16 * MB] if QUICK else [each * KB for each in (64, 256, KB, 4 * KB)]
if not QUICK:
    SIZES += [16 * MB, 64 * MB]


@dataclass(frozen=True)
class Turn:
    """Bytes and times of one turn of a variant."""

    nbytes: int
    seconds: float
    cpu_seconds: float

    @property
    def rate(self) -> float:
        """GB/s."""
        return self.nbytes / GB / self.seconds


def take_turns(benchmark: Any, variants: Variants) -> dict[str, list[Turn]]:
    """Run all variants in turn, round by round; return their turns without the warm-up."""
    turns: dict[str, list[Turn]] = {name: [] for name in variants}

    def every_variant() -> None:
        for name, run in variants.items():
            began, cpu_began = time.perf_counter(), time.process_time()
            nbytes = run()
            seconds = time.perf_counter() - began
            turns[name].append(Turn(nbytes, seconds, _cpu_time_when_quiet() - cpu_began))

    benchmark.pedantic(every_variant, rounds=ROUNDS, warmup_rounds=WARMUP_ROUNDS)
    # With --benchmark-disable there is one round and no warm-up.
    return {name: row[WARMUP_ROUNDS:] or row for name, row in turns.items()}


def _cpu_time_when_quiet() -> float:
    """Wait for background work such as freeing space; return the CPU seconds until it ended."""
    cpu_seconds = time.process_time()
    while True:
        time.sleep(0.01)
        before, cpu_seconds = cpu_seconds, time.process_time()
        if cpu_seconds - before < 0.001:
            return cpu_seconds


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return low, median, high


def report(
    benchmark: Any,
    title: str,
    turns: Mapping[str, Sequence[Turn]],
    references: Mapping[str, Sequence[str]],
) -> None:
    """Print the figures of each variant and add them to ``extra_info``.

    Args:
        benchmark: the fixture.
        title: the heading to print.
        turns: the result of `take_turns`.
        references: the variants that a variant is compared with; the one with the best median
            counts. The ratio is the median over rounds of the ratio within a round.
    """
    print(f"\n{title}")
    for name, row in turns.items():
        low, rate, high = quartiles([turn.rate for turn in row])
        cpu = statistics.median(turn.cpu_seconds / turn.nbytes * GB for turn in row)
        figures: dict[str, Any] = {
            "median_GB_per_s": rate,
            "quartiles_GB_per_s": [low, high],
            "median_cpu_s_per_GB": cpu,
        }
        line = f"  {name:22} {rate:6.2f} GB/s ({low:.2f} to {high:.2f}), {cpu:6.3f} CPU s/GB"
        if name in references:
            best = max(references[name], key=lambda each: quartiles([t.rate for t in turns[each]]))
            pairs = zip(row, turns[best], strict=True)
            low, ratio, high = quartiles([turn.rate / base.rate for turn, base in pairs])
            figures |= {"compared_with": best, "ratio": ratio, "quartiles_ratio": [low, high]}
            line += f", {ratio:.2f} ({low:.2f} to {high:.2f}) of {best}"
        benchmark.extra_info[name] = figures
        print(line)
