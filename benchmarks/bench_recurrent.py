"""How do recurrent layers and attention compare with PyTorch's, forward and backward?

    pytest benchmarks/bench_recurrent.py -s

Both run in one process, in turn, with the same numbers of threads (OFFGRAD_BENCH_THREADS, 2 by
default). Medians and minima of seconds, and their ratios to torch, are printed and added to
``extra_info`` (and the JSON of ``--benchmark-json``). No time is asserted.
"""

import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest

import offgrad

ROUNDS = 10

Case = tuple[Callable[[Any], Any], tuple[int, ...], Callable[[Any, Any], Any]]


def _first(layer: Any, x: Any) -> Any:
    return layer(x)[0]


def _attended(layer: Any, x: Any) -> Any:
    return layer(x, x, x, need_weights=False)[0]


CASES: dict[str, Case] = {
    "LSTM 2x512, 128 steps, batch 32": (
        lambda nn: nn.LSTM(512, 512, 2),
        (128, 32, 512),
        _first,
    ),
    "GRU 2x512, 128 steps, batch 32": (lambda nn: nn.GRU(512, 512, 2), (128, 32, 512), _first),
    "RNN 2x512, 128 steps, batch 32": (lambda nn: nn.RNN(512, 512, 2), (128, 32, 512), _first),
    "LSTM 2x200, 35 steps, batch 20": (lambda nn: nn.LSTM(200, 200, 2), (35, 20, 200), _first),
    "LSTM bidirectional 1x128, 50 steps, batch 8": (
        lambda nn: nn.LSTM(128, 128, bidirectional=True, batch_first=True),
        (8, 50, 128),
        _first,
    ),
    "GRU 1x256, 10 steps, batch 1": (lambda nn: nn.GRU(256, 256), (10, 1, 256), _first),
    "GRU 1x256, 1 step, batch 1": (lambda nn: nn.GRU(256, 256), (1, 1, 256), _first),
    "LSTMCell 256, batch 32": (lambda nn: nn.LSTMCell(256, 256), (32, 256), _first),
    "attention, 8 heads of 64, 256 steps, batch 8": (
        lambda nn: nn.MultiheadAttention(512, 8, batch_first=True),
        (8, 256, 512),
        _attended,
    ),
    "encoder layer, 8 heads of 64, 256 steps, batch 8": (
        lambda nn: nn.TransformerEncoderLayer(512, 8, 2048, 0.1, batch_first=True),
        (8, 256, 512),
        lambda layer, x: layer(x),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_forward_and_backward(benchmark: Any, name: str) -> None:
    """Each round is a step of each library, in turn."""
    torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
    threads = int(os.environ.get("OFFGRAD_BENCH_THREADS", "2"))
    make, shape, call = CASES[name]
    modules = {"torch": torch, "offgrad": offgrad}
    layers: dict[str, tuple[Any, Any]] = {}
    seconds: dict[str, tuple[list[float], list[float]]] = {each: ([], []) for each in modules}
    for each, m in modules.items():
        m.set_num_threads(threads)
        layers[each] = make(m.nn), m.randn(*shape, requires_grad=True)

    def both() -> None:
        for each, (layer, x) in layers.items():
            began = time.perf_counter()
            loss = call(layer, x).sum()
            middle = time.perf_counter()
            loss.backward()
            ended = time.perf_counter()
            seconds[each][0].append(middle - began)
            seconds[each][1].append(ended - middle)
            for tensor in (x, *layer.parameters()):
                tensor.grad = None

    benchmark.pedantic(both, rounds=ROUNDS, warmup_rounds=2)
    for part, at in (("forward", slice(0, 1)), ("backward", slice(1, 2)), ("both", slice(0, 2))):
        figures: dict[str, dict[str, float]] = {"ratio": {}}
        for each, lists in seconds.items():
            totals = [sum(turn) for turn in zip(*lists[at], strict=True)][2:] or [0.0]
            figures[each] = {"median": statistics.median(totals), "minimum": min(totals)}
        for kind in ("median", "minimum"):
            figures["ratio"][kind] = figures["offgrad"][kind] / figures["torch"][kind]
        benchmark.extra_info[part] = figures
        print(name, part, json.dumps(figures))
