"""In-place arithmetic on large tensors, which is computed where the target is."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import Tensor

SHAPE = (400, 500)


def _pair(dtype: Any) -> tuple[Tensor, Tensor]:
    first, second = np.random.default_rng(0).normal(size=(2, *SHAPE)).astype(dtype)
    return offgrad.tensor(first), offgrad.tensor(second)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype)
        for name in ("add", "sub", "mul", "div")
        for dtype in (np.float32, np.float64, np.float16, np.int64)
        if (name, dtype) != ("div", np.int64)  # a quotient is no integer
    ],
)
@pytest.mark.parametrize("other", ["tensor", "itself", "number", "row", "transposed", "part"])
def test_as_out_of_place(name: str, dtype: Any, other: str) -> None:
    x, y = _pair(dtype)
    if other == "part":
        x = y.view(-1)[: 300 * 500].view(300, 500)
    given: Any = {
        "tensor": y,
        "itself": x,
        "number": 3,
        "row": y[:1],
        "transposed": y.view(500, 400).T,
        "part": y[100:],
    }[other]
    before = x._version
    memory = x.data_ptr()
    expected = getattr(x, name)(given).numpy().copy()
    assert getattr(x, f"{name}_")(given) is x
    np.testing.assert_array_equal(x.numpy(), expected)
    assert x._version == before + 1
    assert x.data_ptr() == memory


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_factor(dtype: Any) -> None:
    x, y = _pair(dtype)
    a, b = x.numpy().copy(), y.numpy().copy()
    close = {"rtol": 4 * np.finfo(dtype).eps, "atol": 4 * np.finfo(dtype).eps}
    for change, sign in ((x.add_, 1), (x.sub_, -1)):
        expected = x.numpy() + sign * dtype(0.3) * b
        change(y, alpha=0.3)
        np.testing.assert_allclose(x.numpy(), expected, **close)
    np.testing.assert_allclose(x.numpy(), a, rtol=1e-5, atol=1e-6)
    expected = x.add(y, alpha=2.5).numpy().copy()
    np.testing.assert_array_equal(x.add_(y, alpha=2.5).numpy(), expected)


@pytest.mark.parametrize("change", [operator.iadd, operator.imul])
def test_recorded_changes_keep_their_history(change: Any) -> None:
    x, y = _pair(np.float64)
    x.requires_grad_()
    z = x * 2
    z = change(z, y)
    z.sum().backward()
    assert x.grad is not None
    expected = 2 * (np.ones(SHAPE) if change is operator.iadd else y.numpy())
    np.testing.assert_array_equal(x.grad.numpy(), expected)


@pytest.mark.parametrize(
    ("policy", "has_copy"),
    [
        ("keep", False),
        ("recompute", False),
        ("disk", True),
        ("pool", True),
        ("budget:1MiB,spill=disk", True),
    ],
)
def test_no_gradient_from_a_changed_value(policy: str, has_copy: bool) -> None:
    """A store has the old value, and gives its gradient; else there is an error."""
    x, y = _pair(np.float64)
    w = offgrad.ones(SHAPE, dtype=offgrad.float64, requires_grad=True)
    old = x.numpy().copy()
    with offgrad.offload(policy):
        loss = (w * x).sum()
        with offgrad.no_grad():
            x.add_(y)
        if has_copy:
            loss.backward()
            assert w.grad is not None
            np.testing.assert_array_equal(w.grad.numpy(), old)
        else:
            with pytest.raises(RuntimeError, match=r"modified by an inplace operation.*add_"):
                loss.backward()


def test_errors_change_nothing() -> None:
    x, _ = _pair(np.float32)
    before, version = x.numpy().copy(), x._version
    for other in (offgrad.ones(7), offgrad.ones(2, *SHAPE), "text", 1j):
        with pytest.raises((RuntimeError, TypeError)):
            x.add_(other)
    leaf = offgrad.ones(SHAPE, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf"):
        leaf.mul_(2)
    np.testing.assert_array_equal(x.numpy(), before)
    assert x._version == version


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    ("name", "kwargs", "error"),
    [
        ("mul_", {"alpha": 3}, TypeError),
        ("div_", {"alpha": 3}, TypeError),
        ("add_", {"alpha": True}, RuntimeError),
        ("sub_", {"alpha": 1j}, RuntimeError),
        ("add_", {"alpha": 10**400}, OverflowError),
        ("add_", {"beta": 1}, TypeError),
    ],
)
def test_other_arguments_are_refused_as_for_small_tensors(
    name: str, kwargs: Any, error: type[Exception], large: bool
) -> None:
    x = offgrad.ones(SHAPE if large else (3,))
    before = x._version
    with pytest.raises(error):
        getattr(x, name)(x.clone(), **kwargs)
    assert x._version == before
    assert float(x.sum()) == x.numel()


@pytest.mark.parametrize("dtype", [offgrad.uint8, offgrad.int8, offgrad.int64])
def test_factors_of_integers_wrap_around(dtype: Any) -> None:
    x = (offgrad.arange(300_000) % 7).to(dtype)
    expected = x.numpy() - np.array(2, x.numpy().dtype) * x.numpy()
    np.testing.assert_array_equal(x.sub(x, alpha=2).numpy(), expected)
    np.testing.assert_array_equal(x.sub_(x.clone(), alpha=2).numpy(), expected)
