from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from offgrad import kernels
from offgrad.kernels._rms_norm import _rms_norm_backward_numpy, _rms_norm_numpy

Agree = Callable[..., None]


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (1, 1), (2, 3, 33), (2500, 129), (2, 9000)])
def test_numba_equals_numpy(
    shape: tuple[int, ...], affine: bool, dtype: Any, rng: np.random.Generator, agree: Agree
) -> None:
    x, grad = (rng.normal(size=shape) * 3 + 1).astype(dtype), rng.normal(size=shape).astype(dtype)
    weight = rng.normal(size=shape[-1]).astype(dtype) if affine else None
    found = []
    for run, back in (
        (kernels.rms_norm, kernels.rms_norm_backward),
        (_rms_norm_numpy, _rms_norm_backward_numpy),
    ):
        out, dx = np.zeros_like(x), np.zeros_like(x)
        rstd, dweight = np.ones(shape[:-1], dtype), np.empty(shape[-1], dtype)
        run(x, weight, 1e-5, out, rstd)
        back(grad, x, weight, rstd, dx, dweight)
        alone = np.zeros_like(x)
        back(grad, x, weight, rstd, alone, None)
        np.testing.assert_array_equal(alone, dx)
        found.append([out, dx, dweight, *([rstd] if x.size else [])])
    for one, other in zip(*found, strict=True):
        agree(one, other, 10, floor=1)


def test_errors() -> None:
    x, row = np.zeros((2, 3), np.float32), np.zeros(2, np.float32)
    with pytest.raises(ValueError, match=r"one element per column \(3\), got \(2,\)"):
        kernels.rms_norm(x, row, 1e-5, x.copy(), row)
    with pytest.raises(ValueError, match=r"one element per row \(2\), got \(3,\)"):
        kernels.rms_norm(x, None, 1e-5, x.copy(), np.zeros(3, np.float32))
