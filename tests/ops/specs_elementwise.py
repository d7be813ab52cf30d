"""Operations element by element, of one tensor and of two."""

from typing import Any

import numpy as np

from offgrad.ops import activation, arithmetic, compare, complex, convert, math
from offgrad.ops.inplace import CopyBackwards
from tests.ops.opspec import OpSpec, apart, between_integers, inside, nonzero, positive

ONE = [((2, 3),), ((),), ((0, 3),)]
TWO = [((2, 3), (2, 3)), ((2, 1), (3,)), ((), (2,)), ((2, 2), ()), ((0, 3), (1,))]


def one(name: str, cls: Any, reference: Any, **options: Any) -> OpSpec:
    """Return the spec of ``module.name(x)``."""
    return OpSpec(
        name, (cls,), lambda m, x: getattr(m, name)(x), options.pop("samples", ONE), reference,
        **options,
    )  # fmt: skip


def two(name: str, cls: Any, reference: Any, **options: Any) -> OpSpec:
    """Return the spec of ``module.name(a, b)``."""
    return OpSpec(name, (cls,), lambda m, a, b: getattr(m, name)(a, b), TWO, reference, **options)


def _erf(x: Any) -> Any:
    from math import erf

    return np.vectorize(erf, otypes=[np.float64])(x)


def _gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def _sign(x: Any) -> Any:
    return x / np.abs(x)


MASK = np.array([[True, False, True], [False, False, True]])

SPECS = [
    one("neg", math.Neg, np.negative, complex=True),
    one("exp", math.Exp, np.exp, complex=True, third=True),
    one("expm1", math.Expm1, np.expm1, complex=True),
    one("log", math.Log, np.log, domain=positive, complex=True),
    one("log1p", math.Log1p, np.log1p, domain=inside, complex=True),
    one("log2", math.Log2, np.log2, domain=positive, complex=True),
    one("sqrt", math.Sqrt, np.sqrt, domain=positive, complex=True),
    one("rsqrt", math.Rsqrt, lambda x: 1 / np.sqrt(x), domain=positive, complex=True),
    one("reciprocal", math.Reciprocal, lambda x: 1 / x, domain=nonzero, complex=True),
    one("sin", math.Sin, np.sin, complex=True, third=True),
    one("cos", math.Cos, np.cos, complex=True),
    one("tanh", math.Tanh, np.tanh, complex=True, third=True),
    one("sigmoid", math.Sigmoid, lambda x: 1 / (1 + np.exp(-x)), complex=True),
    one("erf", math.Erf, _erf, third=True),
    one("abs", complex.Abs, np.abs, domain=nonzero, complex=True),
    one("sgn", complex.Sgn, _sign, domain=nonzero, complex=True),
    one("sign", complex.Sgn, np.sign, domain=nonzero),
    one("floor", math.Stepwise, np.floor, domain=between_integers),
    one("ceil", math.Stepwise, np.ceil, domain=between_integers),
    one("round", math.Stepwise, np.round, domain=between_integers),
    one("trunc", math.Stepwise, np.trunc, domain=between_integers),
    one("conj_physical", complex.ConjPhysical, np.conj, complex=True, real=False),
    one("real", complex.Real, np.real, complex=True, real=False, view=True),
    one("imag", complex.Imag, np.imag, complex=True, real=False, view=True),
    one("square", arithmetic.PowScalar, np.square, complex=True),
    one("relu", activation.Relu, lambda x: np.maximum(x, 0), domain=nonzero),
    OpSpec(
        "relu_backward", (activation.ReluBackward,), lambda m, x: m.relu(x * x - 1) * x, ONE,
        lambda x: np.maximum(x * x - 1, 0) * x, domain=nonzero,
    ),
    OpSpec(
        "gelu", (activation.Gelu, activation.GeluBackward),
        lambda m, x: m.nn.functional.gelu(x), ONE,
        lambda x: x * (1 + _erf(x / np.sqrt(2))) / 2, third=True,
    ),
    OpSpec(
        "gelu_tanh", (activation.Gelu, activation.GeluBackward),
        lambda m, x: m.nn.functional.gelu(x, approximate="tanh"), ONE, _gelu_tanh, third=True,
    ),
    OpSpec(
        "silu", (math.Sigmoid, arithmetic.Mul), lambda m, x: m.nn.functional.silu(x), ONE,
        lambda x: x / (1 + np.exp(-x)),
    ),
    OpSpec(
        "clamp", (math.Clamp,), lambda m, x: m.clamp(x, -0.7, 0.9), ONE,
        lambda x: np.clip(x, -0.7, 0.9), domain=apart,
    ),
    OpSpec(
        "clamp_min", (math.Clamp,), lambda m, x: x.clamp(min=0.01), ONE,
        lambda x: np.maximum(x, 0.01), domain=apart,
    ),
    OpSpec(
        "clamp_max", (math.Clamp,), lambda m, x: x.clamp(max=0), ONE,
        lambda x: np.minimum(x, 0), domain=nonzero,
    ),
    # Two tensors
    two("add", arithmetic.Add, np.add, complex=True),
    two("sub", arithmetic.Sub, np.subtract, complex=True),
    two("mul", arithmetic.Mul, np.multiply, complex=True, third=True),
    two("div", arithmetic.Div, np.divide, domain=nonzero, complex=True),
    two("pow", arithmetic.Pow, np.power, domain=positive, complex=True),
    two("maximum", arithmetic.Extremum, np.maximum),
    two("minimum", arithmetic.Extremum, np.minimum),
    two("remainder", arithmetic.Mul, np.mod, domain=between_integers),
    OpSpec(
        "add_alpha", (arithmetic.Add,), lambda m, a, b: m.add(a, b, alpha=-1.5), TWO,
        lambda a, b: a - 1.5 * b,
    ),
    OpSpec(
        "sub_alpha", (arithmetic.Sub,), lambda m, a, b: a.sub(b, alpha=3), TWO,
        lambda a, b: a - 3 * b, complex=True,
    ),
    OpSpec(
        "one_tensor_twice", (arithmetic.Mul,), lambda m, x: x * x + x / (x * x + 1), ONE,
        lambda x: x * x + x / (x * x + 1),
    ),
    OpSpec(
        "numbers", (arithmetic.Sub, arithmetic.Div),
        lambda m, x: (2 - x) * 3 + 1 / (x + 5) - x / 4, ONE,
        lambda x: (2 - x) * 3 + 1 / (x + 5) - x / 4, complex=True,
    ),
    *(
        OpSpec(
            f"pow_{exponent}", (arithmetic.PowScalar,), lambda m, x, n=exponent: x**n, ONE,
            lambda x, n=exponent: x**n, domain=positive, complex=exponent != 0,
        )
        for exponent in (0, 1, 2, 3, -1, 0.5, -2.5)
    ),
    OpSpec(
        "pow_negative_base", (arithmetic.PowScalar,), lambda m, x: x**3 + x**-2, ONE,
        lambda x: x**3 + x**-2.0, domain=lambda x: -positive(x),
    ),
    OpSpec(
        "number_pow", (arithmetic.Pow,), lambda m, x: 2.5**x, ONE, lambda x: 2.5**x, complex=True,
    ),
    OpSpec(
        "where", (compare.Where,),
        lambda m, c, a, b: m.where(c, a, b),
        [(MASK, (2, 3), (2, 3)), (MASK, (3,), (2, 1)), (MASK[:, :1], (), (2, 3)),
         (np.array(True), (2,), (2,)), (np.zeros((0, 3), bool), (3,), ())],
        np.where, complex=True,
    ),
    OpSpec(
        "where_number", (compare.Where,), lambda m, c, a: m.where(c, a, 0.5), [(MASK, (2, 3))],
        lambda c, a: np.where(c, a, 0.5),
    ),
    OpSpec(
        "cast_to_complex", (convert.Cast,), lambda m, x: x.to(m.complex128), ONE,
        lambda x: x.astype(np.complex128),
    ),
    OpSpec(
        "mixed_dtypes", (arithmetic.Mul,), lambda m, x: x * m.arange(3) + m.ones(3), ONE,
        lambda x: x * np.arange(3) + np.ones(3), domain=nonzero,
    ),
    OpSpec(
        "copy", (CopyBackwards,), lambda m, a, b: a.clone().copy_(b),
        [((2, 3), (2, 3)), ((2, 3), (3,)), ((2,), ()), ((0, 2), (2,))],
        lambda a, b: np.broadcast_to(b, a.shape), complex=True,
    ),
]  # fmt: skip
