"""Infinity, NaN and overflow are values like others."""

from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad.nn import functional as F


def test_no_warnings_from_values_at_the_edge() -> None:
    """As in torch; warnings are errors in this suite."""
    edge = [float("inf"), float("-inf"), float("nan"), 0.0, -1.0, 3e38]
    x = offgrad.tensor(edge, requires_grad=True)
    call: Any
    for call in (
        lambda x: x * 0, lambda x: x + x, lambda x: x - x, lambda x: x * x, lambda x: x / x,
        lambda x: x % 2, lambda x: x // 2, lambda x: x**2, lambda x: x**0.5, lambda x: x**x,
        lambda x: x.sum(), lambda x: x.mean(), lambda x: x.prod(), lambda x: x.cumsum(0),
        lambda x: x.var(), lambda x: x.norm(), lambda x: x @ x, lambda x: x.exp(),
        lambda x: x.log(), lambda x: x.sqrt(), lambda x: x.rsqrt(), lambda x: x.sin(),
        lambda x: x.tanh(), lambda x: x.sigmoid(), lambda x: x.abs(), lambda x: x.max(),
        lambda x: x.softmax(0), lambda x: x.log_softmax(0), lambda x: x.logsumexp(0),
        lambda x: x.half(), lambda x: x.to(offgrad.bfloat16), lambda x: x.clamp(-1, 1),
        lambda x: x.round(), lambda x: x.reciprocal(), lambda x: F.gelu(x),
        lambda x: F.layer_norm(x, (6,)), lambda x: F.mse_loss(x, x * 2),
    ):  # fmt: skip
        call(x).sum().backward()
    for dtype in (offgrad.int32, offgrad.uint8, offgrad.bool):
        x.detach().to(dtype)
    offgrad.tensor([2**31 - 1], dtype=offgrad.int32) * 2
    offgrad.tensor(2**31 - 1, dtype=offgrad.int32) * 2
    offgrad.tensor(3e38) * offgrad.tensor(3e38)


def test_comparing_bfloat16_with_nan_is_silent() -> None:
    x = offgrad.tensor([float("nan"), 1.0, -1.0], dtype=offgrad.bfloat16)
    found = [each.tolist() for each in (x > 0, x < 0, x >= 0, x <= 0)]
    assert found == [[False, True, False], [False, False, True]] * 2


def test_gradients_of_bfloat16_with_nan_are_silent() -> None:
    nan = float("nan")
    x, y = (
        offgrad.tensor(each, dtype=offgrad.bfloat16, requires_grad=True)
        for each in ([nan, 1.0, -1.0, 0.0], [1.0, nan, 0.0, nan])
    )
    call: Any
    for call in (
        offgrad.maximum, offgrad.minimum, offgrad.fmax, offgrad.fmin, offgrad.pow, offgrad.xlogy,
        offgrad.special.xlog1py, lambda x, y: offgrad.clamp(x, y, y + 1),
        lambda x, y: 0.0**x, lambda x, y: offgrad.special.entr(x),
    ):  # fmt: skip
        call(x, y).sum().backward()


@pytest.mark.parametrize("dtype", [offgrad.float16, offgrad.bfloat16])
@pytest.mark.parametrize("shape", [(), (3,), (70_000,)])
def test_writes_of_what_overflows_are_silent(shape: tuple[int, ...], dtype: Any) -> None:
    big = offgrad.full(shape, 1e300, dtype=offgrad.float64)
    inf = float("inf")
    ones = offgrad.ones(shape, dtype=dtype)
    stack: Any = offgrad.stack
    for written in (
        ones.clone().mul_(big), ones.clone().add_(big), ones.clone().sub_(big, alpha=-1),
        stack([big], out=ones.clone().unsqueeze(0)),
    ):  # fmt: skip
        assert written.dtype == dtype
        assert (written == inf).all()


def test_ranges_beyond_float16_are_silent() -> None:
    assert offgrad.arange(0, 1e5, 9e4, dtype=offgrad.float16).tolist() == [0, float("inf")]
    assert offgrad.linspace(0, 1e5, 2, dtype=offgrad.float16).tolist() == [0, float("inf")]


def test_means_of_more_float16_than_float16_counts() -> None:
    x = offgrad.ones(140, 1000, dtype=offgrad.float16, requires_grad=True)
    mean = x.mean()
    mean.backward()
    assert mean.item() == 1
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), np.float16(1 / 140_000))
    tenths = offgrad.full((140, 1000), 0.1, dtype=offgrad.float16)
    assert abs(tenths.nanmean().item() - 0.1) < 1e-3


def test_heaviside_of_bfloat16_nan_is_silent() -> None:
    x = offgrad.tensor([float("nan"), 1.0, -1.0], dtype=offgrad.bfloat16)
    assert offgrad.heaviside(x, x).tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_excluded_elements_share_no_gradient_of_an_infinite_extreme(reduce: str) -> None:
    infinite = float("-inf") if reduce == "amax" else float("inf")
    x = offgrad.tensor([1.0, 2.0, infinite], requires_grad=True)
    source = offgrad.tensor([infinite, 5.0], requires_grad=True)
    index = offgrad.tensor([0, 1])
    result = offgrad.scatter_reduce(x, 0, index, source, reduce, include_self=False)
    result.sum().backward()
    assert source.grad is not None
    assert x.grad is not None
    assert source.grad.tolist() == [1, 1]
    assert x.grad.tolist() == [0, 0, 1]
