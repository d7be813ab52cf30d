"""Numbers beside small tensors, whose tensors operations share."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad

torch = pytest.importorskip("torch")

NUMBERS: list[Any] = [
    1, 1.0, True, 0, 0.0, -0.0, False, 2, 2.0, -3, 0.1, 65504, 65505.0, 1e300, -1e-300, 1e-45,
    math.inf, -math.inf, math.nan, 2**40, -(2**31) - 1, 255, 256, 300,
]  # fmt: skip
OPERATIONS: list[Callable[[Any, Any], Any]] = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
]


def _same(ours: Any, theirs: Any) -> None:
    assert str(ours.dtype) == str(theirs.dtype)
    expected = theirs.to(torch.float64).numpy()
    found = ours.to(offgrad.float64).numpy()
    np.testing.assert_array_equal(found, expected)
    if ours.dtype.is_floating_point:
        np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "int64", "int32", "int8", "uint8", "bool"]
)
def test_each_number_keeps_its_type_and_sign(dtype: str) -> None:
    """Equal numbers such as 1, 1.0 and True, or 0.0 and -0.0, follow each other in both orders."""
    values = [0, 1, 1] if dtype == "bool" else [0, 3, 5]
    x, y = (t.tensor(values, dtype=getattr(t, dtype)) for t in (offgrad, torch))
    for number in NUMBERS + NUMBERS[::-1]:
        for operation in OPERATIONS:
            for swap in (False, True):
                outcomes = []
                for tensor in (x, y):
                    pair = (number, tensor) if swap else (tensor, number)
                    try:
                        outcomes.append(operation(*pair))
                    except (RuntimeError, OverflowError, TypeError) as error:
                        outcomes.append(error)
                ours, theirs = outcomes
                if isinstance(theirs, Exception) or isinstance(ours, Exception):
                    assert isinstance(ours, Exception), (operation, number, swap, theirs)
                    assert isinstance(theirs, Exception), (operation, number, swap, ours)
                elif dtype == "float16":  # PyTorch may multiply by a reciprocal
                    np.testing.assert_allclose(
                        ours.numpy().astype(float), theirs.numpy().astype(float), rtol=1e-3
                    )
                else:
                    _same(ours, theirs)


def test_a_shared_number_serves_every_mode() -> None:
    x = offgrad.ones(3, requires_grad=True)
    with offgrad.inference_mode():
        first = offgrad.ones(3) * 1.625
    (x * 1.625).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.625] * 3
    assert first.tolist() == [1.625] * 3
    with offgrad.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        y = x * 1.625
    (gradient,) = offgrad.autograd.grad(y.sum(), x, create_graph=True)
    assert gradient.tolist() == [1.625] * 3


def test_a_shared_number_cannot_change() -> None:
    y = offgrad.ones(3, requires_grad=True) * 2.375
    node: Any = y.grad_fn
    with pytest.raises(RuntimeError, match="read-only"):
        node._saved_other.add_(1)
    assert (offgrad.ones(3) * 2.375).tolist() == [2.375] * 3


def test_shared_numbers_count_no_memory() -> None:
    x = offgrad.ones(3)
    before = offgrad.memory.allocated()
    for number in itertools.islice(itertools.count(0.125, 0.25), 3000):
        x * number
    assert offgrad.memory.allocated() == before


def test_a_number_beside_a_large_tensor() -> None:
    x = offgrad.ones(100_000)
    for _ in range(2):
        assert float((x * 1.125).sum()) == 112_500
        assert float((1.125 - x).sum()) == 12_500
