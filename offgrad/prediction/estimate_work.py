"""How long kernels take: their multiplications and bytes, at the rates of this machine."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np

from offgrad import kernels, ops
from offgrad.memory.meta import Array, MetaArray
from offgrad.nn import functional
from offgrad.prediction.measurements import isolated

_CALLS = 8
"""How many kernels and functions the small step of `_small_step` runs."""


@dataclass(frozen=True)
class Rates:
    """What this machine does in a second.

    Attributes:
        products: multiplications and additions of a large product of matrices.
        slow_products: the same in the slowest of the trials.
        nbytes: bytes read and written by a copy that exceeds the caches.
        slow_nbytes: the same in the slowest of the trials.
        calls: calls of kernels on small arrays, with autograd around them.
        slow_calls: the same in the slowest of the trials.
    """

    products: float
    slow_products: float
    nbytes: float
    slow_nbytes: float
    calls: float
    slow_calls: float


@cache
def rates() -> Rates:
    """Return the rates, measured at the first call, in about a tenth of a second."""
    a, b, out = (np.ones((768, 768), np.float32) for _ in range(3))
    products = _trials(lambda: kernels.matmul(a, b, out), 2 * 768**3)
    source, target = np.ones(1 << 22, np.float32), np.ones(1 << 22, np.float32)
    copies = _trials(lambda: np.copyto(target, source), source.nbytes + target.nbytes)
    with isolated():
        calls = _trials(_small_step(), _CALLS)
    return Rates(products[-1], products[0], copies[-1], copies[0], calls[-1], calls[0])


def _small_step() -> Callable[[], Any]:
    weight = ops.ones(64, 64, requires_grad=True)
    x = ops.ones(128, 64)

    def run() -> None:
        hidden = functional.layer_norm(functional.linear(x, weight), (64,))
        functional.gelu(hidden).sum().backward()
        weight.grad = None

    return run


def _trials(run: Callable[[], Any], amount: float) -> list[float]:
    """Return the rates of some runs, the slowest first; the first run warms up."""
    found = []
    for _ in range(9):
        began = time.perf_counter()
        run()
        found.append(amount / max(time.perf_counter() - began, 1e-9))
    return sorted(found[1:])[1:]  # without the one that was interrupted longest


class Work:
    """What kernels and functions have done so far.

    Attributes:
        products: multiplications and additions.
        nbytes: read and written.
        calls: of kernels and functions.
    """

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self.products = self.nbytes = self.calls = 0
        self.slow_seconds = 0.0

    def seconds(self, name: str, arrays: Any) -> float:
        """Return how long a kernel takes on `arrays`, and count its work."""
        known: dict[int, int] = {id(each): each.nbytes for each in _metas(arrays)}
        nbytes = sum(known.values())
        formula = _PRODUCTS.get(name)
        products = 0 if formula is None else int(formula(arrays))
        self.products += products
        self.nbytes += nbytes
        self.calls += 1
        rates = self._rates
        self.slow_seconds += 1 / rates.slow_calls + max(
            products / rates.slow_products, nbytes / rates.slow_nbytes
        )
        return 1 / rates.calls + max(products / rates.products, nbytes / rates.nbytes)


def _metas(arrays: Any) -> Iterator[MetaArray]:
    for each in arrays:
        if isinstance(each, MetaArray):
            yield each
        elif isinstance(each, (list, tuple)):
            yield from _metas(each)


def _matmul(arrays: Any) -> float:
    a: Array = arrays[0]
    b: Array = arrays[1]
    if not (np.ndim(a) and np.ndim(b)):
        return 0.0
    columns = b.shape[-1] if b.ndim > 1 else 1
    batch = prod(np.broadcast_shapes(a.shape[:-2], b.shape[:-2]))
    rows = a.shape[-2] if a.ndim > 1 else 1
    return float(2 * batch * rows * a.shape[-1] * columns)


def _attention(arrays: Any, passes: float, first: int) -> float:
    q, k, v = arrays[first : first + 3]
    scores: float = prod(q.shape[:-1]) * k.shape[-2]
    is_causal = next((each for each in arrays if isinstance(each, bool)), False)
    # Tiles run at half the rate of large products; a causal mask leaves out nearly half of them.
    products = 2 * passes * scores * (q.shape[-1] + v.shape[-1])
    return float(products * (1.2 if is_causal else 2.0))


def _recurrent(arrays: Any, rows_at: int, weight_at: int) -> float:
    size: int = arrays[weight_at].size
    return 2.0 * len(arrays[rows_at]) * size


_PRODUCTS: dict[str, Callable[[Any], float]] = {
    "matmul": _matmul,
    "dot": _matmul,
    "vecdot": lambda arrays: 2.0 * arrays[0].size,
    "convolve": lambda arrays: 2.0 * arrays[2].size * prod(arrays[1].shape[1:]),
    "convolve_transposed": lambda arrays: 2.0 * arrays[0].size * prod(arrays[1].shape[1:]),
    "convolve_weight": lambda arrays: 2.0 * arrays[0].size * prod(arrays[2].shape[1:]),
    "attention": lambda arrays: _attention(arrays, 1.0, 0),
    "attention_backward": lambda arrays: _attention(arrays, 2.5, 1),
    "lstm": lambda arrays: _recurrent(arrays, 1, 2),
    "lstm_backward": lambda arrays: _recurrent(arrays, 1, 4),
    "gru": lambda arrays: _recurrent(arrays, 1, 2),
    "gru_backward": lambda arrays: _recurrent(arrays, 1, 4),
    "rnn": lambda arrays: _recurrent(arrays, 3, 1),
    "rnn_backward": lambda arrays: _recurrent(arrays, 2, 1),
}
