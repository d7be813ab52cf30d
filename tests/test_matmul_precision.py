"""`set_float32_matmul_precision`."""

import pytest

import offgrad
from offgrad import kernels
from offgrad.kernels import _bfloat16_tiles


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_products_in_parts_on_request(precision: str) -> None:
    generator = offgrad.Generator().manual_seed(0)
    a, b = (offgrad.randn(256, 256, generator=generator) for _ in range(2))
    exact = a.double() @ b.double()
    full = a @ b
    try:
        offgrad.set_float32_matmul_precision(precision)
        assert offgrad.get_float32_matmul_precision() == precision
        fast = a @ b
        with pytest.warns(UserWarning, match="'low' is not one of"):
            offgrad.set_float32_matmul_precision("low")
        assert (a @ b).equal(fast)
    finally:
        offgrad.set_float32_matmul_precision("highest")
    is_faster = _bfloat16_tiles.instructions() == "amx" and kernels.backend() == "numba"
    assert fast.equal(full) != is_faster
    assert (fast - exact).abs().max() < 2.0**-16 * (a.abs() @ b.abs()).max()
    assert (a @ b).equal(full)
