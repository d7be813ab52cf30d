"""Changes in place rewrite the history of a tensor; assignment through every kind of index."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.parity.conftest import constant, leaf, lists, raises

# The history.


def test_the_operation_becomes_the_creator(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x.exp()
    before = y.grad_fn
    y.mul_(2)
    assert y.grad_fn is not before
    assert y.grad_fn.name() == "MulBackward0"
    assert y.grad_fn.next_functions[0][0] is before
    assert not y.is_leaf


def test_a_constant_gets_a_creator(lib: Any) -> None:
    c, x = constant(lib, 1, 2), leaf(lib, 3, 4)
    assert c.is_leaf
    c.mul_(x)
    assert (c.requires_grad, c.is_leaf) == (True, False)
    assert c.grad_fn.name() == "MulBackward0"
    c.sum().backward()
    assert x.grad.tolist() == [1, 2]


def test_a_leaf_cannot_drop_its_new_history(lib: Any) -> None:
    c, x = constant(lib, 1, 2), leaf(lib, 3, 4)
    c.mul_(x)
    with raises(RuntimeError):
        c.requires_grad_(False)


def test_earlier_results_keep_the_old_history(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * 2
    before = y + 0
    y.mul_(5)
    after = y + 0
    for each, expected in ((before, 2), (after, 10)):
        (found,) = lib.autograd.grad(each.sum(), x, retain_graph=True)
        assert found.tolist() == [expected] * 2
        assert each.tolist() == [expected, 2 * expected]


def test_overwriting_cuts_the_history(lib: Any) -> None:
    x, w = leaf(lib, 1, 2), leaf(lib, 3, 4)
    y = x * 2
    y.copy_(w)
    found = lib.autograd.grad(y.sum(), [x, w], allow_unused=True)
    assert lists(found[1:]) == [[1, 1]]
    assert found[0] is None or found[0].tolist() == [0, 0]


def test_a_change_in_no_grad_mode_is_not_recorded(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * 2
    before = y.grad_fn
    with lib.no_grad():
        y.mul_(5)
    assert y.grad_fn is before
    assert y.tolist() == [10, 20]
    y.sum().backward()
    assert x.grad.tolist() == [2, 2]


def test_a_constant_operand_changes_nothing_of_a_constant(lib: Any) -> None:
    c = constant(lib, 1, 2)
    c.add_(constant(lib, 1, 1)).mul_(3)
    assert c.is_leaf
    assert c.grad_fn is None
    assert not c.requires_grad
    assert c.requires_grad_().requires_grad


def test_an_operand_that_is_the_target(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * 1
    y.add_(y)
    assert y.tolist() == [2, 4]
    y.sum().backward()
    assert x.grad.tolist() == [2, 2]


def test_a_product_with_itself_is_right_or_refused(lib: Any) -> None:
    """PyTorch saves one factor as it is, and raises; offgrad saves both as they were."""
    x = leaf(lib, 1, 2)
    y = x * 1
    y.mul_(y)
    assert y.tolist() == [1, 4]
    if lib.__name__ == "torch":
        with pytest.raises(RuntimeError, match="version 1"):
            y.sum().backward()
    else:
        y.sum().backward()
        assert x.grad.tolist() == [2, 4]


def test_a_detached_tensor_has_a_history_of_its_own(lib: Any) -> None:
    x, w = leaf(lib, 1, 2), leaf(lib, 3, 4)
    y = x * 2
    d = y.detach()
    d.add_(w)
    assert d.requires_grad
    assert d.grad_fn.name() == "AddBackward0"
    assert y.grad_fn.name() == "MulBackward0"
    assert y.tolist() == [5, 8]
    found = lib.autograd.grad(y.sum(), [x, w], allow_unused=True)
    assert lists(found) == [[2, 2], None]
    assert lists(lib.autograd.grad(d.sum(), [x, w], allow_unused=True)) == [None, [1, 1]]


def test_detach_in_place(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * 2
    z = y * 3
    y.detach_()
    assert y.is_leaf
    assert y.grad_fn is None
    assert not y.requires_grad
    z.sum().backward()
    assert x.grad.tolist() == [6, 6]


def test_graphs_are_kept_and_freed_as_others_are(lib: Any) -> None:
    x = leaf(lib, 0, 0)
    y = (x * 1).mul_(3).exp_()
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    assert x.grad.tolist() == [6, 6]
    with raises(RuntimeError):
        y.sum().backward()


def test_second_derivatives(lib: Any) -> None:
    x = leaf(lib, 2, 3)
    y = (x * 1).pow_(3).mul_(x)
    (first,) = lib.autograd.grad(y.sum(), x, create_graph=True)
    assert first.tolist() == [32, 108]
    (second,) = lib.autograd.grad(first.sum(), x, create_graph=True)
    assert second.tolist() == [48, 108]
    second.sum().backward()
    assert x.grad.tolist() == [48, 72]


def test_a_gradient_with_a_graph_may_change_in_place(lib: Any) -> None:
    x = leaf(lib, 2, 3)
    (first,) = lib.autograd.grad((x**3).sum(), x, create_graph=True)
    first.mul_(2)
    assert first.tolist() == [24, 54]
    first.sum().backward()
    assert x.grad.tolist() == [24, 36]


# Hooks and kept gradients.


def test_hooks_belong_to_the_value_at_their_time(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * 1
    seen: list[Any] = []
    y.register_hook(lambda g: seen.append(("before", g.tolist())))
    y.mul_(3)
    y.register_hook(lambda g: seen.append(("between", g.tolist())))
    y.mul_(5)
    y.register_hook(lambda g: seen.append(("after", g.tolist())))
    y.sum().backward()
    assert seen == [("after", [1, 1]), ("between", [5, 5]), ("before", [15, 15])]


def test_hooks_change_the_gradient_at_their_place(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * 1
    y.register_hook(lambda g: g + 1)
    y.mul_(3)
    y.register_hook(lambda g: g * 10)
    y.sum().backward()
    assert x.grad.tolist() == [31, 31]


@pytest.mark.parametrize("view_dies", [False, True])
def test_hooks_see_the_gradient_of_a_result_written_into_a_view(lib: Any, view_dies: bool) -> None:
    """exp_ saves its result, which is the view: y = e^x, and a hook that halves."""
    x = leaf(lib, 0.0, 1.0)
    base = x * 1
    view = base[None]
    view.exp_()
    base.register_hook(lambda grad: grad / 2)
    y = base.sum()
    if view_dies:
        del view
    (grad,) = lib.autograd.grad(y, x, create_graph=True)
    (second,) = lib.autograd.grad(grad.sum(), x)
    e = np.exp([0, 1])
    assert np.allclose(grad.detach().numpy(), e / 2)
    # Without the view, the result is that of the operation, in front of the hook.
    assert np.allclose(second.numpy(), e / 2 if view_dies else e / 4)


def test_a_removed_hook_stays_removed(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * 1
    handle = y.register_hook(lambda g: g * 100)
    y.mul_(3)
    handle.remove()
    y.sum().backward()
    assert x.grad.tolist() == [3, 3]


@pytest.mark.parametrize("when", ["before", "after", "both"])
def test_retain_grad_keeps_that_of_the_last_value(lib: Any, when: str) -> None:
    x = leaf(lib, 1, 2)
    y = x * 1
    if when != "after":
        y.retain_grad()
    y.mul_(3)
    if when != "before":
        y.retain_grad()
    assert y.retains_grad
    y.sum().backward()
    assert y.grad.tolist() == [1, 1]
    assert x.grad.tolist() == [3, 3]


def test_hooks_of_nodes_stay_with_their_node(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * 1
    seen: list[Any] = []
    y.grad_fn.register_prehook(lambda go: seen.append(("old", go[0].tolist())))
    y.mul_(3)
    y.grad_fn.register_prehook(lambda go: seen.append(("new", go[0].tolist())))
    y.sum().backward()
    assert seen == [("new", [1, 1]), ("old", [3, 3])]


def test_hooks_of_a_leaf_survive_a_change_in_no_grad_mode(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    x.register_hook(lambda g: g * 2)
    with lib.no_grad():
        x.fill_(5)
    (x * x).sum().backward()
    assert x.grad.tolist() == [20, 20]


# Leaves.


def test_a_leaf_refuses_even_changes_without_effect(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    changes: list[Callable[[], Any]] = [
        lambda: x.add_(0),
        lambda: x.copy_(x),
        lambda: x.__setitem__(0, 1.0),
    ]
    for change in changes:
        with raises(RuntimeError) as info:
            change()
        assert "leaf" in str(info.value)


def test_parameters_refuse(lib: Any) -> None:
    module = lib.nn.Linear(2, 2)
    with raises(RuntimeError):
        module.weight.zero_()
    with raises(RuntimeError):
        module.weight[0].zero_()
    with raises(RuntimeError):
        module.weight.t().zero_()
    with lib.no_grad():
        module.weight.zero_()
        module.bias[0] = 1.0
    assert module.weight.tolist() == [[0, 0], [0, 0]]
    assert module.bias.tolist()[0] == 1


def test_a_leaf_that_no_longer_requires_grad_may_change(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    x.requires_grad_(False)
    x.add_(1)
    assert x.tolist() == [2, 3]
    assert x.is_leaf


def test_a_view_of_a_leaf_may_change_in_no_grad_mode(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    view = x[:1]
    with lib.no_grad():
        view.mul_(5)
    assert x.tolist() == [5, 2]
    assert x.is_leaf
    (view * view + x.sum() * 0).sum().backward()
    assert x.grad.tolist() == [10, 0]


def test_a_view_made_before_its_base_came_to_require_grad(lib: Any) -> None:
    x = constant(lib, 1, 2)
    view = x[:1]
    x.requires_grad_()
    with raises(RuntimeError):
        view.mul_(2)
    assert x.tolist() == [1, 2]


# Custom Functions.


def triple(lib: Any) -> Any:
    class Triple(lib.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.mark_dirty(x)
            return x.mul_(3)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return grads[0] * 3

    return Triple


def test_mark_dirty(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * 1
    z = triple(lib).apply(y)
    assert z is y
    assert z.tolist() == [3, 6]
    assert z.grad_fn.name() == "TripleBackward"
    z.sum().backward()
    assert x.grad.tolist() == [3, 3]


def test_mark_dirty_refuses_leaves(lib: Any) -> None:
    with raises(RuntimeError) as info:
        triple(lib).apply(leaf(lib, 1, 2))
    assert "leaf" in str(info.value)
    with raises(RuntimeError) as info:
        triple(lib).apply(leaf(lib, 1, 2)[:1])
    assert "leaf" in str(info.value)


def test_mark_dirty_of_a_constant(lib: Any) -> None:
    class Fill(lib.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, target: Any, x: Any) -> Any:
            ctx.mark_dirty(target)
            return target.copy_(x)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return None, grads[0] * 2

    c, x = constant(lib, 0, 0), leaf(lib, 3, 4)
    Fill.apply(c, x)
    assert c.requires_grad
    assert c.tolist() == [3, 4]
    c.sum().backward()
    assert x.grad.tolist() == [2, 2]


def test_a_dirty_input_must_be_returned(lib: Any) -> None:
    class Keeps(lib.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.mark_dirty(x)
            return x.mul_(3) + 0

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return grads[0] * 3

    with raises(RuntimeError):
        Keeps.apply(leaf(lib, 1, 2) * 1)


def test_mark_dirty_is_noticed_by_saved_tensors(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * 1
    loss = (y * y).sum()
    triple(lib).apply(y)
    with pytest.raises(RuntimeError, match=r"in ?place"):
        loss.backward()


def test_hooks_around_a_dirty_function(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * 1
    seen: list[Any] = []
    y.register_hook(lambda g: seen.append(("before", g.tolist())))
    triple(lib).apply(y)
    y.register_hook(lambda g: seen.append(("after", g.tolist())))
    y.retain_grad()
    y.sum().backward()
    assert seen == [("after", [1, 1]), ("before", [3, 3])]
    assert y.grad.tolist() == [1, 1]


# Assignment. NumPy says which elements an index means.

INDICES: dict[str, Any] = {
    "int": 1,
    "negative": -1,
    "slice": slice(1, None),
    "step": slice(None, None, 2),
    "empty slice": slice(0, 0),
    "slice to the end and beyond": slice(1, 99),
    "None": None,
    "None and int": (None, 0),
    "None between": (0, None, slice(1, 3)),
    "ellipsis": ...,
    "tuple": (0, 1),
    "all ints": (0, 1, 2),
    "ellipsis first": (..., 0),
    "ellipsis between": (0, ..., slice(None, None, 2)),
    "slices": (slice(None), slice(1, None), slice(None, None, 3)),
    "full mask": np.arange(24).reshape(2, 3, 4) % 5 == 0,
    "mask of the first": np.array([True, False]),
    "mask of the first two": np.array([[True, False, True], [False, False, True]]),
    "mask after": (slice(None), np.array([True, False, True])),
    "mask of nothing": np.array([False, False]),
    "mask and int": (np.array([True, False]), 0),
    "index": np.array([1, 0]),
    "index of a scalar": np.array(1),
    "negative index": np.array([-1]),
    "empty index": np.array([], dtype=np.int64),
    "int32 index": np.array([1, 0], dtype=np.int32),
    "index of two dimensions": (slice(None), np.array([[0], [2]])),
    "two indices": (np.array([0, 1]), np.array([2, 0])),
    "indices that broadcast": (np.array([[0], [1]]), np.array([0, 2])),
    "indices apart": (np.array([0, 1]), slice(None), np.array([2, 0])),
    "index after ellipsis": (..., np.array([3, 0])),
    "list": [1, 0],
    "list in a tuple": (slice(None), [0, 2]),
    "True": True,
    "False": False,
}


def as_index(lib: Any, index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(as_index(lib, each) for each in index)
    return lib.from_numpy(index) if isinstance(index, np.ndarray) else index


WEIGHTS = np.arange(1.0, 25).reshape(2, 3, 4)


@pytest.mark.parametrize("name", INDICES)
def test_assignment_of_a_number(lib: Any, name: str) -> None:
    x = leaf(lib, WEIGHTS.tolist())
    y = x * 1
    y[as_index(lib, INDICES[name])] = 50.0
    expected = WEIGHTS.copy()
    expected[INDICES[name]] = 50
    assert np.array_equal(y.detach().numpy(), expected)
    y.backward(constant(lib, WEIGHTS.tolist()))
    expected = WEIGHTS.copy()
    expected[INDICES[name]] = 0
    assert np.array_equal(x.grad.numpy(), expected)


@pytest.mark.parametrize("into", ["result", "constant", "view"])
@pytest.mark.parametrize("name", INDICES)
def test_assignment_of_values(lib: Any, name: str, into: str) -> None:
    x = leaf(lib, WEIGHTS.tolist())
    shape = WEIGHTS[INDICES[name]].shape
    values = -np.arange(1.0, 1 + np.prod(shape, dtype=int)).reshape(shape)
    w = leaf(lib, values.tolist())
    w = w if w.shape == shape else leaf(lib, np.zeros(shape).tolist()).reshape(shape)
    y = x * 1 if into != "constant" else constant(lib, WEIGHTS.tolist())
    whole = y
    if into == "view":
        whole = lib.zeros(2, 2, 4, 3, dtype=lib.float64)
        whole[1] = x.transpose(1, 2)
        y = whole[1].transpose(1, 2)
    y[as_index(lib, INDICES[name])] = w
    expected = WEIGHTS.copy()
    expected[INDICES[name]] = values
    assert np.array_equal(y.detach().numpy(), expected)
    found = whole[1].transpose(1, 2) if into == "view" else whole
    loss = (found * constant(lib, WEIGHTS.tolist())).sum() + 0 * x.sum()
    of_x, of_w = lib.autograd.grad(loss, [x, w], allow_unused=True)
    if values.size:
        assert np.array_equal(of_w.numpy(), WEIGHTS[INDICES[name]])
    if into != "constant":
        expected = WEIGHTS.copy()
        expected[INDICES[name]] = 0
        assert np.array_equal(of_x.numpy(), expected)


BROADCASTS: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...]]] = {
    "scalar": (1, (), (0, 1)),
    "one": (1, (1,), (0, 1)),
    "row": (1, (4,), (0,)),
    "column": (1, (3, 1), (1,)),
    "scalar to all": (slice(None), (), (0, 1, 2)),
    "matrix to all": (slice(None), (3, 4), (0,)),
    "scalar through a mask": (np.array([False, True]), (), (0, 1, 2)),
    "row through a mask": (np.array([False, True]), (4,), (0, 1)),
    "row through an index": (np.array([1, 0]), (4,), (0, 1)),
    "scalar through an index": (np.array([1, 0]), (), (0, 1, 2)),
}


@pytest.mark.parametrize("name", BROADCASTS)
def test_assigned_values_broadcast(lib: Any, name: str) -> None:
    index, shape, axes = BROADCASTS[name]
    values = -np.arange(1.0, 1 + np.prod(shape, dtype=int)).reshape(shape)
    x, w = leaf(lib, WEIGHTS.tolist()), leaf(lib, values.tolist())
    y = x * 1
    y[as_index(lib, index)] = w
    expected = WEIGHTS.copy()
    expected[index] = values
    assert np.array_equal(y.detach().numpy(), expected)
    y.backward(constant(lib, WEIGHTS.tolist()))
    summed = WEIGHTS[index].sum(axes).reshape(shape)
    assert np.array_equal(w.grad.numpy(), summed)


def test_sizes_of_one_in_front_are_dropped(lib: Any) -> None:
    y, w = constant(lib, [[0, 0], [0, 0]]), leaf(lib, [[[1, 2]]])
    y[0] = w
    assert y.tolist() == [[1, 2], [0, 0]]
    y.sum().backward()
    assert w.grad.tolist() == [[[1, 1]]]


def test_assignment_casts_to_the_target(lib: Any) -> None:
    y = lib.zeros(2, dtype=lib.float32)
    w = leaf(lib, 1, 2)
    y[:] = w
    assert y.dtype == lib.float32
    y.sum().backward()
    assert w.grad.dtype == lib.float64
    assert w.grad.tolist() == [1, 1]


ERRORS: dict[str, tuple[Any, type[Exception]]] = {
    "out of range": (5, IndexError),
    "index out of range": (np.array([5]), IndexError),
    "negative step": (slice(None, None, -1), ValueError),
    "too many": ((0, 0, 0, 0), IndexError),
    "float": (1.5, IndexError),
    "float index": (np.array([1.0]), IndexError),
    "mask of another shape": (np.array([True, False, True]), IndexError),
    "value of another shape": (slice(None), RuntimeError),
}


@pytest.mark.parametrize("name", ERRORS)
def test_assignments_that_fail_change_nothing(lib: Any, name: str) -> None:
    index, kind = ERRORS[name]
    y = leaf(lib, WEIGHTS.tolist()) * 1
    before = y.grad_fn
    value: Any = lib.zeros(5) if kind is RuntimeError else 7.0
    with raises(kind):
        y[as_index(lib, index)] = value
    assert np.array_equal(y.detach().numpy(), WEIGHTS)
    assert y._version == 0
    assert y.grad_fn is before


def test_augmented_assignment_of_an_element(lib: Any) -> None:
    x = leaf(lib, 1, 2, 3)
    y = x * 1
    y[0] += 10
    y[1:] *= 3
    y[-1] **= 2
    y[y.detach() > 50] /= 2
    assert y.tolist() == [11, 6, 40.5]
    y.sum().backward()
    assert x.grad.tolist() == [1, 3, 27]


def test_a_table_filled_row_by_row(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    table = lib.zeros(4, 2, dtype=lib.float64)
    table[0] = x
    for row in range(1, 4):
        table[row] = table[row - 1] * 2 + table[0]
    assert table[3].tolist() == [15, 30]
    table[3].sum().backward()
    assert x.grad.tolist() == [15, 15]


def test_a_chain_over_its_own_elements_loses_the_saved_values_of_products(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    table = lib.zeros(3, 2, dtype=lib.float64)
    table[0] = x
    table[1] = table[0] * x
    table[2] = table[1] * x
    with pytest.raises(RuntimeError, match=r"in ?place"):
        table[2].sum().backward()
