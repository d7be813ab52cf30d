"""What does a policy cost, per training step of a GPT and per saved tensor?

    pytest benchmarks/bench_policies.py --benchmark-columns=median,iqr,rounds

The steps of all policies take turns within one test, so that other load on the machine slows all of
them alike. Medians, quartiles and ratios to `keep` are in ``extra_info`` (and in the JSON of
``--benchmark-json``). OFFGRAD_BENCH_GPT="layers width heads context batch" sets the model. No time
is asserted.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from offgrad_storage import (
    BackendStore,
    DiskStore,
    PoolStore,
    ZarrStore,
)

import offgrad
from offgrad import memory, optim
from offgrad.autograd.graph import saved_tensors_hooks
from offgrad.cli.compare.gpt import GPT, VOCABULARY, GPTConfig
from offgrad.policies import Keep, Offload

ROUNDS = 15


@pytest.fixture
def policies(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Each policy on its own store."""
    made: dict[str, BackendStore] = {
        "pool": PoolStore(allocate=memory.empty, hold=memory.empty),
        "disk": DiskStore(tmp_path, allocate=memory.empty),
        "zarr": ZarrStore(tmp_path, allocate=memory.empty),
    }
    yield {"keep": Keep()} | {name: Offload(store) for name, store in made.items()}
    for store in made.values():
        store.close()


def _sizes() -> list[int]:
    text = os.environ.get("OFFGRAD_BENCH_GPT", "4 256 8 256 4")
    return [int(each) for each in text.split()]


def test_step(policies: dict[str, Any], benchmark: Any) -> None:
    """Each round is a step under each policy, in turn."""
    layers, width, heads, context, batch = _sizes()
    offgrad.manual_seed(0)
    model = GPT(GPTConfig(layers, width, heads, context, dropout=0.1))
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    sample = np.random.default_rng(0).integers(0, VOCABULARY, (batch, context + 1))
    tokens, targets = offgrad.tensor(sample[:, :-1]), offgrad.tensor(sample[:, 1:])
    sessions = {name: offgrad.offload(policy) for name, policy in policies.items()}
    times: dict[str, list[float]] = {name: [] for name in sessions}

    def step(name: str) -> None:
        began = time.perf_counter()
        optimizer.zero_grad()
        with sessions[name]:
            loss = model.loss(tokens, targets)
        loss.backward()
        optimizer.step()
        times[name].append(time.perf_counter() - began)

    def every_policy() -> None:
        for name in sessions:
            step(name)

    benchmark.pedantic(every_policy, rounds=ROUNDS, warmup_rounds=2)
    steps = next(iter(times.values()))
    warm = slice(2, None) if len(steps) > 2 else slice(None)
    base = statistics.median(times["keep"][warm])
    for name, session in sessions.items():
        seconds = times[name][warm]
        median = statistics.median(seconds)
        low, high = (
            np.quantile(seconds, (0.25, 0.75)).tolist() if len(seconds) > 1 else (median, median)
        )
        benchmark.extra_info[name] = {
            "median_seconds": median,
            "quartiles_seconds": [low, high],
            "ratio_to_keep": median / base,
            "saved_nbytes_per_step": session.ledger.logical_nbytes // len(steps),
            "written_nbytes_per_step": session.ledger.written_nbytes // len(steps),
            "stall_seconds_per_step": session.ledger.stall_seconds / len(steps),
        }


def _hooks() -> Any:
    return saved_tensors_hooks(lambda x: x, lambda x: x)


OVERHEAD = ("none", "hooks", "keep", "pool", "disk", "zarr")


@pytest.mark.parametrize("rows", [8, 256], ids=["256 B", "256 KiB"])
@pytest.mark.parametrize("name", OVERHEAD)
def test_pack_and_unpack(name: str, rows: int, policies: dict[str, Any], benchmark: Any) -> None:
    """Forward and backward of a chain of cheap ops that each save their result."""
    columns = 8 if rows == 8 else 256
    x = offgrad.randn(rows, columns, requires_grad=True)
    count = 100 if rows == 8 else 20
    session: Any = None
    if name not in ("none", "hooks"):
        policy = policies[name]
        session = offgrad.offload(
            policy if isinstance(policy, Keep) else Offload(policy.store, min_nbytes=0)
        )
    enter: Callable[[], Any] = {"none": nullcontext, "hooks": _hooks}.get(name, lambda: session)

    def run() -> None:
        with enter():
            y = x
            for _ in range(count):
                y = y.relu()
            loss = y.sum()
        del y
        loss.backward()

    benchmark.group = f"{rows * columns * 4} bytes per save"
    benchmark.extra_info["saves"] = count
    benchmark.pedantic(run, rounds=ROUNDS, warmup_rounds=2)
    if benchmark.stats is not None:  # None with --benchmark-disable
        benchmark.extra_info["median_seconds_per_save"] = benchmark.stats["median"] / count
