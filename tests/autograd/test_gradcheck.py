"""gradcheck and gradgradcheck reject wrong gradients and accept correct ones."""

from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import Tensor
from offgrad.autograd import Function, GradcheckError, gradcheck, gradgradcheck


def leaf(*shape: int, dtype: Any = np.float64) -> Tensor:
    values = np.random.default_rng(1).standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * np.random.default_rng(2).standard_normal(shape)
    return offgrad.tensor(values.astype(dtype), requires_grad=True)


class WrongScale(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return grads[0] * y, grads[0] * x * 1.01


class DetachedGradient(Function):
    """Correct first derivative; its gradient is recorded as independent of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grads[0] * (x.detach() * 2)


class Unrecorded(Function):
    """Correct first derivative; its gradient is not recorded."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return (grads[0] * x * 2).detach()


class Nondeterministic(Function):
    calls = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        Nondeterministic.calls += 1
        return grads[0] * (1 + 1e-9 * Nondeterministic.calls)


class WrongMissing(Function):
    """Two outputs; wrong only where one has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if grads[0] is None or grads[1] is None:
            return None
        return grads[0] * 2 + grads[1] * 3


def test_right_gradients_pass() -> None:
    assert gradcheck(lambda x, y: (x * y, x @ y), (leaf(2, 2), leaf(2, 2)))
    assert gradgradcheck(lambda x, y: (x * y, x @ y), (leaf(2, 2), leaf(2, 2)))
    assert gradcheck(offgrad.exp, leaf(3))


def test_wrong_gradient_is_named() -> None:
    inputs = (leaf(2), leaf(2))
    with pytest.raises(GradcheckError, match=r"(?s)output 0.*input 1.*numerical.*analytical"):
        gradcheck(WrongScale.apply, inputs)
    assert gradcheck(WrongScale.apply, inputs, raise_exception=False) is False
    assert gradcheck(WrongScale.apply, inputs, rtol=0.1)
    inputs[1].requires_grad_(False)
    assert gradcheck(WrongScale.apply, inputs)
    assert issubclass(GradcheckError, RuntimeError)


@pytest.mark.parametrize("function", [DetachedGradient, Unrecorded])
def test_gradgradcheck_finds_an_unrecorded_gradient(function: type[Function]) -> None:
    x = leaf(3)
    assert gradcheck(function.apply, x)
    with pytest.raises(GradcheckError):
        gradgradcheck(function.apply, x)
    assert gradgradcheck(function.apply, x, raise_exception=False) is False


def test_backward_must_be_deterministic() -> None:
    with pytest.raises(GradcheckError, match="nondet_tol"):
        gradcheck(Nondeterministic.apply, leaf(1))
    assert gradcheck(Nondeterministic.apply, leaf(1), nondet_tol=1e-6)


def test_each_output_is_checked_alone() -> None:
    with pytest.raises(GradcheckError):
        gradcheck(WrongMissing.apply, leaf(2))


def test_inputs_are_restored() -> None:
    x = leaf(3)
    before = x.detach().numpy().copy()
    gradcheck(offgrad.sin, x)

    def fail(x: Tensor) -> Tensor:
        if not np.array_equal(x.detach().numpy(), before):
            raise KeyError("changed")
        return x * 1

    with pytest.raises(KeyError):
        gradcheck(fail, x)
    np.testing.assert_array_equal(x.detach().numpy(), before)
    assert x.grad is None
    assert x._version == 0


def test_inputs_that_cannot_be_checked() -> None:
    with pytest.raises(ValueError, match="requires_grad=True"):
        gradcheck(offgrad.exp, leaf(2).detach())
    expanded = leaf(1).detach().expand(3).requires_grad_()
    with pytest.raises(RuntimeError, match="clone"):
        gradcheck(offgrad.exp, expanded)
    with pytest.warns(UserWarning, match="input 0 is float32"):
        gradcheck(offgrad.exp, leaf(2, dtype=np.float32), eps=1e-2, atol=1e-2, rtol=1e-2)


def test_non_contiguous_and_zero_size_inputs() -> None:
    x = leaf(2, 3).detach().T.requires_grad_()
    assert not x.is_contiguous()
    assert gradcheck(lambda x: x.exp().sum(0), x)
    assert gradcheck(lambda x: x * 2, leaf(0, 3))
    assert gradgradcheck(lambda x: x * x, leaf(0, 3, dtype=np.complex128))
    assert gradcheck(lambda x: x[:0], leaf(2))


def test_constant_function() -> None:
    assert gradcheck(offgrad.floor, leaf(3))
    assert gradcheck(lambda x: x.detach() * 0 + 1.0, leaf(2))
    with pytest.raises(GradcheckError):
        gradcheck(lambda x: x.detach() * 2, leaf(2))


def test_views_and_inputs_as_outputs() -> None:
    assert gradcheck(lambda x: (x, x.view(4), x.T), leaf(2, 2))


@pytest.mark.parametrize(
    "function",
    [
        lambda z: z * z,
        lambda z: z.conj(),
        lambda z: z.abs(),
        lambda z: z * z.conj(),
        lambda z: z.real * z.imag,
        lambda z: (z.exp(), z.real),
    ],
)
def test_complex_convention(function: Any) -> None:
    z = leaf(2, dtype=np.complex128)
    assert gradcheck(function, z)
    assert gradgradcheck(function, z)


def test_complex_gradient_without_conjugation_is_found() -> None:
    class Unconjugated(Function):
        @staticmethod
        def forward(ctx: Any, z: Tensor) -> Tensor:
            ctx.save_for_backward(z)
            return z * z

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            return grads[0] * ctx.saved_tensors[0] * 2

    with pytest.raises(GradcheckError):
        gradcheck(Unconjugated.apply, leaf(2, dtype=np.complex128))


def test_given_grad_outputs() -> None:
    start = leaf(2)
    assert gradgradcheck(lambda x: x**3, leaf(2), start)
    assert gradgradcheck(lambda x: x**3, leaf(2), [start])
    with pytest.raises(GradcheckError):
        gradgradcheck(DetachedGradient.apply, leaf(2), start)


def test_a_backward_that_is_not_linear_is_found() -> None:
    def shifted(x: Tensor) -> Tensor:
        y = x.clone()
        y.register_hook(lambda grad: grad + 1e-2)
        return y

    x = offgrad.ones(2, 2, dtype=offgrad.float64, requires_grad=True)
    with pytest.raises(GradcheckError, match="not multiplied by grad_output"):
        gradcheck(shifted, (x,), atol=0.1)
