from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offgrad import kernels


@pytest.mark.parametrize("shape", [(3, 4), (2, 0), (3, 200, 300), (700, 300)])
@pytest.mark.parametrize("diagonal", [0, 2, -3, 1000, -1000])
def test_triangles_equal_numpy(
    shape: tuple[int, ...], diagonal: int, dtype: Any, backend: str
) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    out = np.empty_like(x)
    for upper, reference in ((True, np.triu), (False, np.tril)):
        for each in (x, np.asfortranarray(x)):
            kernels.triangle(each, out, diagonal, upper)
            np.testing.assert_array_equal(out, reference(x, diagonal))
