"""How does a training step of the GPT compare with PyTorch's, in time and in memory?

    pytest benchmarks/bench_gpt.py -s

The model is `offgrad.cli.compare.gpt`, the same source for both. Each variant runs in its own
process and the processes take turns step by step, so that other threads and noise affect all of
them alike. Medians, quartiles, ratios to torch and peak RSS are printed and added to ``extra_info``
(and the JSON of ``--benchmark-json``). OFFGRAD_BENCH_GPT="layers width heads context batch dropout"
sets the model. No time is asserted.

`torch disk` is the example of PyTorch's documentation: torch.save writes each saved tensor to a
file.
"""

import json
import os
import statistics
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks._lib.training_turns import Figures, Worker, quartiles

ROUNDS = 12
BASE = "torch default"
VARIANTS = (BASE, "torch disk", "offgrad default", "offgrad disk", "offgrad zarr")


def test_step(benchmark: Any, tmp_path: Path) -> None:
    """Each round is a step of each variant, in turn."""
    pytest.importorskip("torch", reason="compares with torch, which is not installed")
    sizes = os.environ.get("OFFGRAD_BENCH_GPT", "12 128 4 256 16 0.1").split()
    batch = int(sizes.pop(4))
    replies: dict[str, list[Figures]] = {name: [] for name in VARIANTS}
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(
                Worker(name.split()[0], "gpt", [float(size) for size in sizes], tmp_path)
            )
            for name in VARIANTS
        }

        def every_variant() -> None:
            for name, worker in workers.items():
                replies[name].append(worker.step(name.split()[1], batch))

        benchmark.pedantic(every_variant, rounds=ROUNDS, warmup_rounds=2)
    warm = slice(2, None) if len(replies[BASE]) > 2 else slice(None)
    base = statistics.median(reply["seconds"] for reply in replies[BASE][warm])
    for name in VARIANTS:
        low, median, high = quartiles([reply["seconds"] for reply in replies[name][warm]])
        figures = {
            "median_seconds": median,
            "quartiles_seconds": [low, high],
            "ratio_to_torch": median / base,
            "peak_rss_mib": replies[name][-1]["peak_rss_nbytes"] / 2**20,
            "first_loss": replies[name][0]["loss"],
        }
        benchmark.extra_info[name] = figures
        print(name, json.dumps(figures))
