"""Second derivatives where factors are zero, and of sinc around zero."""

import math
from typing import Any

import pytest

import offgrad
from offgrad.autograd import forward_ad, gradcheck, gradgradcheck


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("values", [[0, 3, 0, 7], [0, 0, 2, 7], [0, 0, 0, 0]])
def test_products_at_an_index_with_zeros(values: list[float], include_self: bool) -> None:
    x = offgrad.tensor([1.0, 2, 3, 4], dtype=offgrad.float64, requires_grad=True)
    source = offgrad.tensor(values, dtype=offgrad.float64, requires_grad=True)
    index = offgrad.tensor([0, 0, 2, 2])
    for method in ("scatter_reduce", "index_reduce"):

        def product(x: Any, source: Any, method: str = method) -> Any:
            return getattr(x, method)(0, index, source, "prod", include_self=include_self)

        assert gradcheck(product, (x, source))
        assert gradgradcheck(product, (x, source))


@pytest.mark.parametrize("shape", [(3,), (0,), (2, 0)])
@pytest.mark.parametrize("order", [1, 2, 3.5])
def test_norms_of_zeros(order: float, shape: tuple[int, ...]) -> None:
    x = offgrad.zeros(shape, dtype=offgrad.float64, requires_grad=True)
    factor = offgrad.ones((), dtype=offgrad.float64, requires_grad=True)
    (grad,) = offgrad.autograd.grad(
        offgrad.linalg.vector_norm(x, order), x, factor, create_graph=True
    )
    second = offgrad.autograd.grad(grad.sum(), (x, factor), allow_unused=True)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.detach(), offgrad.ones_like(x))
        tangent = forward_ad.unpack_dual(offgrad.linalg.vector_norm(dual, order)).tangent
    for each in (grad, *second, tangent):
        assert each is None or not each.any()


def test_sinc_around_zero() -> None:
    """sinc'(x) = -pi^2 x/3 + pi^4 x^3/30 and sinc''(0) = -pi^2/3."""
    places = [0.0, 1e-9, 1e-4, -1e-3, 0.1, 0.4]
    x = offgrad.tensor(places, dtype=offgrad.float64, requires_grad=True)
    assert gradgradcheck(offgrad.sinc, (x,))
    (slope,) = offgrad.autograd.grad(offgrad.sinc(x).sum(), x, create_graph=True)
    for place, found in zip(places[:4], slope.tolist()[:4], strict=True):
        series = -(math.pi**2) * place / 3 + math.pi**4 * place**3 / 30
        assert found == pytest.approx(series, rel=1e-9)
    (curvature,) = offgrad.autograd.grad(slope[0], x)
    assert curvature[0].item() == pytest.approx(-(math.pi**2) / 3)


@pytest.mark.parametrize("place", [1e-4, 1e-3, 0.01])
def test_sinc_of_single_precision(place: float) -> None:
    x: Any = offgrad.tensor(place, requires_grad=True)
    offgrad.sinc(x).backward()
    assert x.grad.item() == pytest.approx(-(math.pi**2) * place / 3, rel=1e-4)
