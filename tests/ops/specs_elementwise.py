"""Operations element by element, of one tensor and of two."""

from typing import Any

import numpy as np

from offgrad.ops._core import dtypes
from offgrad.ops._core.inplace_forms import CopyBackwards
from offgrad.ops._elementwise import arithmetic, comparison, power
from offgrad.ops._nn import activations
from tests.ops.opspec import OpSpec, between_integers, nonzero, positive

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


MASK = np.array([[True, False, True], [False, False, True]])

SPECS = [
    one("relu", activations.Relu, lambda x: np.maximum(x, 0), domain=nonzero),
    OpSpec(
        "relu_backward", (activations.ReluBackward,), lambda m, x: m.relu(x * x - 1) * x, ONE,
        lambda x: np.maximum(x * x - 1, 0) * x, domain=nonzero,
    ),
    OpSpec(
        "gelu", (activations.Gelu, activations.GeluBackward),
        lambda m, x: m.nn.functional.gelu(x), ONE,
        lambda x: x * (1 + _erf(x / np.sqrt(2))) / 2, third=True,
    ),
    OpSpec(
        "gelu_tanh", (activations.Gelu, activations.GeluBackward),
        lambda m, x: m.nn.functional.gelu(x, approximate="tanh"), ONE, _gelu_tanh, third=True,
    ),
    # Two tensors
    two("add", arithmetic.Add, np.add, complex=True),
    two("sub", arithmetic.Sub, np.subtract, complex=True),
    two("mul", arithmetic.Mul, np.multiply, complex=True, third=True),
    two("div", arithmetic.Div, np.divide, domain=nonzero, complex=True),
    two("pow", power.Pow, np.power, domain=positive, complex=True),
    two("remainder", arithmetic.Remainder, np.mod, domain=between_integers),
    two("fmod", arithmetic.Remainder, np.fmod, domain=between_integers),
    OpSpec("remainder_number", (arithmetic.Remainder,), lambda m, x: x % 2 + m.fmod(x, 3), ONE,
           lambda x: x % 2 + np.fmod(x, 3), domain=between_integers),
    OpSpec("number_remainder", (arithmetic.Remainder,), lambda m, x: 7.3 % x, ONE,
           lambda x: np.mod(7.3, x), domain=between_integers, torch=False),
    OpSpec("floor_divide", (arithmetic.Div,), lambda m, a, b: a // b, TWO, np.floor_divide,
           domain=between_integers, torch=False),
    OpSpec("div_floor", (arithmetic.Div,), lambda m, a, b: m.div(a, b, rounding_mode="floor"), TWO,
           np.floor_divide, domain=between_integers),
    OpSpec("div_trunc", (arithmetic.Div,), lambda m, a, b: m.div(a, b, rounding_mode="trunc"), TWO,
           lambda a, b: np.trunc(a / b), domain=between_integers),
    two("rsub", arithmetic.Rsub, lambda a, b: b - a, complex=True),
    OpSpec("rsub_alpha", (arithmetic.Rsub,), lambda m, x: m.rsub(x, 2, alpha=3), ONE,
           lambda x: 2 - 3 * x, complex=True),
    OpSpec("float_power", (power.PowScalar,), lambda m, x: m.float_power(x, 3).to(x.dtype),
           ONE, lambda x: x**3),
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
        "numbers", (arithmetic.Rsub, arithmetic.Div),
        lambda m, x: (2 - x) * 3 + 1 / (x + 5) - x / 4, ONE,
        lambda x: (2 - x) * 3 + 1 / (x + 5) - x / 4, complex=True,
    ),
    *(
        OpSpec(
            f"pow_{exponent}", (power.PowScalar,), lambda m, x, n=exponent: x**n, ONE,
            lambda x, n=exponent: x**n, domain=positive, complex=exponent != 0,
        )
        for exponent in (0, 1, 2, 3, -1, 0.5, -2.5)
    ),
    OpSpec(
        "pow_negative_base", (power.PowScalar,), lambda m, x: x**3 + x**-2, ONE,
        lambda x: x**3 + x**-2.0, domain=lambda x: -positive(x),
    ),
    OpSpec(
        "number_pow", (power.NumberPow,), lambda m, x: 2.5**x, ONE, lambda x: 2.5**x, complex=True,
    ),
    OpSpec(
        "where", (comparison.Where,),
        lambda m, c, a, b: m.where(c, a, b),
        [(MASK, (2, 3), (2, 3)), (MASK, (3,), (2, 1)), (MASK[:, :1], (), (2, 3)),
         (np.array(True), (2,), (2,)), (np.zeros((0, 3), bool), (3,), ())],
        np.where, complex=True,
    ),
    OpSpec(
        "where_number", (comparison.Where,), lambda m, c, a: m.where(c, a, 0.5), [(MASK, (2, 3))],
        lambda c, a: np.where(c, a, 0.5),
    ),
    OpSpec(
        "cast_to_complex", (dtypes.Cast,), lambda m, x: x.to(m.complex128), ONE,
        lambda x: x.astype(np.complex128),
    ),
    OpSpec(
        "mixed_dtypes", (arithmetic.Mul,), lambda m, x: x * m.arange(3) + m.ones(3), ONE,
        lambda x: x * np.arange(3) + np.ones(3), domain=nonzero,
    ),
    *(
        OpSpec(
            f"{name}_real_and_complex", (cls,),
            lambda m, x, y, f=f: (f(x, y * (1 + 0.5j)), f(x * (1 - 2j), y)),
            [((2, 3), (3,)), ((), (2,))],
            lambda x, y, f=f: (f(x, y * (1 + 0.5j)), f(x * (1 - 2j), y)), domain=nonzero,
        )
        for name, cls, f in (
            ("add", arithmetic.Add, lambda a, b: a + b),
            ("sub", arithmetic.Sub, lambda a, b: a - b),
            ("mul", arithmetic.Mul, lambda a, b: a * b),
            ("div", arithmetic.Div, lambda a, b: a / b),
        )
    ),
    OpSpec(
        "pow_real_and_complex", (power.Pow,), lambda m, x, y: (x ** (y * 1j), (x * 1j) ** y),
        [((2, 3), (3,)), ((), (2,))], lambda x, y: (x ** (y * 1j), (x * 1j) ** y), domain=positive,
    ),
    OpSpec(
        "complex_numbers", (arithmetic.Mul, arithmetic.Add, power.PowScalar, power.NumberPow),
        lambda m, x: x * 2j + (x + 1j) / (2 - 1j) + 1j / x - x ** (1 + 0.5j) + (0.5 + 2j) ** x, ONE,
        lambda x: x * 2j + (x + 1j) / (2 - 1j) + 1j / x - x ** (1 + 0.5j) + (0.5 + 2j) ** x,
        domain=positive, complex=True,
    ),
    OpSpec(
        "copy", (CopyBackwards,), lambda m, a, b: a.clone().copy_(b),
        [((2, 3), (2, 3)), ((2, 3), (3,)), ((2,), ()), ((0, 2), (2,))],
        lambda a, b: np.broadcast_to(b, a.shape), complex=True,
    ),
]  # fmt: skip
