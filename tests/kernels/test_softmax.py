from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from offgrad import kernels
from offgrad.kernels._fastmath import row_max
from offgrad.kernels._jit import jit
from offgrad.kernels._softmax import (
    _log_softmax_backward_numpy,
    _log_softmax_numpy,
    _softmax_backward_numpy,
    _softmax_numpy,
)

Agree = Callable[..., None]
SHAPES = [(0, 5), (5, 0), (1,), (), (1, 1), (7, 3), (4, 33), (2, 3, 65), (300, 1000)]
REFERENCES = {
    "softmax": (_softmax_numpy, _softmax_backward_numpy),
    "log_softmax": (_log_softmax_numpy, _log_softmax_backward_numpy),
}
FORWARD = ["softmax", "log_softmax"]


@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.parametrize("shape", SHAPES)
def test_numba_equals_numpy(
    name: str, shape: tuple[int, ...], dtype: Any, rng: np.random.Generator, agree: Agree
) -> None:
    x = np.asarray(rng.normal(size=shape) * 4).astype(dtype)
    grad = np.asarray(rng.normal(size=shape)).astype(dtype)
    out, expected = np.empty_like(x), np.empty_like(x)
    getattr(kernels, name)(x, out)
    REFERENCES[name][0](x, expected)
    agree(out, expected)
    result = expected.copy()
    getattr(kernels, f"{name}_backward")(grad, result, out)
    REFERENCES[name][1](grad, result, expected)
    agree(out, expected, 10)


@pytest.mark.parametrize("name", FORWARD)
def test_masks_and_special_rows(name: str, dtype: Any, backend: str, agree: Agree) -> None:
    inf, nan = np.inf, np.nan
    x = np.array(
        [
            [-inf, 0, 1, -inf, 2],
            [-inf, -inf, -inf, -inf, -inf],
            [inf, 0, 1, 2, 3],
            [nan, 0, 1, 2, 3],
            [-nan, 0, 1, 2, 3],
            [-inf, -inf, -inf, -inf, 5],
            [1e4, -1e4, 0, 1e4, 0],
            [-1e4, -1e4, -2e4, -1e4, -3e4],
        ],
        dtype=dtype,
    )
    out = np.empty_like(x)
    getattr(kernels, name)(x, out)
    p = np.zeros_like(x)
    p[0, [1, 2, 4]] = np.exp([0.0, 1.0, 2.0]) / np.exp([0.0, 1.0, 2.0]).sum()
    p[1:5] = nan
    p[5, 4] = 1
    p[6, [0, 3]] = 0.5
    p[7, [0, 1, 3]] = 1 / 3
    agree(np.exp(out) if name == "log_softmax" else out, p)
    assert np.isnan(out[1:5]).any(axis=1).all()


@pytest.mark.parametrize("name", FORWARD)
def test_against_torch(
    name: str, dtype: Any, rng: np.random.Generator, agree: Agree, backend: str
) -> None:
    torch = pytest.importorskip("torch")
    x = (rng.normal(size=(9, 71)) * 3).astype(dtype)
    x[3, 5:20] = -np.inf
    grad = rng.normal(size=x.shape).astype(dtype)
    tensor = torch.from_numpy(x).requires_grad_()
    result = getattr(torch, name)(tensor, -1)
    result.backward(torch.from_numpy(grad))
    out, back = np.empty_like(x), np.empty_like(x)
    getattr(kernels, name)(x, out)
    agree(out, result.detach().numpy())
    getattr(kernels, f"{name}_backward")(grad, out, back)
    agree(back, tensor.grad.numpy())


@jit
def _row_max_loop(x: Any, out: Any) -> None:
    out[0] = row_max(x)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_row_max_orders_all_floats(data: st.DataObject, dtype: np.dtype[Any]) -> None:
    numbers = st.floats(width=32 if dtype == np.float32 else 64, allow_nan=False)
    x = data.draw(hnp.arrays(dtype, st.integers(1, 40), elements=numbers))
    out = np.empty(1, dtype)
    _row_max_loop(x, out)
    assert out[0] == x.max()


def test_in_place(dtype: Any, rng: np.random.Generator, agree: Agree) -> None:
    x = rng.normal(size=(5, 9)).astype(dtype)
    out = np.empty_like(x)
    kernels.softmax(x, out)
    kernels.softmax(x, x)
    agree(x, out)


def test_bfloat16(backend: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.linspace(-2, 2, 8).astype(ml_dtypes.bfloat16)
    out, wide = np.empty_like(x), np.empty(8, np.float32)
    kernels.softmax(x, out)
    kernels.softmax(x.astype(np.float32), wide)
    np.testing.assert_allclose(out.astype(np.float32), wide, rtol=1e-2)
