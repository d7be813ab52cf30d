"""In-place changes after a save: backward gets the saved value or raises."""

from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import nn, optim
from offgrad.autograd import Function
from offgrad.autograd.graph import saved_tensors_hooks
from tests.session.backends import RecordingStore
from tests.session.graphs import Offload, bits, gradient, normal
from tests.session.helpers import everything


@pytest.mark.parametrize("how", ["recorded", "no_grad", "through a view", "detached"])
@pytest.mark.parametrize("size", [8, 300])
def test_a_saved_tensor_changed_in_place(how: str, size: int, offload: Offload) -> None:
    """Backward gets the saved value or raises; never a wrong gradient."""
    w = normal(2, size, size)
    for _ in range(5):
        start = normal(1, size, size)
        kept = start.detach().numpy() * np.float32(2)
        with offload():
            x = start * 2
            y = x * w
        if how == "recorded":
            x.mul_(3)
        elif how == "no_grad":
            with offgrad.no_grad():
                x.fill_(7)
        elif how == "through a view":
            with offgrad.no_grad():
                x.t()[1:].add_(5)
        else:
            x.detach().copy_(normal(5, size, size, grad=False))
        try:
            (grad,) = gradient(y.sum(), w)
        except RuntimeError as error:
            text = str(error)
            assert "MulBackward0.self" in text
            assert f"[{size}, {size}]" in text
            assert "at version 0 is at version 1" in text
        else:
            assert np.array_equal(grad.numpy(), kept)


def test_a_tensor_saved_before_and_after_a_change(offload: Offload) -> None:
    """Each save has the value at its time."""
    w = [normal(k, 300, 300) for k in range(4)]
    x = normal(9, 300, 300, grad=False)
    values, losses = [], []
    with offload():
        for each in w:
            values.append(x.numpy().copy())
            losses.append((x * each).sum())
            x.mul_(1.25)
    for each, value, loss in zip(w, values, losses, strict=True):
        try:
            loss.backward()
        except RuntimeError as error:
            text = str(error)
            assert "changed in place" in text
        else:
            assert np.array_equal(each.grad.numpy(), value)


def test_an_optimizer_step_between_forward_and_backward(offload: Offload) -> None:
    """The step must not change the saved values of parameters."""
    model = nn.Linear(200, 200)
    x = normal(1, 200, 200)
    with offload():
        loss = model(x).sum()
    weight = model.weight.detach().numpy().copy()
    for each in model.parameters():
        each.grad = offgrad.ones(*each.shape)
    optim.SGD(model.parameters(), lr=0.5).step()
    try:
        loss.backward()
    except RuntimeError as error:
        text = str(error)
        assert "SGD" in text
    else:
        expected = offgrad.ones(200, 200) @ offgrad.tensor(weight)
        assert np.array_equal(x.grad.numpy(), expected.numpy())


def test_a_saved_tensor_whose_data_is_replaced(offload: Offload) -> None:
    """Counts as an in-place change: the saved value or an error."""
    w, x = normal(1, 150, 150), normal(2, 150, 150)
    value = w.detach().numpy().copy()
    with offload():
        loss = (w * x).sum()
    w.data = normal(3, 150, 150, grad=False)
    try:
        loss.backward()
    except RuntimeError as error:
        text = str(error)
        assert "MulBackward0" in text
    else:
        assert np.array_equal(x.grad.numpy(), value)


def test_a_saved_tensor_detached_in_place(offload: Offload) -> None:
    """The second derivative uses the saved tensors or raises."""

    def second(detach: bool) -> Any:
        x = normal(1, 130, 130)
        with offload():
            y = x.sin()
            loss = (y * y * y.sin()).sum()
        if detach:
            y.detach_()
        (first,) = gradient(loss, x, create_graph=True)
        return gradient(first.sum(), x)[0]

    expected = second(False)
    try:
        found = second(True)
    except RuntimeError as error:
        text = str(error)
        assert "detach" in text
    else:
        assert bits(found) == bits(expected)


def test_hooks_that_keep_the_saved_tensor_itself_detect_its_change() -> None:
    w, y = normal(1, 4), normal(2, 4, grad=False)
    for unpack in (lambda x: x, lambda x: x.view(4), lambda x: x.clone(), lambda x: x * 1):
        with saved_tensors_hooks(lambda x: x, unpack):
            loss = (y * w).sum()
        y.add_(1)
        with pytest.raises(RuntimeError, match=r"MulBackward0.self saved at version"):
            loss.backward()


def test_hooks_that_copy_are_unaffected_by_a_change() -> None:
    w, y = normal(1, 4), normal(2, 4, grad=False)
    value = y.numpy().copy()
    with saved_tensors_hooks(lambda x: x.clone(), lambda x: x):
        loss = (y * w).sum()
    y.add_(1)
    loss.backward()
    assert np.array_equal(w.grad.numpy(), value)


def test_a_graph_changed_through_an_unpacked_tensor_does_not_affect_others(
    store: RecordingStore,
) -> None:
    """Changes that one backward makes to unpacked tensors are invisible to the next."""

    class Vandal(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * 1

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            (x,) = ctx.saved_tensors
            with offgrad.no_grad():
                x.detach().zero_()
            return grads[0]

    x = normal(1, 16, 16)
    with everything(store):
        y = x * 1
        a = y.sin().sum()
        b = Vandal.apply(y).sum()
    del y
    (a + b).backward(retain_graph=True)
    z = normal(1, 16, 16)
    (z.sin().sum() + z.sum()).backward()
    assert np.allclose(x.grad.numpy(), z.grad.numpy())
