"""Functions of one element, and functions of two other than arithmetic."""

from math import erf as erf_of
from math import erfc as erfc_of
from typing import Any

import numpy as np

from offgrad.ops._elementwise import (
    clamping,
    complex_numbers,
    exponential,
    integers,
    rounding,
    special,
    ternary,
    trigonometry,
    unary,
)
from tests.ops.opspec import OpSpec, apart, between_integers, inside, nonzero, positive
from tests.ops.specs_elementwise import ONE, TWO, one, two

PAIRS = [((2, 3, 2),), ((2,),), ((0, 2),)]
THREE = [((2, 3), (2, 3), (2, 3)), ((2, 1), (3,), ()), ((), (2,), (2, 1)), ((0, 3), (1,), (3,))]


def erf(x: Any) -> Any:
    return np.vectorize(erf_of, otypes=[np.float64])(x)


def _erfc(x: Any) -> Any:
    return np.vectorize(erfc_of, otypes=[np.float64])(x)


def _sign(x: Any) -> Any:
    return x / np.abs(x)


def _probability(x: Any) -> Any:
    return 0.5 + 0.45 * np.tanh(x)


def _above_one(x: Any) -> Any:
    return np.abs(x) + 1.2


def _log_add_exp(a: Any, b: Any) -> Any:
    return np.log(np.exp(a) + np.exp(b))


def _pairs(x: Any) -> Any:
    return x[..., 0] + 1j * x[..., 1]


SPECS = [
    one("neg", exponential.Neg, np.negative, complex=True),
    one("exp", exponential.Exp, np.exp, complex=True, third=True),
    one("exp2", exponential.Exp2, np.exp2, third=True),
    OpSpec("exp2_complex", (exponential.Exp2,), lambda m, x: m.exp2(x), ONE, lambda x: 2**x,
           complex=True, real=False),
    one("expm1", exponential.Expm1, np.expm1, complex=True),
    one("log", exponential.Log, np.log, domain=positive, complex=True),
    one("log1p", exponential.Log1p, np.log1p, domain=inside, complex=True),
    one("log2", exponential.Log2, np.log2, domain=positive, complex=True),
    one("log10", exponential.Log10, np.log10, domain=positive, complex=True),
    one("sqrt", exponential.Sqrt, np.sqrt, domain=positive, complex=True),
    one("rsqrt", exponential.Rsqrt, lambda x: 1 / np.sqrt(x), domain=positive, complex=True),
    one("reciprocal", exponential.Reciprocal, lambda x: 1 / x, domain=nonzero, complex=True),
    one("sigmoid", exponential.Sigmoid, lambda x: 1 / (1 + np.exp(-x)), complex=True),
    OpSpec("sigmoid_backward", (unary.FusedUnaryBackward,), lambda m, x: m.sigmoid(x), ONE,
           lambda x: 1 / (1 + np.exp(-x)), third=True),
    one("logit", exponential.Logit, lambda x: np.log(x / (1 - x)), domain=_probability),
    OpSpec("logit_eps", (exponential.Logit, exponential.LogitBackward),
           lambda m, x: m.logit(x, eps=0.3), ONE,
           lambda x: np.log(np.clip(x, 0.3, 0.7) / (1 - np.clip(x, 0.3, 0.7))),
           domain=_probability),
    OpSpec("square", (), lambda m, x: m.square(x), ONE, np.square, complex=True),
    # Angles
    one("sin", trigonometry.Sin, np.sin, complex=True, third=True),
    one("cos", trigonometry.Cos, np.cos, complex=True),
    one("tan", trigonometry.Tan, np.tan, domain=inside, complex=True),
    one("asin", trigonometry.Asin, np.arcsin, domain=inside, complex=True),
    one("acos", trigonometry.Acos, np.arccos, domain=inside, complex=True),
    one("atan", trigonometry.Atan, np.arctan, complex=True, domain=positive),
    one("sinh", trigonometry.Sinh, np.sinh, complex=True),
    one("cosh", trigonometry.Cosh, np.cosh, complex=True),
    one("tanh", trigonometry.Tanh, np.tanh, complex=True, third=True),
    one("asinh", trigonometry.Asinh, np.arcsinh, complex=True, domain=positive),
    one("acosh", trigonometry.Acosh, np.arccosh, domain=_above_one, complex=True),
    one("atanh", trigonometry.Atanh, np.arctanh, domain=inside, complex=True),
    one("sinc", trigonometry.Sinc, np.sinc, domain=nonzero, complex=True),
    one("deg2rad", trigonometry.Scale, np.deg2rad),
    one("rad2deg", trigonometry.Scale, np.rad2deg),
    two("atan2", trigonometry.Atan2, np.arctan2, domain=nonzero),
    two("hypot", trigonometry.Hypot, np.hypot, domain=nonzero),
    # Steps
    one("sign", rounding.Stepwise, np.sign, domain=nonzero),
    one("floor", rounding.Stepwise, np.floor, domain=between_integers),
    one("ceil", rounding.Stepwise, np.ceil, domain=between_integers),
    one("round", rounding.Stepwise, np.round, domain=between_integers),
    one("trunc", rounding.Stepwise, np.trunc, domain=between_integers),
    OpSpec("round_decimals", (rounding.Stepwise,), lambda m, x: m.round(x * 0.1, decimals=1), ONE,
           lambda x: np.round(x * 0.1, 1), domain=between_integers),
    one("frac", rounding.Frac, lambda x: x - np.trunc(x), domain=between_integers),
    # Error functions
    one("erf", special.Erf, erf, third=True),
    one("erfc", special.Erfc, _erfc, third=True),
    OpSpec("erfinv", (special.Erfinv,), lambda m, x: m.erfinv(x), ONE, None, domain=inside,
           third=True),
    OpSpec("erfinv_inverts", (special.Erfinv, special.Erf), lambda m, x: m.erf(m.erfinv(x)), ONE,
           lambda x: x, domain=inside),
    two("logaddexp", special.LogAddExp, _log_add_exp, complex=True),
    two("logaddexp2", special.LogAddExp, np.logaddexp2),
    OpSpec("xlogy", (special.Xlogy,), lambda m, a, b: m.xlogy(a, b), TWO,
           lambda a, b: a * np.log(b), domain=positive),
    OpSpec("xlogy_of_number", (special.Xlogy,), lambda m, x: m.xlogy(2.5, x), ONE,
           lambda x: 2.5 * np.log(x), domain=positive),
    OpSpec("xlogy_to_number", (special.Xlogy,), lambda m, x: m.xlogy(x, 2.5), ONE,
           lambda x: x * np.log(2.5)),
    two("copysign", special.Copysign, np.copysign, domain=nonzero),
    two("nextafter", integers.Nextafter, np.nextafter),
    OpSpec("copysign_number", (special.Copysign,), lambda m, x: m.copysign(x, -2), ONE,
           lambda x: np.copysign(x, -2), domain=nonzero),
    OpSpec("heaviside", (), lambda m, x: m.heaviside(m.tensor([-1.0, 0.0, 2.0]).to(x.dtype), x),
           [((3,),), ((),)], lambda x: np.heaviside([-1.0, 0.0, 2.0], x), torch=False),
    # Limits
    OpSpec(
        "clamp", (clamping.Clamp, clamping.ClampBackward), lambda m, x: m.clamp(x, -0.7, 0.9), ONE,
        lambda x: np.clip(x, -0.7, 0.9), domain=apart,
    ),
    OpSpec(
        "clamp_method_min", (clamping.Clamp,), lambda m, x: x.clamp(min=0.01), ONE,
        lambda x: np.maximum(x, 0.01), domain=apart,
    ),
    OpSpec(
        "clamp_method_max", (clamping.Clamp,), lambda m, x: x.clamp(max=0), ONE,
        lambda x: np.minimum(x, 0), domain=nonzero,
    ),
    OpSpec("clamp_min", (clamping.Clamp,), lambda m, x: m.clamp_min(x, 0.01), ONE,
           lambda x: np.maximum(x, 0.01), domain=apart),
    OpSpec("clamp_max", (clamping.Clamp,), lambda m, x: m.clamp_max(x, 0.01), ONE,
           lambda x: np.minimum(x, 0.01), domain=apart),
    OpSpec(
        "clamp_tensors", (clamping.ClampTensor,), lambda m, x, a, b: m.clamp(x, a, b),
        [((2, 3), (3,), (2, 1)), ((0, 3), (3,), ())],
        lambda x, a, b: np.minimum(np.maximum(x, a), b),
    ),
    OpSpec("clamp_broadcast", (clamping.ClampTensor,), lambda m, x, a, b: m.clamp(x, a, b),
           [((), (2,), ())], lambda x, a, b: np.minimum(np.maximum(x, a), b), torch=False),
    OpSpec("clamp_below_by_tensor", (clamping.ClampTensor,), lambda m, x, a: m.clamp(x, min=a), TWO,
           np.maximum),
    OpSpec("clamp_above_by_tensor", (clamping.ClampTensor,), lambda m, x, a: m.clamp(x, max=a), TWO,
           np.minimum),
    OpSpec("clamp_min_tensor", (clamping.ClampTensor,), lambda m, x, a: m.clamp_min(x, a), TWO,
           np.maximum),
    OpSpec("clamp_max_tensor", (clamping.ClampTensor,), lambda m, x, a: m.clamp_max(x, a), TWO,
           np.minimum),
    two("maximum", clamping.Extremum, np.maximum),
    two("minimum", clamping.Extremum, np.minimum),
    two("fmax", clamping.Extremum, np.fmax),
    two("fmin", clamping.Extremum, np.fmin),
    OpSpec("nan_to_num", (clamping.NanToNum,), lambda m, x: m.nan_to_num(x), ONE, np.nan_to_num),
    # Three tensors
    OpSpec("lerp", (ternary.Lerp,), lambda m, a, b: m.lerp(a, b, 0.3), TWO,
           lambda a, b: a + 0.3 * (b - a), complex=True),
    OpSpec("lerp_tensor", (ternary.LerpTensor,), lambda m, a, b, w: m.lerp(a, b, w), THREE,
           lambda a, b, w: a + w * (b - a), complex=True),
    OpSpec("addcmul", (ternary.AddProduct,), lambda m, a, b, c: m.addcmul(a, b, c, value=2.5),
           THREE, lambda a, b, c: a + 2.5 * b * c, complex=True),
    OpSpec("addcdiv", (ternary.AddQuotient,), lambda m, a, b, c: m.addcdiv(a, b, c, value=2.5),
           THREE, lambda a, b, c: a + 2.5 * b / c, domain=nonzero, complex=True),
    # Complex numbers
    one("abs", complex_numbers.Abs, np.abs, domain=nonzero, complex=True),
    one("sgn", complex_numbers.Sgn, _sign, domain=nonzero, complex=True),
    one("angle", complex_numbers.Angle, np.angle, domain=nonzero, complex=True),
    one("conj_physical", complex_numbers.ConjPhysical, np.conj, complex=True, real=False),
    one("conj", complex_numbers.ConjPhysical, np.conj, complex=True, real=False),
    one("real", complex_numbers.ViewAsReal, np.real, complex=True, real=False, view=True),
    one("imag", complex_numbers.ViewAsReal, np.imag, complex=True, real=False, view=True),
    OpSpec("view_as_real", (complex_numbers.ViewAsReal, complex_numbers.ViewAsComplex),
           lambda m, x: m.view_as_real(x), [((2, 3),), ((),)],
           lambda x: np.stack([x.real, x.imag], -1), complex=True, real=False, view=True),
    OpSpec("view_as_real_of_nothing", (complex_numbers.ViewAsReal,),
           lambda m, x: m.view_as_real(x), [((0, 3),)],
           lambda x: np.stack([x.real, x.imag], -1), complex=True, real=False, view=True,
           torch=False),
    OpSpec("view_as_complex", (complex_numbers.ViewAsComplex, complex_numbers.ViewAsReal),
           lambda m, x: m.view_as_complex(x * 2), PAIRS, lambda x: 2 * _pairs(x)),
    two("complex", complex_numbers.Complex, lambda a, b: a + 1j * b),
    two("polar", complex_numbers.Polar, lambda a, b: a * np.exp(1j * b), domain=positive),
]  # fmt: skip
