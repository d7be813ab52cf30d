from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from offgrad import kernels
from offgrad.kernels._layer_norm import _layer_norm_backward_numpy, _layer_norm_numpy

Agree = Callable[..., None]


@pytest.mark.parametrize("affine", ["none", "weight", "both"])
@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (1, 1), (5, 3), (2, 3, 33), (2500, 129)])
def test_numba_equals_numpy(
    shape: tuple[int, ...], affine: str, dtype: Any, rng: np.random.Generator, agree: Agree
) -> None:
    x = (rng.normal(size=shape) * 3 + 1).astype(dtype)
    grad = rng.normal(size=shape).astype(dtype)
    weight = rng.normal(size=shape[-1]).astype(dtype) if affine != "none" else None
    bias = rng.normal(size=shape[-1]).astype(dtype) if affine == "both" else None
    out, out_ = np.empty_like(x), np.empty_like(x)
    mean, rstd, mean_, rstd_ = (np.ones(shape[:-1], dtype) for _ in range(4))
    kernels.layer_norm(x, weight, bias, 1e-5, out, mean, rstd)
    _layer_norm_numpy(x, weight, bias, 1e-5, out_, mean_, rstd_)
    if x.size:
        agree(out, out_, 10)
        agree(mean, mean_)
        agree(rstd, rstd_)
    outputs, outputs_ = (
        [np.empty_like(x), np.empty(shape[-1], dtype), np.empty(shape[-1], dtype)] for _ in "ab"
    )
    kernels.layer_norm_backward(grad, x, weight, mean_, rstd_, *outputs)
    _layer_norm_backward_numpy(grad, x, weight, mean_, rstd_, *outputs_)
    for output, expected in zip(outputs, outputs_, strict=True):
        agree(output, expected, 10, floor=1)


@pytest.mark.parametrize("wanted", range(8))
def test_only_requested_gradients_are_written(
    wanted: int, rng: np.random.Generator, backend: str
) -> None:
    x, grad = rng.normal(size=(2, 6, 5)).astype(np.float32)
    weight = rng.normal(size=5).astype(np.float32)
    mean, rstd, out = np.empty(6, np.float32), np.empty(6, np.float32), np.empty_like(x)
    kernels.layer_norm(x, weight, None, 1e-5, out, mean, rstd)
    everything = [np.empty_like(x), np.empty(5, np.float32), np.empty(5, np.float32)]
    kernels.layer_norm_backward(grad, x, weight, mean, rstd, *everything)
    some = [np.empty_like(a) if wanted >> i & 1 else None for i, a in enumerate(everything)]
    kernels.layer_norm_backward(grad, x, weight, mean, rstd, *some)
    for array, expected in zip(some, everything, strict=True):
        if array is not None:
            np.testing.assert_array_equal(array, expected)


def test_against_torch(dtype: Any, rng: np.random.Generator, agree: Agree, backend: str) -> None:
    torch = pytest.importorskip("torch")
    x = (rng.normal(size=(7, 3, 65)) * 2 + 3).astype(dtype)
    weight, bias = rng.normal(size=(2, 65)).astype(dtype)
    grad = rng.normal(size=x.shape).astype(dtype)
    tensors = [torch.from_numpy(a).requires_grad_() for a in (x, weight, bias)]
    result = torch.nn.functional.layer_norm(tensors[0], (65,), *tensors[1:], eps=1e-5)
    result.backward(torch.from_numpy(grad))
    out, mean, rstd = np.empty_like(x), np.empty(21, dtype), np.empty(21, dtype)
    kernels.layer_norm(x, weight, bias, 1e-5, out, mean, rstd)
    agree(out, result.detach().numpy(), 4)
    outputs = [np.empty_like(a) for a in (x, weight, bias)]
    kernels.layer_norm_backward(grad, x, weight, mean, rstd, *outputs)
    for output, tensor in zip(outputs, tensors, strict=True):
        agree(output, tensor.grad.numpy(), 4)


def test_one_bad_row_stays_alone(dtype: Any, rng: np.random.Generator, backend: str) -> None:
    x = rng.normal(size=(4, 40)).astype(dtype)
    x[1, 3], x[2, 5] = np.nan, np.inf
    out, mean, rstd = np.empty_like(x), np.empty(4, dtype), np.empty(4, dtype)
    kernels.layer_norm(x, None, None, 1e-5, out, mean, rstd)
    assert np.isnan(out[1]).all()
    assert np.isnan(out[2]).any()
    assert np.isfinite(out[[0, 3]]).all()
    # A constant row has no variance: eps alone keeps it finite.
    x[0] = 3
    kernels.layer_norm(x, None, None, 1e-5, out, mean, rstd)
    np.testing.assert_array_equal(out[0], 0)


def test_errors() -> None:
    x, row = np.zeros((2, 3), np.float32), np.zeros(2, np.float32)
    with pytest.raises(
        ValueError, match=r"weight must have one element per column \(3\), got \(2,\)"
    ):
        kernels.layer_norm(x, row, None, 1e-5, x.copy(), row, row)
    with pytest.raises(ValueError, match=r"mean must have one element per row \(2\), got \(3,\)"):
        kernels.layer_norm(x, None, None, 1e-5, x.copy(), np.zeros(3, np.float32), row)
