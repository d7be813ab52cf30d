"""Tensors saved for backward: identity, lifetime, and in-place changes."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import Tensor
from offgrad.autograd import Function, grad
from offgrad.autograd.graph import SavedTensor


def leaf(*values: float) -> Tensor:
    return offgrad.tensor(values, dtype=offgrad.float64, requires_grad=True)


def node(tensor: Tensor) -> Any:
    assert tensor.grad_fn is not None
    return tensor.grad_fn


def test_saved_input_is_the_tensor_itself() -> None:
    x = leaf(1, 2)
    y = x.pow(2)
    assert node(y)._saved_self is x
    assert node(y)._saved_exponent == 2
    z = x * x
    assert node(z)._saved_self is x
    assert node(z)._saved_other is x


def test_saved_output_is_rebuilt_over_the_same_memory() -> None:
    x = leaf(1, 2)
    y = x.exp()
    saved = node(y)._saved_result
    assert saved is not y
    assert saved is not node(y)._saved_result
    assert saved.equal(y)
    assert np.may_share_memory(saved._array, y._array)
    assert saved.grad_fn is node(y)
    (again,) = grad(saved.sum(), x)
    assert again is not None
    np.testing.assert_allclose(again.numpy(), np.exp([1, 2]))


def test_output_is_freed_with_its_last_user() -> None:
    gc.disable()
    try:
        y = leaf(1, 2).exp()
        alive = weakref.ref(y)
        del y
        assert alive() is None
    finally:
        gc.enable()


def test_only_what_backward_needs_is_saved() -> None:
    a, b = leaf(1.0), leaf(2.0).detach()
    y = a * b
    assert node(y)._saved_self is None
    assert node(y)._saved_other is b
    with pytest.raises(AttributeError, match=r"_saved_third.*other"):
        node(y)._saved_third
    assert not [name for name in ("_saved_self", "_saved_other") if hasattr(node(a + b), name)]


def test_raw_saved_is_a_saved_tensor() -> None:
    x = leaf(1, 2)
    raw = node(x * x)._raw_saved_self
    assert isinstance(raw, SavedTensor)
    assert raw.unpack() is x


def test_error_of_reading_after_release_names_retain_graph() -> None:
    x = leaf(1, 2)
    y = (x * x).sum()
    product = node(y).next_functions[0][0]
    raw = product._raw_saved_self
    assert product._saved_self is x
    y.backward()
    with pytest.raises(RuntimeError, match=r"MulBackward0\.self.*retain_graph=True"):
        product._saved_self
    with pytest.raises(RuntimeError, match="freed"):
        raw.register_hooks(lambda t: t, lambda t: t)


def test_changed_input_is_named() -> None:
    x = leaf(1, 2)
    y = x * 1
    loss = (y * y).sum()
    y.add_(1)
    y.mul_(2)
    with pytest.raises(
        RuntimeError,
        match=r"float64.*shape \[2\].*MulBackward0\.(self|other).*version 0.*version 2.*mul_",
    ):
        loss.backward()


def test_changed_output_is_named() -> None:
    x = leaf(1, 2)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match=r"ExpBackward0\.result.*version 0.*version 1.*add_"):
        y.sum().backward()


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.add_(1),
        lambda t: t.zero_(),
        lambda t: t.fill_(3.0),
        lambda t: t.copy_(offgrad.zeros(2)),
        lambda t: t.__setitem__(0, 5.0),
        lambda t: t.view(2, 1).mul_(2),
        lambda t: t.detach().mul_(2),
        lambda t: t.data.mul_(2),
        lambda t: t[:1].sub_(1),
        lambda t: t.permute(0).uniform_(),
        lambda t: t.normal_(),
    ],
)
def test_every_kind_of_change_is_detected(change: Any) -> None:
    w = leaf(3, 4)
    constant = offgrad.ones(2, dtype=offgrad.float64)
    loss = (w * constant).sum()
    change(constant)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_change_of_the_base_is_detected_in_a_view_and_the_reverse() -> None:
    w = leaf(3, 4)
    base = offgrad.ones(2, 2, dtype=offgrad.float64)
    through_view = (w * base[0]).sum()
    base[1] = 7.0
    with pytest.raises(RuntimeError, match="version"):
        through_view.backward()


def test_optimizer_step_between_forward_and_backward_is_detected() -> None:
    w = leaf(3, 4)
    loss = (w * w).sum()
    w.grad = offgrad.ones(2, dtype=offgrad.float64)
    offgrad.optim.SGD([w], lr=0.1).step()
    with pytest.raises(RuntimeError, match="SGD"):
        loss.backward()


def test_changes_after_backward_and_of_unsaved_tensors_are_allowed() -> None:
    x = leaf(1, 2)
    y = x * 1
    loss = (y + y).sum()
    y.mul_(3)
    loss.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2]
    z = x * x
    z.sum().backward()
    with offgrad.no_grad():
        x.zero_()


def test_function_saves_are_checked_too() -> None:
    class Product(Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
            ctx.save_for_backward(a, b)
            return a * b

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            a, b = ctx.saved_tensors
            return grads[0] * b, grads[0] * a

    x = leaf(1, 2)
    factor = offgrad.ones(2, dtype=offgrad.float64)
    y = Product.apply(x, factor)
    factor.add_(1)
    with pytest.raises(RuntimeError, match=r"ProductBackward\.1.*add_"):
        y.sum().backward()
