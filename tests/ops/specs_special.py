"""Special functions."""

import numpy as np
from numpy.typing import NDArray

from offgrad.ops._elementwise import bessel_functions, gamma_functions, unary
from tests.ops.opspec import OpSpec, inside, positive


def _between(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Between 0.05 and 0.95."""
    return 0.5 + inside(values) / 2


# PyTorch has no derivatives of these.
_WITHOUT_DERIVATIVE = {
    name
    for name in bessel_functions.FUNCTIONS
    if name.startswith(("airy", "bessel", "modified", "scaled"))
}


def _gradients(operation: type[unary.Unary]) -> tuple[type[unary.KernelUnaryBackward], ...]:
    is_kernel = issubclass(operation, unary.KernelUnary)
    return (unary.KernelUnaryBackward,) if is_kernel else ()


SPECS = [
    *(
        OpSpec(
            f"special_{name}",
            (operation, *_gradients(operation)),
            lambda m, x, name=name: getattr(m.special, name)(x),
            [((2, 3),), ((0,),)],
            domain=_between if name == "ndtri" else positive,
            torch=name not in _WITHOUT_DERIVATIVE,
        )
        for name, operation in bessel_functions.FUNCTIONS.items()
    ),
    OpSpec("airy_ai_slope", (bessel_functions.AiryAiSlope,),
           lambda m, x: bessel_functions.AiryAiSlope.apply(x), [((2, 3),)], torch=False),
    OpSpec("lgamma", (gamma_functions.Lgamma, unary.KernelUnaryBackward), lambda m, x: m.lgamma(x),
           [((2, 3),)], domain=positive),
    OpSpec("digamma", (gamma_functions.Digamma,), lambda m, x: m.digamma(x), [((2, 3),)],
           domain=positive),
    OpSpec("polygamma", (gamma_functions.Polygamma,),
           lambda m, x: (m.polygamma(1, x), x.polygamma(2)), [((2, 3),)], domain=positive),
    OpSpec("mvlgamma", (), lambda m, x: m.mvlgamma(x + 2, 3), [((2, 3),)], domain=positive),
    OpSpec("igamma", (gamma_functions.Igamma,),
           lambda m, x: (m.igamma(m.full_like(x, 2.5), x), m.igammac(m.full_like(x, 1.5), x)),
           [((2, 3),)], domain=positive),
    OpSpec("special_xlog1py", (bessel_functions.SpecialXlog1Py,),
           lambda m, a, b: m.special.xlog1py(a, b), [((2, 3), (3,)), ((2, 1), ())],
           domain=positive),
    OpSpec("special_zeta", (bessel_functions.SpecialZeta,),
           lambda m, x: m.special.zeta(m.full_like(x, 2.5), x), [((2, 3),)], domain=positive),
    OpSpec("special_polynomials", (),
           lambda m, x: (m.special.chebyshev_polynomial_t(x, 3),
                         m.special.hermite_polynomial_h(x, 2),
                         m.special.legendre_polynomial_p(x, 3),
                         m.special.shifted_chebyshev_polynomial_u(x, 2),
                         m.special.laguerre_polynomial_l(x, 0)), [((2, 3),)], torch=False),
]  # fmt: skip
