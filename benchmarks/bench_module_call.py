"""What does a module call cost beyond its forward?

    pytest benchmarks/bench_module_call.py -s -p no:xdist

It calls a module whose forward returns its argument: without hooks, with one hook of each
kind, and inside a session; and PyTorch's Module likewise. Variants take turns. It prints the
nanoseconds per call beyond a plain call of forward, as medians over the rounds with quartiles, and
the ratio to PyTorch's. No time is asserted.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest

import offgrad

CALLS = 20_000
ROUNDS = 15


def identity(lib: Any, *hooks: str) -> Any:
    """Return a module that returns its argument, with hooks that do nothing."""

    class Identity(lib.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x

    module = Identity()
    for name in hooks:
        getattr(module, name)(lambda *_: None)
    return module


def seconds(call: Callable[[Any], Any], argument: Any) -> float:
    """Return the seconds per call, averaged over CALLS."""
    began = time.perf_counter()
    for _ in range(CALLS):
        call(argument)
    return (time.perf_counter() - began) / CALLS


def test_call(benchmark: Any) -> None:
    """Each round times each variant once, in turn."""
    torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
    hooks = ("register_forward_pre_hook", "register_forward_hook")
    variants: dict[str, Callable[[Any], Any]] = {}
    for name, lib in (("torch", torch), ("offgrad", offgrad)):
        variants[f"{name} forward"] = identity(lib).forward
        variants[f"{name} without hooks"] = identity(lib)
        variants[f"{name} with forward hooks"] = identity(lib, *hooks)
    session = offgrad.offload("keep")
    plain = identity(offgrad)
    times: dict[str, list[float]] = {name: [] for name in (*variants, "offgrad in a session")}

    def every_variant() -> None:
        for name, call in variants.items():
            times[name].append(seconds(call, 1))
        with session:
            times["offgrad in a session"].append(seconds(plain, 1))

    benchmark.pedantic(every_variant, rounds=ROUNDS, warmup_rounds=1)
    beyond: dict[str, list[float]] = {}
    for name, row in times.items():
        forward = times[f"{name.partition(' ')[0]} forward"]
        beyond[name] = [1e9 * (a - b) for a, b in zip(row, forward, strict=True)]
    for name, row in beyond.items():
        low, median, high = statistics.quantiles(row, n=4)
        same = beyond.get(name.replace("offgrad", "torch"), beyond["torch without hooks"])
        ratio = median / statistics.median(same) if statistics.median(same) else 1.0
        benchmark.extra_info[name] = {"median_ns": median, "ratio_to_torch": ratio}
        print(f"{name:28} {median:7.0f} ns ({low:.0f} to {high:.0f}), {ratio:.2f} of torch's")
