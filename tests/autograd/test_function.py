"""User-defined Functions."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import Tensor
from offgrad.autograd import Function, gradcheck, gradgradcheck, once_differentiable

# Typed as Any, so that tests need not check each gradient for None.
grad: Any = offgrad.autograd.grad


def leaf(*values: float) -> Tensor:
    return offgrad.tensor(values, dtype=offgrad.float64, requires_grad=True)


class Cube(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float = 1.0) -> Tensor:
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x * x * x * scale

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grads[0] * x * x * (3 * ctx.scale), None


class SeparateCube(Function):
    @staticmethod
    def forward(x: Tensor, scale: float) -> Tensor:
        return x * x * x * scale

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.scale = inputs
        ctx.save_for_backward(x, output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, output = ctx.saved_tensors
        assert output.shape == x.shape
        return grads[0] * x * x * (3 * ctx.scale), None


@pytest.mark.parametrize("function", [Cube, SeparateCube])
def test_both_styles(function: type[Function]) -> None:
    x = leaf(1, -2)
    assert gradcheck(lambda x: function.apply(x, 2.0), x)
    assert gradgradcheck(lambda x: function.apply(x, 2.0), x)
    y = function.apply(x, 2.0)
    assert y.grad_fn.name() == f"{function.__name__}Backward"
    assert not y.is_leaf
    with offgrad.no_grad():
        assert not function.apply(x, 2.0).requires_grad
    assert not function.apply(x.detach(), 2.0).requires_grad


def test_forward_is_not_recorded_and_backward_runs_only_when_needed() -> None:
    modes = []

    class Modes(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            modes.append(offgrad.is_grad_enabled())
            assert x.requires_grad
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            modes.append(offgrad.is_grad_enabled())
            return grads[0] * 2

    x = leaf(1.0)
    y = Modes.apply(x)
    grad(y, x, retain_graph=True)
    grad(y, x, create_graph=True)
    assert modes == [False, False, True]


def test_arguments_of_every_kind_and_needs_input_grad() -> None:
    seen = {}

    class Mixed(Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor, b: Tensor, n: int, none: None, c: Tensor) -> Tensor:
            ctx.save_for_backward(a, None, c)
            return a * n + b + c

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            seen["needs"] = ctx.needs_input_grad
            seen["saved"] = [each is None for each in ctx.saved_tensors]
            return grads[0] * 3, None, None, None, grads[0]

    a, b, c = leaf(1.0), leaf(2.0).detach(), leaf(3.0)
    first, third = grad(Mixed.apply(a, b, 3, None, c), [a, c])
    assert first is not None
    assert third is not None
    assert (first.item(), third.item()) == (3, 1)
    assert seen == {
        "needs": (True, False, False, False, True),
        "saved": [False, True, False],
    }


class Two(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor, int]:
        return x * 2, x * 3, 7

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ctx.metadata.setdefault("seen", []).append(grads)
        return grads[0] * 2 + grads[1] * 3


def test_missing_gradients_are_zeros() -> None:
    x = leaf(1, 2)
    a, b, number = Two.apply(x)
    assert number == 7
    assert grad(a.sum(), x, retain_graph=True)[0].tolist() == [2, 2]
    assert grad(b.sum(), x)[0].tolist() == [3, 3]


def test_missing_gradients_may_stay_none() -> None:
    class Lazy(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            ctx.set_materialize_grads(False)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            assert grads[0] is None
            return grads[1] * 3

    x = leaf(1, 2)
    assert grad(Lazy.apply(x)[1].sum(), x)[0].tolist() == [3, 3]


def test_mark_non_differentiable() -> None:
    class Split(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            sign = x.sign()
            ctx.mark_non_differentiable(sign)
            return x * 2, sign

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            assert grads[1].tolist() == [0, 0]
            return grads[0] * 2

    x = leaf(1, -2)
    y, sign = Split.apply(x)
    assert y.requires_grad
    assert not sign.requires_grad
    assert sign.is_leaf
    assert grad(y.sum(), x)[0].tolist() == [2, 2]


def test_integer_outputs_do_not_require_grad() -> None:
    class Count(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            return x * 2, (x > 0).sum()

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return grads[0] * 2

    x = leaf(1, -2)
    y, count = Count.apply(x)
    assert not count.requires_grad
    assert grad(y.sum(), x)[0].tolist() == [2, 2]


def test_input_returned_unchanged() -> None:
    class Same(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            return grads[0] * 10

    x = leaf(1, 2)
    y = Same.apply(x)
    assert y is not x
    assert x.is_leaf
    assert grad(y.sum(), x)[0].tolist() == [10, 10]


def test_saved_output_and_intermediate() -> None:
    class Expm(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            half = (x * 0.5).exp()
            result = half * half
            ctx.save_for_backward(result, half)
            return result

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            result, half = ctx.saved_tensors
            np.testing.assert_allclose((half * half).detach().numpy(), result.detach().numpy())
            return grads[0] * result

    assert gradcheck(Expm.apply, leaf(1, 2))
    assert gradgradcheck(Expm.apply, leaf(1, 2))


@pytest.mark.parametrize(
    ("returned", "error", "match"),
    [
        (lambda g: (g, g), RuntimeError, r"each argument.*: 2, not 1"),
        (lambda g: (), RuntimeError, ": 0, not 1"),
        (lambda g: 3.0, RuntimeError, r"got float\) at index 0"),
        (lambda g: g[:1], RuntimeError, r"got \[1\] but expected .* \[2\]"),
        (lambda g: g.sum(), RuntimeError, "expected shape compatible"),
    ],
)
def test_results_of_backward_are_checked(
    returned: Callable[[Tensor], Any], error: type[Exception], match: str
) -> None:
    class Bad(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            return returned(grads[0])

    with pytest.raises(error, match=match):
        Bad.apply(leaf(1, 2)).sum().backward()


def test_extra_nones_are_allowed_and_dtype_is_converted() -> None:
    class Extra(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            return grads[0].float() * 2, None, None

    x = leaf(1, 2)
    Extra.apply(x).sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == offgrad.float64
    assert x.grad.tolist() == [2, 2]


def test_save_for_backward_takes_tensors_only() -> None:
    class Bad(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x, 3)
            return x

    with pytest.raises(TypeError, match=r"int.*attributes of ctx"):
        Bad.apply(leaf(1.0))


def test_missing_methods_raise() -> None:
    class Half(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1

    with pytest.raises(NotImplementedError, match="backward"):
        Half.apply(leaf(1.0)).backward()
    with pytest.raises(NotImplementedError, match="forward"):
        Function.apply(leaf(1.0))


def test_once_differentiable() -> None:
    class Once(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, *grads: Tensor) -> Any:
            assert not offgrad.is_grad_enabled()
            return grads[0] * ctx.saved_tensors[0] * 2

    x = leaf(1, 2)
    assert grad(Once.apply(x).sum(), x)[0].tolist() == [2, 4]
    (first,) = grad((Once.apply(x) * x).sum(), x, create_graph=True)
    assert first is not None
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad(first.sum(), x)


def test_once_differentiable_raises_whenever_second_order_would_be_wrong() -> None:
    """Also if the incoming gradient is a constant: the gradient depends on x."""

    class Once(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, *grads: Tensor) -> Any:
            return grads[0] * ctx.saved_tensors[0] * 2

    x = leaf(1, 2)
    (first,) = grad((Once.apply(x) + x * x).sum(), x, create_graph=True)
    assert first is not None
    try:
        (second,) = grad(first.sum(), x)
    except RuntimeError:
        return
    assert second is not None
    assert second.tolist() == [4, 4]


def test_saved_tensors_after_backward() -> None:
    x = leaf(1, 2)
    y = Cube.apply(x, 1.0).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="retain_graph"):
        y.backward()
