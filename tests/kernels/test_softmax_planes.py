from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from offgrad import kernels
from offgrad.kernels import _softmax_planes as planes

Agree = Callable[..., None]


@pytest.mark.parametrize("is_log", [False, True])
@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 3, 0), (2, 1, 5), (3, 130, 700), (2, 3, 20)])
def test_numba_equals_numpy(
    shape: tuple[int, ...], is_log: bool, dtype: Any, rng: np.random.Generator, agree: Agree
) -> None:
    x = (rng.normal(size=shape) * 5).astype(dtype)
    if x.size:
        x[0, 0, 0] = -np.inf if shape[1] > 1 else 0
    grad, factor = rng.normal(size=shape).astype(dtype), rng.normal(size=shape[::2]).astype(dtype)
    found = []
    for softmax, backward, lse, scaled in (
        (kernels.softmax_planes, kernels.softmax_planes_backward, kernels.log_sum_exp_planes,
         kernels.scaled_softmax_planes),
        (planes._softmax_numpy, planes._softmax_backward_numpy, planes._log_sum_exp_numpy,
         planes._scaled_softmax_numpy),
    ):  # fmt: skip
        out, dx, probs = (np.zeros_like(x) for _ in range(3))
        sums = np.zeros(shape[::2], dtype)
        softmax(x, out, is_log)
        backward(grad, out, dx, is_log)
        lse(x, sums)
        scaled(x, sums, factor, probs)
        found.append([out, dx, sums, probs])
    for one, other in zip(*found, strict=True):
        agree(one, other, 20, floor=1)


def test_bad_columns_stay_alone(dtype: Any, backend: str) -> None:
    x = np.zeros((1, 2, 20), dtype)
    x[0, 1, 3], x[0, :, 5], x[0, 0, 7] = np.nan, -np.inf, np.inf
    out = np.empty_like(x)
    kernels.softmax_planes(x, out, False)
    assert np.isnan(out[0, :, [3, 5]]).all()
    assert np.isnan(out[0, 0, 7])
    np.testing.assert_array_equal(np.delete(out, [3, 5, 7], 2), 0.5)
