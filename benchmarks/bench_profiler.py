"""What does a profile cost in a training step of the GPT of `offgrad compare`?

    pytest benchmarks/bench_profiler.py -s

Steps with and without a profile take turns in one process. Minima and medians of both, and their
ratios, are printed and added to ``extra_info``. OFFGRAD_BENCH_PROFILER_BATCH sets the batch. No
time is asserted.
"""

import json
import os
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import offgrad
from offgrad.cli.compare.gpt import GPT, GPTConfig
from offgrad.optim import AdamW
from offgrad.profiler import profile, profile_memory

SIZES = GPTConfig(layers=12, width=128, heads=4, context=256, dropout=0.1)
ROUNDS = 8
STEPS = 3  # of a round, for each variant
VARIANTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "none": nullcontext,
    "profile": profile,
    "profile_memory": profile_memory,
}


def _training() -> Callable[[], None]:
    batch = int(os.environ.get("OFFGRAD_BENCH_PROFILER_BATCH", "16"))
    offgrad.manual_seed(0)
    model = GPT(SIZES)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    tokens = offgrad.randint(0, 256, (batch, SIZES.context))

    def step() -> None:
        model.loss(tokens, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_step(benchmark: Any) -> None:
    """Each round is some steps of each variant, in turn."""
    step = _training()
    seconds: dict[str, list[float]] = {name: [] for name in VARIANTS}

    def every_variant() -> None:
        for name, record in VARIANTS.items():
            with record() as prof:
                for index in range(STEPS + 1):
                    began = time.perf_counter()
                    step()
                    if name == "profile":
                        prof.step()
                    if index:  # the first learns names
                        seconds[name].append(time.perf_counter() - began)

    benchmark.pedantic(every_variant, rounds=ROUNDS, warmup_rounds=1)
    least, median = min(seconds["none"]), statistics.median(seconds["none"])
    for name, each in seconds.items():
        figures = {
            "least_seconds": min(each),
            "ratio_of_least": min(each) / least,
            "median_seconds": statistics.median(each),
            "ratio_of_medians": statistics.median(each) / median,
        }
        benchmark.extra_info[name] = figures
        print(name, json.dumps(figures))
