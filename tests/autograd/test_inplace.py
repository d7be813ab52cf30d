"""In-place operations: correct or refused, never silently wrong."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import Tensor

# Typed as Any, so that tests need not check each gradient for None.
grad: Any = offgrad.autograd.grad


def leaf(*values: float) -> Tensor:
    return offgrad.tensor(values, dtype=offgrad.float64, requires_grad=True)


def zeros(*shape: int) -> Tensor:
    return offgrad.zeros(*shape, dtype=offgrad.float64)


def gradient(output: Tensor, x: Tensor) -> list[Any]:
    (found,) = grad(output.sum(), x)
    assert found is not None
    return found.tolist()  # type: ignore[no-any-return]


INPLACE: dict[str, tuple[Callable[[Tensor], Any], Callable[[Tensor], Tensor]]] = {
    "add_": (lambda t: t.add_(2), lambda t: t + 2),
    "add_ alpha": (lambda t: t.add_(3, alpha=2), lambda t: t + 6),
    "sub_": (lambda t: t.sub_(1), lambda t: t - 1),
    "mul_": (lambda t: t.mul_(3), lambda t: t * 3),
    "div_": (lambda t: t.div_(2), lambda t: t / 2),
    "exp_": (lambda t: t.exp_(), lambda t: t.exp()),
    "neg_": (lambda t: t.neg_(), lambda t: -t),
    "sqrt_": (lambda t: t.sqrt_(), lambda t: t.sqrt()),
    "relu_": (lambda t: t.relu_(), lambda t: t.relu()),
    "sigmoid_": (lambda t: t.sigmoid_(), lambda t: t.sigmoid()),
    "tanh_": (lambda t: t.tanh_(), lambda t: t.tanh()),
    "zero_": (lambda t: t.zero_(), lambda t: t * 0),
    "fill_": (lambda t: t.fill_(4), lambda t: t * 0 + 4),
    "copy_": (lambda t: t.copy_(zeros(2) + 7), lambda t: t * 0 + 7),
    "masked_fill_": (
        lambda t: t.masked_fill_(t.detach() > 1, 0.0),
        lambda t: t.masked_fill(t.detach() > 1, 0.0),
    ),
    "setitem": (
        lambda t: t.__setitem__(0, 5.0),
        lambda t: t * offgrad.tensor([0, 1]) + offgrad.tensor([5.0, 0]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", INPLACE)
def test_same_as_out_of_place(name: str) -> None:
    change, expected = INPLACE[name]
    x = leaf(0.5, 2)
    y = x * 1
    before = y._array
    change(y)
    assert y._array is before
    assert y._version == 1
    want = expected(x * 1)
    np.testing.assert_allclose(y.detach().numpy(), want.detach().numpy())
    assert gradient(y, x) == pytest.approx(gradient(want, x))


@pytest.mark.parametrize("name", INPLACE)
def test_leaves_and_their_views_are_refused_and_unchanged(name: str) -> None:
    change, _ = INPLACE[name]
    x = leaf(0.5, 2)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        change(x)
    with pytest.raises(RuntimeError, match="leaf"):
        change(x.view(2))
    assert x.tolist() == [0.5, 2]
    assert x._version == 0
    with offgrad.no_grad():
        change(x)
    assert x._version == 1
    assert x.is_leaf
    assert x.requires_grad


@pytest.mark.parametrize("name", INPLACE)
def test_views_with_history(name: str) -> None:
    change, expected = INPLACE[name]
    x = leaf(0.5, 2, 3)
    y = x * 1
    change(y[:2])
    want = offgrad.ops.cat([expected((x * 1)[:2]), x[2:]])
    np.testing.assert_allclose(y.detach().numpy(), want.detach().numpy())
    assert gradient(y, x) == pytest.approx(gradient(want, x))


@pytest.mark.parametrize("take", [lambda y: y[0], lambda y: y.view(2, 1), lambda y: y.split(1)[0]])
def test_view_taken_before_is_right_or_stale(take: Callable[[Tensor], Tensor]) -> None:
    x = leaf(1, 2)
    y = x * 1
    view = take(y)
    y.mul_(3)
    try:
        found = gradient(view, x)
    except RuntimeError as error:
        refused = str(error)
    else:
        assert found == gradient(take(x * 3), x)
        return
    assert "returns multiple views" in refused
    assert gradient(take(y), x) == gradient(take(x * 3), x)


@pytest.mark.parametrize("take", [lambda b: b[0], lambda b: b.view(2, 1), lambda b: b.expand(3, 2)])
def test_view_of_a_constant_that_became_part_of_the_graph(
    take: Callable[[Tensor], Tensor],
) -> None:
    """The view's memory depends on x now: its gradient must not be dropped silently."""
    x = leaf(1, 2)
    base = zeros(2)
    view = take(base)
    base.add_(x)
    try:
        found = gradient(view * 3 + x.sum() * 0, x)
    except RuntimeError as error:
        refused = str(error)
    else:
        assert found == gradient(take(x * 3), x)
        return
    assert "returns multiple views" in refused


def test_views_of_views_and_sibling_views_get_the_new_history() -> None:
    x = leaf(1, 2)
    y = x * 1
    deep, sibling = y.view(2, 1)[0], y[1:]
    y.mul_(3)
    deep.mul_(5)
    found = [grad(each.sum(), x, retain_graph=True)[0].tolist() for each in (deep, sibling, y)]
    assert found == [[15, 0], [0, 3], [15, 3]]


def test_version_is_shared_by_views() -> None:
    x = zeros(2, 2)
    row, turned, alias = x[0], x.T, x.detach()
    row.add_(1)
    turned.mul_(2)
    assert [each._version for each in (x, row, turned, alias)] == [2, 2, 2, 2]
    assert x.tolist() == [[2, 2], [0, 0]]
    copy = x.clone()
    assert copy._version == 0


def test_out_of_place_does_not_increment_the_version() -> None:
    x = zeros(2)
    _ = (x + 1, x.exp(), x[0], x.sum(), x.clone(), x.numpy())
    assert x._version == 0


def test_constants_get_a_history() -> None:
    x = leaf(1, 2)
    table = zeros(3, 2)
    table[1] = x * 2
    table[2] = table[1] * 3
    assert table.requires_grad
    assert gradient(table, x) == [8, 8]


def test_assignment_into_a_result_removes_the_history_of_overwritten_elements() -> None:
    x, w = leaf(1, 2), leaf(5.0)
    y = x * 3
    y[0] = w[0]
    first, second = grad(y.sum(), [x, w])
    assert first is not None
    assert second is not None
    assert (first.tolist(), second.tolist()) == ([0, 3], [1])


def test_hooks_before_and_after_a_change_see_their_value() -> None:
    x = leaf(1, 2)
    y = x * 1
    seen: list[Any] = []
    y.register_hook(lambda g: seen.append(("before", g.tolist())))
    y.mul_(3)
    y.register_hook(lambda g: seen.append(("after", g.tolist())))
    y.sum().backward()
    assert seen == [("after", [1, 1]), ("before", [3, 3])]


def test_operand_is_the_target_itself() -> None:
    x = leaf(1, 2)
    y = x * 1
    y.add_(y)
    assert y.tolist() == [2, 4]
    assert gradient(y, x) == [2, 2]
    z = x * 1
    z.mul_(z)
    assert z.tolist() == [1, 4]
    # PyTorch saves one operand without a copy and raises; offgrad saves the old value of both.
    assert gradient(z, x) == [2, 4]


def test_overlapping_copy() -> None:
    x = offgrad.arange(4.0)
    x[1:] = x[:-1]
    assert x.tolist() == [0, 0, 1, 2]
    y = offgrad.arange(4.0)
    y[:-1].add_(y[1:])
    assert y.tolist() == [1, 3, 5, 3]


def test_dtype_of_the_target_stays() -> None:
    x = offgrad.ones(2, dtype=offgrad.float32)
    w = leaf(1, 2)
    x.mul_(w)
    assert x.dtype == offgrad.float32
    assert gradient(x, w) == [1, 1]
    counts = offgrad.ones(2, dtype=offgrad.int64)
    counts += 1
    with pytest.raises(RuntimeError, match="int64"):
        counts += 0.5
    assert counts.tolist() == [2, 2]


def test_failed_operation_changes_nothing() -> None:
    y = leaf(1, 2) * 1
    history = y.grad_fn
    wrong: Any
    for wrong in (lambda: y.add_(zeros(3)), lambda: y.add_(zeros(2, 2)), lambda: y.copy_(zeros(3))):
        with pytest.raises(RuntimeError):
            wrong()
    assert y.tolist() == [1, 2]
    assert y._version == 0
    assert y.grad_fn is history


def test_read_only_memory_is_refused() -> None:
    array = np.ones(2)
    array.flags.writeable = False
    with pytest.raises(RuntimeError, match="read-only"):
        offgrad.from_numpy(array).add_(1)


def test_expanded_memory_is_refused() -> None:
    with pytest.raises(RuntimeError, match="clone"):
        zeros(1).expand(3).add_(1)


def test_detach_in_place() -> None:
    x = leaf(1, 2)
    y = x * 2
    y.detach_()
    assert y.is_leaf
    assert not y.requires_grad
    with pytest.raises(RuntimeError, match="view"):
        (x * 2)[0].detach_()


def test_setting_data() -> None:
    x = leaf(1, 2)
    x.data = zeros(2) + 5
    assert x.tolist() == [5, 5]
    assert x.is_leaf
    assert gradient(x * x, x) == [10, 10]
    x.data = zeros(3) + 1
    assert x.shape == (3,)
    assert gradient(x * x, x) == [2, 2, 2]
    with pytest.raises(RuntimeError, match="floating point or complex dtype"):
        x.data = zeros(3).long()


def test_setting_data_between_forward_and_backward_is_not_silent() -> None:
    """Backward either uses the saved old memory or raises."""
    x = leaf(1, 2)
    y = (x * x).sum()
    x.data = zeros(2) + 5
    try:
        y.backward()
    except RuntimeError:
        return
    assert x.grad is not None
    assert x.grad.tolist() == [2, 4]
