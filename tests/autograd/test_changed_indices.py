"""Indices are saved for backward like other tensors: later changes raise."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad.autograd.graph import saved_tensors_hooks

INDEX = [0, 1]


def _gathered(x: Any, index: Any) -> Any:
    return x[index]


def _put(x: Any, index: Any) -> Any:
    y = x * 1
    y[index] = 0.0
    return y


@pytest.mark.parametrize("use", [_gathered, _put])
def test_a_changed_index_tensor_raises(use: Callable[..., Any]) -> None:
    x = offgrad.ones(4, requires_grad=True)
    index = offgrad.tensor(INDEX)
    y = use(x, index).sum()
    index.add_(2)
    with pytest.raises(RuntimeError, match="in place"):
        y.backward()


@pytest.mark.parametrize("kind", [list, np.array])
def test_a_changed_list_or_array_does_not_affect_backward(kind: Any) -> None:
    x = offgrad.ones(4, requires_grad=True)
    index = kind(INDEX)
    y = x[index].sum()
    index[0] = 3
    y.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1, 1, 0, 0]


def test_a_changed_mask_raises() -> None:
    x = offgrad.ones(4, requires_grad=True)
    mask = offgrad.tensor([True, False, True, False])
    y = x[mask].sum()
    mask.fill_(True)
    with pytest.raises(RuntimeError, match="in place"):
        y.backward()


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("name", ["max", "min"])
def test_changed_indices_of_an_extreme_raise(name: str, keepdim: bool) -> None:
    x = offgrad.tensor([[1.0, 3.0], [2.0, 0.0]], requires_grad=True)
    values, indices = getattr(x, name)(1, keepdim)
    indices.fill_(0)
    with pytest.raises(RuntimeError, match="in place"):
        values.sum().backward()


def test_hooks_see_indices() -> None:
    seen: list[Any] = []

    def pack(tensor: Any) -> Any:
        seen.append(tensor.tolist())
        return tensor

    x = offgrad.ones(4, requires_grad=True)
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        x[offgrad.tensor(INDEX)]
    assert seen == [INDEX]
