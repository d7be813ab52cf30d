"""Complex numbers: gradients, views of parts, mixed operands, errors."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad.autograd import gradcheck, gradgradcheck

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")

LIBS = [pytest.param(offgrad, id="offgrad"), pytest.param(torch, id="torch")]


def cleaf(m: Any, *values: complex, dtype: str = "complex128") -> Any:
    return m.tensor(list(values), dtype=getattr(m, dtype), requires_grad=True)


def leaf(m: Any, *values: float, dtype: str = "float64") -> Any:
    return m.tensor(list(values), dtype=getattr(m, dtype), requires_grad=True)


# The convention


@pytest.mark.parametrize("m", LIBS)
def test_the_gradient_is_the_conjugate_wirtinger_derivative(m: Any) -> None:
    """The specification's example: of f(z) = c z with a real loss, c conjugated."""
    z = cleaf(m, 1 + 2j)
    (z * (3 - 4j)).real.sum().backward()
    assert z.grad.tolist() == [3 + 4j]


@pytest.mark.parametrize("m", LIBS)
def test_descent_along_the_gradient_lowers_a_real_loss(m: Any) -> None:
    z = cleaf(m, 3 + 4j, -2j)
    for _ in range(200):
        loss = (z - (1 - 1j)).abs().square().sum()
        (grad,) = m.autograd.grad(loss, z)
        z = (z - 0.1 * grad).detach().requires_grad_()
    assert z.tolist() == pytest.approx([1 - 1j, 1 - 1j], abs=1e-9)


@pytest.mark.parametrize("m", LIBS)
def test_the_gradient_of_parts_is_that_of_two_real_numbers(m: Any) -> None:
    a, b = leaf(m, 0.5), leaf(m, -1.5)
    loss = m.complex(a, b).exp().abs().sum() + (m.complex(a, b) ** 3).imag.sum()
    wanted = [each.item() for each in m.autograd.grad(loss, (a, b))]
    z = cleaf(m, 0.5 - 1.5j)
    (grad,) = m.autograd.grad(z.exp().abs().sum() + (z**3).imag.sum(), z)
    assert grad.item() == pytest.approx(complex(*wanted))


@pytest.mark.parametrize("m", LIBS)
def test_backward_of_a_complex_result_needs_a_gradient(m: Any) -> None:
    with pytest.raises(RuntimeError):
        cleaf(m, 1j).sum().backward()
    z = cleaf(m, 1j)
    z.sum().backward(m.tensor(2j, dtype=m.complex128))
    assert z.grad.tolist() == [2j]


# Real and complex together

MIXED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "add": lambda m, x, z: x + z,
    "sub": lambda m, x, z: z - x,
    "rsub": lambda m, x, z: m.rsub(z, x, alpha=2),
    "mul": lambda m, x, z: x * z,
    "div": lambda m, x, z: x / z,
    "div of complex": lambda m, x, z: z / x,
    "pow": lambda m, x, z: x**z,
    "pow of complex": lambda m, x, z: z**x,
    "number": lambda m, x, z: x * 2j + 1j / x,
    "addcmul": lambda m, x, z: m.addcmul(x, z, x),
    "addcdiv": lambda m, x, z: m.addcdiv(z, x, z, value=2),
    "alpha": lambda m, x, z: m.add(x, z, alpha=2j),
}


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize(
    ("real", "complex_"),
    [("float64", "complex128"), ("float32", "complex64"), ("float32", "complex128")],
)
def test_real_operands_get_real_gradients(name: str, real: str, complex_: str) -> None:
    found = []
    for m in (offgrad, torch):
        x, z = leaf(m, 0.5, 2.0, dtype=real), cleaf(m, 1 + 2j, 0.5 - 1j, dtype=complex_)
        result = MIXED[name](m, x, z)
        result.abs().sum().backward()
        found.append([result.detach(), x.grad, z.grad])
    for mine, theirs in zip(*found, strict=True):
        if theirs is None:
            assert mine is None
            continue
        assert str(mine.dtype) == str(theirs.dtype)
        tolerance = 1e-9 if real == "float64" else 1e-5
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), tolerance, tolerance)


def test_where_of_real_and_complex() -> None:
    """torch raises in backward here."""
    x, z = leaf(offgrad, 1.0, 2.0), cleaf(offgrad, 1j, 2j)
    condition = offgrad.tensor([True, False])
    offgrad.where(condition, x, z).abs().sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == offgrad.float64
    assert x.grad.tolist() == [1.0, 0.0]
    assert z.grad is not None
    assert z.grad.tolist() == [0, 1j]


def test_logaddexp_of_real_and_complex() -> None:
    """torch raises in backward here."""
    inputs = [leaf(offgrad, 0.5, 1.0), cleaf(offgrad, 1 + 1j, -1j)]
    assert gradcheck(lambda x, z: offgrad.logaddexp(x, z), inputs)


def test_second_derivatives_of_mixed_operands() -> None:
    inputs = [leaf(offgrad, 0.5, 2.0), cleaf(offgrad, 1 + 2j, 0.5 - 1j)]
    for call in MIXED.values():
        assert gradgradcheck(lambda x, z, call=call: call(offgrad, x, z), inputs)


# Parts


@pytest.mark.parametrize("m", LIBS)
def test_parts_are_views(m: Any) -> None:
    z = m.tensor([1 + 2j, 3 + 4j])
    pairs = m.view_as_real(z)
    assert pairs.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert pairs._base is z
    pairs[0, 1] = 7.0
    z.real[1] = -1.0
    assert z.tolist() == [1 + 7j, -1 + 4j]
    back = m.view_as_complex(pairs)
    back[0] = 0.0
    assert z.tolist() == [0, -1 + 4j]
    assert z._version == 3


@pytest.mark.parametrize("m", LIBS)
def test_gradients_flow_through_changed_parts(m: Any) -> None:
    z = cleaf(m, 1 + 2j, 3 + 4j)
    w = z * 1
    w.imag.mul_(3)
    m.view_as_real(w)[0].mul_(2)
    (w.real.sum() + w.imag.sum()).backward()
    assert z.grad.tolist() == [2 + 6j, 1 + 3j]


@pytest.mark.parametrize("m", LIBS)
def test_views_of_strided_memory(m: Any) -> None:
    z = m.arange(6, dtype=m.float64).view(2, 3).to(m.complex128) * (1 + 2j)
    assert m.view_as_real(z.T)[2, 1].tolist() == [5.0, 10.0]
    assert m.view_as_real(z[:, ::2]).stride() == (6, 4, 1)
    pairs = m.arange(12, dtype=m.float64).view(2, 3, 2)
    assert m.view_as_complex(pairs[:, ::2]).tolist() == [[0 + 1j, 4 + 5j], [6 + 7j, 10 + 11j]]
    assert m.view_as_complex(m.zeros(0, 2)).shape == (0,)


@pytest.mark.parametrize("m", LIBS)
def test_conjugates(m: Any) -> None:
    z, x = cleaf(m, 1 + 2j), leaf(m, 1.0)
    assert m.conj(z).tolist() == m.conj_physical(z).tolist() == [1 - 2j]
    assert m.conj(x) is x or m.conj(x).tolist() == [1.0]
    assert m.resolve_conj(m.conj(z)).tolist() == [1 - 2j]
    (m.conj(z) * 1j).real.sum().backward()
    assert z.grad.tolist() == [1j]


@pytest.mark.parametrize("m", LIBS)
def test_is_complex(m: Any) -> None:
    z, x = cleaf(m, 1 + 2j, 3 + 0j), leaf(m, 1.0)
    assert m.is_complex(z)
    assert not m.is_complex(x)
    assert m.is_floating_point(x)
    assert not m.is_floating_point(z)
    assert m.isreal(z).tolist() == [False, True]
    assert m.isreal(x).tolist() == [True]
    assert m.real(x).tolist() == [1.0]


@pytest.mark.parametrize("m", LIBS)
def test_polar_and_back(m: Any) -> None:
    z = cleaf(m, 3 + 4j, -1j, -2.0)
    assert m.polar(z.abs(), m.angle(z)).tolist() == pytest.approx(z.tolist())
    assert m.angle(z).dtype == m.float64
    real = m.tensor([-1.0, 1.0, -0.0, float("nan")], dtype=m.float64)
    assert m.angle(real).tolist() == pytest.approx([np.pi, 0.0, 0.0, float("nan")], nan_ok=True)
    assert m.angle(m.tensor([-2, 2])).dtype == m.float32
    small = m.complex(leaf(m, 1.0, dtype="float32"), leaf(m, 2.0, dtype="float32"))
    assert small.dtype == m.complex64


# complex64 through everything that takes complex numbers

UNARY = [
    "neg", "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sqrt", "rsqrt", "reciprocal",
    "sigmoid", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh",
    "acosh", "atanh", "sinc", "square", "abs", "sgn", "angle", "conj_physical", "positive", "sum",
    "mean", "prod", "var", "std", "norm", "real", "imag", "view_as_real",
]  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_complex64(name: str) -> None:
    found = []
    for m in (offgrad, torch):
        z = cleaf(m, 0.5 + 0.25j, 1.5 - 1j, -0.25 - 0.5j, dtype="complex64")
        result = getattr(m, name)(z)
        result.abs().sum().backward()
        found.append((result, z.grad))
    (mine, grad), (theirs, wanted) = found
    assert str(mine.dtype) == str(theirs.dtype)
    assert grad.dtype == offgrad.complex64
    np.testing.assert_allclose(mine.detach().numpy(), theirs.detach().numpy(), 1e-5, 1e-6)
    np.testing.assert_allclose(grad.numpy(), wanted.numpy(), 2e-5, 1e-5)


# Errors


def _z(m: Any) -> Any:
    return m.tensor([1 + 2j, 2 - 1j])


def _x(m: Any) -> Any:
    return m.tensor([1.0, 2.0])


def _of_one(name: str) -> Callable[[Any], Any]:
    return lambda m: getattr(m, name)(_z(m))


def _of_two(name: str) -> Callable[[Any], Any]:
    return lambda m: getattr(m, name)(_z(m), _x(m))


REFUSED: dict[str, Callable[[Any], Any]] = {
    **{
        name: _of_one(name)
        for name in (
            "erf", "erfc", "erfinv", "frac", "logit", "deg2rad", "rad2deg", "nansum", "nanmean",
            "median", "aminmax", "argsort", "sort", "floor", "ceil", "round", "trunc", "sign",
            "isposinf", "isneginf", "signbit", "amax", "amin", "max", "min", "argmax", "argmin",
            "msort",
        )
    },
    **{
        f"{name} of two": _of_two(name)
        for name in (
            "maximum", "minimum", "floor_divide", "remainder", "atan2", "hypot", "fmod",
            "logaddexp2", "xlogy", "heaviside", "fmax", "fmin", "copysign", "lt", "ge", "isclose",
            "complex", "polar", "bitwise_and",
        )
    },
    "clamp": lambda m: m.clamp(_z(m), 0, 1),
    "clamp by tensors": lambda m: m.clamp(_z(m), min=_x(m)),
    "clamp to complex": lambda m: m.clamp(_x(m), min=_z(m)),
    "max along a dim": lambda m: m.max(_z(m), 0),
    "cummax": lambda m: m.cummax(_z(m), 0),
    "topk": lambda m: m.topk(_z(m), 1),
    "kthvalue": lambda m: m.kthvalue(_z(m), 1),
    "rounded quotient": lambda m: m.div(_z(m), 2, rounding_mode="floor"),
    "lerp of two dtypes": lambda m: m.lerp(_z(m), _x(m), 0.5),
    "complex alpha of real": lambda m: m.add(_x(m), _x(m), alpha=1j),
    "imag of real": lambda m: m.imag(_x(m)),
    "view_as_real of real": lambda m: m.view_as_real(_x(m)),
    "view_as_complex of three": lambda m: m.view_as_complex(m.ones(2, 3)),
    "view_as_complex of a number": lambda m: m.view_as_complex(m.tensor(1.0)),
    "view_as_complex of a gap": lambda m: m.view_as_complex(m.ones(2, 4)[:, ::2]),
    "view_as_complex of odd strides": lambda m: m.view_as_complex(m.ones(2, 3)[:, :2]),
    "view_as_complex of complex": lambda m: m.view_as_complex(m.ones(2, dtype=m.complex64)),
    "view_as_complex of integers": lambda m: m.view_as_complex(m.ones(2, dtype=m.int64)),
    "complex of two dtypes": lambda m: m.complex(_x(m), _x(m).double()),
    "complex of integers": lambda m: m.complex(m.tensor([1]), m.tensor([1])),
    "polar of integers": lambda m: m.polar(m.tensor([1]), m.tensor([1])),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_the_same_class_of_error(case: str) -> None:
    """offgrad may raise NotImplementedError, a RuntimeError, where torch raises RuntimeError."""
    with pytest.raises(Exception) as theirs:
        REFUSED[case](torch)
    with pytest.raises(theirs.type) as mine:
        REFUSED[case](offgrad)
    assert len(str(mine.value)) > 15
