"""The memory that layers, losses and optimizers work in is counted, and can be refused."""

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

import offgrad
from offgrad import memory, nn


def _trained(layer: nn.Module, *shape: int) -> Callable[[], None]:
    x = offgrad.randn(*shape, requires_grad=True)

    def run() -> None:
        out: Any = layer(x)
        out = out[0] if isinstance(out, tuple) else out
        out.backward(out.detach())
        layer.zero_grad()
        x.grad = None

    return run


def _differentiated(loss: Callable[[Any], Any], *shape: int) -> Callable[[], None]:
    x = offgrad.randn(*shape, requires_grad=True)

    def run() -> None:
        loss(x).backward()
        x.grad = None

    return run


def _stepped(optimizer: Any) -> Callable[[], None]:
    weight = offgrad.randn(400, 400, requires_grad=True)
    weight.grad = offgrad.randn(400, 400)
    made = optimizer([weight])
    return lambda: made.step()


CASES: dict[str, Callable[[], Callable[[], None]]] = {
    "LSTM": lambda: _trained(nn.LSTM(32, 256), 2, 8, 32),
    "GRU": lambda: _trained(nn.GRU(32, 256), 2, 8, 32),
    "RNN": lambda: _trained(nn.RNN(32, 400), 2, 8, 32),
    "Conv2d": lambda: _trained(nn.Conv2d(64, 64, 3, padding=1), 2, 64, 24, 24),
    "norm": lambda: _differentiated(lambda x: x.norm(), 400, 400),
    "norm of rows": lambda: _differentiated(lambda x: x.norm(3, 1).sum(), 400, 400),
    "Adafactor": lambda: _stepped(offgrad.optim.Adafactor),
    "Muon": lambda: _stepped(offgrad.optim.Muon),
}


@pytest.mark.parametrize("name", CASES)
def test_scratch_is_counted(name: str) -> None:
    run = CASES[name]()
    run()  # once: what is compiled and cached
    gc.collect()
    tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        run()
        uncounted = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert uncounted < 400_000, f"{uncounted} bytes were not counted"


@pytest.mark.parametrize("kind", ["Adafactor", "Muon"])
def test_a_step_without_memory_changes_nothing(kind: str) -> None:
    results = []
    for is_limited in (False, True):
        offgrad.manual_seed(0)
        weight = offgrad.randn(200, 200, requires_grad=True)
        optimizer = getattr(offgrad.optim, kind)([weight], lr=0.1)
        for _ in range(3):
            weight.grad = offgrad.randn(200, 200)
            refused = 0
            while True:
                room = refused * 50_000 if is_limited else 10_000_000
                try:
                    with memory.limit(memory.allocated() + room):
                        optimizer.step()
                    break
                except memory.OutOfMemoryError:
                    refused += 1
            assert bool(refused) == is_limited
        results.append(weight.detach().tolist())
    assert results[0] == results[1]
