"""Layers with torch's weights give torch's results, gradients, buffers and texts."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import offgrad

Case = tuple[Callable[[Any], Any], Sequence[Any]]
"""A function that makes the layer from ``nn``, and its inputs: shapes of random numbers, or
arrays, which require no grad but the first.
"""


def inputs_of(case: Sequence[Any], m: Any, rng: np.random.Generator) -> list[Any]:
    """Return the inputs as tensors of a library."""
    found: list[Any] = []
    for each in case:
        is_given = isinstance(each, np.ndarray)
        array = each if is_given else rng.standard_normal(each).astype("f")
        tensor = m.tensor(array)
        is_target = is_given and (found or array.dtype.kind != "f")
        found.append(tensor if is_target else tensor.requires_grad_())
    return found


def flat(result: Any) -> list[Any]:
    """Return the tensors in nested tuples."""
    if isinstance(result, tuple | list):
        return [tensor for each in result for tensor in flat(each)]
    return [] if result is None else [result]


def close(mine: Any, theirs: Any, tolerance: float = 1e-5) -> None:
    """Compare two tensors, or those in nested tuples."""
    for one, other in zip(flat(mine), flat(theirs), strict=True):
        a, b = one.detach().numpy(), other.detach().numpy()
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, tolerance, tolerance)


def random_inputs(m: Any, layer: Any, *shapes: tuple[int, ...]) -> list[Any]:
    """Return tensors of a library, of the dtype of a layer's parameters."""
    rng = np.random.default_rng(0)
    dtype = next(layer.parameters()).detach().numpy().dtype
    return [
        m.tensor(rng.standard_normal(shape).astype(dtype), requires_grad=True) for shape in shapes
    ]


def check(case: Case, steps: int = 1, is_random: bool = False) -> None:
    """Run a layer in training for some steps and then in evaluation mode, on both libraries.

    Layers that are random in training are compared in evaluation mode.
    """
    torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
    make, shapes = case
    mine, theirs = make(offgrad.nn), make(torch.nn)
    assert repr(mine) == repr(theirs)
    state = theirs.state_dict()
    own = mine.state_dict()
    assert list(own) == list(state)
    assert [tuple(each.shape) for each in own.values()] == [
        tuple(each.shape) for each in state.values()
    ]
    mine.load_state_dict({key: offgrad.tensor(value.numpy()) for key, value in state.items()})
    for step in range(steps + 1):
        if step == steps or is_random:
            mine.eval()
            theirs.eval()
        sides = []
        for m, layer in ((offgrad, mine), (torch, theirs)):
            inputs = inputs_of(shapes, m, np.random.default_rng(step))
            layer.zero_grad()
            result = layer(*inputs)
            result = result if isinstance(result, tuple) else (result,)
            if result[0].requires_grad:
                sum((each * each).sum() for each in result).backward()
            leaves = [*inputs, *layer.parameters()]
            grads = [each.grad for each in leaves if each.grad is not None]
            sides.append((*result, *grads, *layer.buffers()))
        assert len(sides[0]) == len(sides[1])
        for a, b in zip(*sides, strict=True):
            close(a, b)
