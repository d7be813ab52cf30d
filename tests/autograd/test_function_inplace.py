"""Functions that change their inputs, or return views of them."""

from collections.abc import Callable
from typing import Any

import pytest

import offgrad
from offgrad import Tensor
from offgrad.autograd import Function

# Typed as Any, so that tests need not check each gradient for None.
grad: Any = offgrad.autograd.grad


def leaf(*values: float) -> Tensor:
    return offgrad.tensor(values, dtype=offgrad.float64, requires_grad=True)


class Triple(Function):
    """Multiplies by 3, in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] * 3


def test_mark_dirty() -> None:
    x = leaf(1, 2)
    y = x * 1
    z = Triple.apply(y)
    assert z is y
    assert y._version == 2  # the multiplication and the mark
    assert y.grad_fn.name() == "TripleBackward"
    assert grad(y.sum(), x)[0].tolist() == [3, 3]


def test_mark_dirty_is_detected_by_saved_tensors() -> None:
    x = leaf(1, 2)
    y = x * 1
    square = (y * y).sum()
    Triple.apply(y)
    with pytest.raises(RuntimeError, match="in place"):
        square.backward()


def test_mark_dirty_alone_increments_the_version() -> None:
    class Behind(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.mark_dirty(x)
            x.detach().numpy()[...] *= 3
            return x

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            return grads[0] * 3

    x = leaf(1, 2)
    y = x * 1
    square = (y * y).sum()
    Behind.apply(y)
    with pytest.raises(RuntimeError, match=r"in place.*BehindBackward"):
        square.backward()


def test_mark_dirty_refuses_leaves() -> None:
    with pytest.raises(RuntimeError, match="leaf"):
        Triple.apply(leaf(1, 2))


def test_mark_dirty_of_a_constant_makes_it_part_of_the_graph() -> None:
    class Into(Function):
        @staticmethod
        def forward(ctx: Any, target: Tensor, x: Tensor) -> Tensor:
            ctx.mark_dirty(target)
            return target.copy_(x)

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            return None, grads[0]

    x, target = leaf(1, 2), offgrad.zeros(2, dtype=offgrad.float64)
    Into.apply(target, x)
    assert target.requires_grad
    assert grad((target * 2).sum(), x)[0].tolist() == [2, 2]


@pytest.mark.parametrize(
    "use",
    [
        # An earlier view, the new content of the memory, or a view itself: correct, or refused.
        lambda y: (y[0], Triple.apply(y))[0],
        lambda y: (Triple.apply(y[:1]), y[0])[1],
        lambda y: (Triple.apply(y[:1]), y)[1][0],
    ],
)
def test_mark_dirty_and_views_are_never_silently_wrong(use: Callable[[Tensor], Tensor]) -> None:
    x = leaf(1, 2)
    y = x * 1
    try:
        (found,) = grad(use(y), x)
    except (RuntimeError, NotImplementedError):
        return
    assert found is not None
    assert found.tolist() == [3, 0]


def test_mark_dirty_of_a_view_of_a_leaf_is_refused() -> None:
    x = leaf(1, 2)
    with pytest.raises(RuntimeError, match="view"):
        Triple.apply(x[0])


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x.view(2, 1), lambda x: x[:1]])
def test_changing_an_output_that_is_a_view_of_the_input_is_never_silent(
    view: Callable[[Tensor], Tensor],
) -> None:
    class Same(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return view(x)

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            return offgrad.zeros(2, dtype=offgrad.float64) + grads[0].sum()

    x = leaf(1, 2)
    y = x * 1
    z = Same.apply(y)
    assert z is not y
    with pytest.raises((RuntimeError, NotImplementedError), match="view"):
        z.mul_(3)
