"""A Function's own `jvp` gives its tangents in forward differentiation."""

from typing import Any

import pytest

import offgrad as og
from offgrad.autograd import forward_ad


class Scaled(og.autograd.Function):
    """x y and x + 1, whose `jvp` multiplies by ten to be told apart from `backward`."""

    @staticmethod
    def forward(x: Any, y: Any) -> Any:
        return x * y, x + 1

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Any, other: Any) -> Any:
        x, y = ctx.saved_tensors
        return grad * y + other, grad * x

    @staticmethod
    def jvp(ctx: Any, of_x: Any, of_y: Any) -> Any:
        x, y = ctx.saved_tensors
        second = 0 if of_y is None else of_y * x
        return 10 * (of_x * y + second), of_x


class OnlyForward(og.autograd.Function):
    """Doubles; has no `backward`."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_forward(x)
        return x * 2

    @staticmethod
    def jvp(ctx: Any, of_x: Any) -> Any:
        (x,) = ctx.saved_tensors
        return of_x * x * 3


def test_dual_tensors_take_it() -> None:
    with forward_ad.dual_level():
        x = forward_ad.make_dual(og.tensor(2.0), og.tensor(1.0))
        product, plus_one = Scaled.apply(x, og.tensor(3.0))
        assert forward_ad.unpack_dual(product).tangent.item() == 30
        assert forward_ad.unpack_dual(plus_one).tangent.item() == 1
        assert forward_ad.unpack_dual(product * plus_one).tangent.item() == 30 * 3 + 6


@pytest.mark.parametrize("materialize", [True, False])
def test_tangents_of_tensors_without_one(materialize: bool) -> None:
    given: list[Any] = []

    class Product(og.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any, index: Any, power: float) -> Any:
            if not materialize:
                ctx.set_materialize_grads(False)
            return x * y**power

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            given.extend(tangents)
            return tangents[0]

    with forward_ad.dual_level():
        x = forward_ad.make_dual(og.ones(2), og.ones(2))
        forward_ad.unpack_dual(Product.apply(x, og.ones(1), og.tensor([1]), 2.0))
    of_y, *others = given[1:]
    assert others == [None, None]
    assert (of_y.tolist() == [0]) if materialize else (of_y is None)


def test_a_function_needs_no_backward_for_it() -> None:
    with forward_ad.dual_level():
        x = forward_ad.make_dual(og.tensor([2.0, 5.0]), og.tensor([1.0, 10.0]))
        assert forward_ad.unpack_dual(OnlyForward.apply(x)).tangent.tolist() == [6, 150]


def test_jvp_and_linearize_take_it() -> None:
    primals = og.tensor(2.0), og.tensor(3.0)
    output, tangents = og.func.jvp(Scaled.apply, primals, (og.tensor(1.0), og.tensor(1.0)))
    assert [each.item() for each in output] == [6, 3]
    assert [each.item() for each in tangents] == [50, 1]
    assert og.func.linearize(OnlyForward.apply, og.tensor(2.0))[1](og.tensor(1.0)).item() == 6


def test_backward_stays_the_gradient_of_backward() -> None:
    x: Any = og.tensor(2.0, requires_grad=True)
    Scaled.apply(x, og.tensor(3.0))[0].backward()
    assert x.grad.item() == 3


def test_tangents_of_it_can_be_differentiated() -> None:
    x = og.tensor(2.0, requires_grad=True)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, og.tensor(1.0))
        tangent = forward_ad.unpack_dual(OnlyForward.apply(dual)).tangent
    assert og.autograd.grad(tangent, x)[0].item() == 3


def test_a_wrong_number_of_tangents_is_refused() -> None:
    class Wrong(Scaled):
        @staticmethod
        def jvp(ctx: Any, of_x: Any, of_y: Any) -> Any:
            return of_x

    with forward_ad.dual_level():
        x = forward_ad.make_dual(og.tensor(2.0), og.tensor(1.0))
        product, _ = Wrong.apply(x, og.tensor(3.0))
        with pytest.raises(RuntimeError, match="jvp must return a tangent"):
            forward_ad.unpack_dual(product)


def test_outputs_without_gradients_need_no_tangents() -> None:
    class Unmaterialized(Scaled):
        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            Scaled.setup_context(ctx, inputs, output)
            ctx.set_materialize_grads(False)

    with forward_ad.dual_level():
        x = forward_ad.make_dual(og.tensor(2.0), og.tensor(1.0))
        product, _ = Unmaterialized.apply(x, og.tensor(3.0))
        assert forward_ad.unpack_dual(product).tangent.item() == 30
