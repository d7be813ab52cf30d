"""Saved tensors: a node's attributes, object identity, freed and refused access."""

import gc
from collections.abc import Callable
from typing import Any

import pytest

import offgrad
from tests.parity.conftest import builtin_class, constant, leaf, raised, raises


def names(node: Any) -> set[str]:
    """Return the names of the saved tensors in a node's dir()."""
    return {each.removeprefix("_raw") for each in dir(node) if each.startswith("_raw_saved_")}


# The specification's two examples.


def test_a_saved_input_is_the_tensor_itself(lib: Any) -> None:
    x = lib.randn(5, requires_grad=True)
    y = x.pow(2)
    assert x.equal(y.grad_fn._saved_self)
    assert x is y.grad_fn._saved_self


def test_a_saved_output_is_another_tensor_of_the_same_memory(lib: Any) -> None:
    x = lib.randn(5, requires_grad=True)
    y = x.exp()
    assert y.equal(y.grad_fn._saved_result)
    assert y is not y.grad_fn._saved_result
    assert y.grad_fn._saved_result.data_ptr() == y.data_ptr()


# Names.


SAVES: dict[str, tuple[Callable[[Any, Any], Any], set[str]]] = {
    "pow": (lambda lib, x: x**2, {"_saved_self"}),
    "mul": (lambda lib, x: x * x, {"_saved_self", "_saved_other"}),
    "div": (lambda lib, x: x / x, {"_saved_self", "_saved_other"}),
    "exp": (lambda lib, x: x.exp(), {"_saved_result"}),
    "tanh": (lambda lib, x: x.tanh(), {"_saved_result"}),
    "sigmoid": (lambda lib, x: x.sigmoid(), {"_saved_result"}),
    "sqrt": (lambda lib, x: x.sqrt(), {"_saved_result"}),
    "log": (lambda lib, x: x.log(), {"_saved_self"}),
    "sin": (lambda lib, x: x.sin(), {"_saved_self"}),
    "add": (lambda lib, x: x + x, set()),
    "neg": (lambda lib, x: -x, set()),
    "sum": (lambda lib, x: x.sum(), set()),
    "clone": (lambda lib, x: x.clone(), set()),
    "view": (lambda lib, x: x.view(1, 2), set()),
}


@pytest.mark.parametrize("operation", SAVES)
def test_dir_lists_saved_tensors(lib: Any, operation: str) -> None:
    call, expected = SAVES[operation]
    node = call(lib, leaf(lib, 1, 2)).grad_fn
    assert names(node) == expected
    for each in expected:
        assert each in dir(node)
        assert getattr(node, each).tolist() is not None


def test_a_matrix_product_saves_both_matrices(lib: Any) -> None:
    a, b = leaf(lib, [[1, 2]]), leaf(lib, [[3], [4]])
    node = (a @ b).grad_fn
    assert {"_saved_self", "_saved_mat2"} <= set(dir(node))
    assert node._saved_self is a
    assert node._saved_mat2 is b


def test_an_unsaved_tensor_is_no_attribute(lib: Any) -> None:
    node = (leaf(lib, 1, 2) ** 2).grad_fn
    for name in ("_saved_other", "_raw_saved_other", "_saved_"):
        with raises(AttributeError):
            getattr(node, name)


def test_an_exponent_is_shown_as_it_was_given(lib: Any) -> None:
    node = (leaf(lib, 1, 2) ** 3).grad_fn
    assert node._saved_exponent == 3
    assert "_saved_exponent" in dir(node)


# Identity.


def test_an_input_saved_twice_is_one_tensor(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * x
    assert y.grad_fn._saved_self is x
    assert y.grad_fn._saved_other is x


def test_a_saved_result_of_another_operation_is_that_tensor(lib: Any) -> None:
    h = leaf(lib, 1, 2) * 2
    y = h**2
    assert y.grad_fn._saved_self is h


def test_a_saved_constant_is_that_tensor(lib: Any) -> None:
    x, c = leaf(lib, 1, 2), constant(lib, 3, 4)
    y = x * c
    assert y.grad_fn._saved_other is c


def test_a_saved_view_is_that_view(lib: Any) -> None:
    x = leaf(lib, 1, 2, 3)
    view = x[1:]
    y = view**2
    assert y.grad_fn._saved_self is view
    assert y.grad_fn._saved_self.data_ptr() == view.data_ptr()
    assert y.grad_fn._saved_self.shape == (2,)


def test_a_view_is_saved_without_its_base_being_looked_at(lib: Any) -> None:
    x = leaf(lib, [[1, 2], [3, 4]])
    y = x.t() ** 2
    assert y.grad_fn._saved_self.tolist() == [[1, 3], [2, 4]]
    y.sum().backward()
    assert x.grad.tolist() == [[2, 4], [6, 8]]


def test_a_saved_output_has_the_outputs_history(lib: Any) -> None:
    y = leaf(lib, 1, 2).exp()
    saved = y.grad_fn._saved_result
    assert saved.grad_fn is y.grad_fn
    assert saved.requires_grad
    assert not saved.is_leaf


def test_a_saved_output_does_not_keep_the_graph_alive(lib: Any) -> None:
    y = leaf(lib, 1, 2).exp()
    saved = y.grad_fn._saved_result
    expected = y.tolist()
    del y
    gc.collect()
    assert saved.tolist() == expected
    assert saved.grad_fn.name() == "ExpBackward0"


def test_a_saved_tensor_outlives_its_name(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    h = x * 2
    y = h**2
    del h
    gc.collect()
    assert y.grad_fn._saved_self.tolist() == [2, 4]
    y.sum().backward()
    assert x.grad.tolist() == [8, 16]


# Tensors that backward does not need are not saved.


def test_only_tensors_that_backward_needs_are_saved(lib: Any) -> None:
    x, c = leaf(lib, 1, 2), constant(lib, 3, 4)
    assert (x * c).grad_fn._saved_self is None
    assert (c * x).grad_fn._saved_other is None
    assert (c * x).grad_fn._saved_self is c


def test_a_constant_changed_where_it_was_not_saved(lib: Any) -> None:
    x, c = leaf(lib, 1, 2), constant(lib, 3, 4)
    h = x * 2
    y = h * c
    h.detach().zero_()
    y.sum().backward()
    assert x.grad.tolist() == [6, 8]


# After the release.


def test_saved_tensors_are_released_by_backward(lib: Any) -> None:
    y = leaf(lib, 1, 2) ** 2
    node = y.grad_fn
    y.sum().backward()
    with raises(RuntimeError):
        node._saved_self
    assert "_saved_self" in dir(node)


def test_saved_tensors_are_not_released_by_a_backward_that_retains(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x**2
    y.sum().backward(retain_graph=True)
    assert y.grad_fn._saved_self is x


def test_a_saved_tensor_taken_before_the_release_stays(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x.exp()
    saved = y.grad_fn._saved_result
    y.sum().backward()
    assert saved.equal(y)


def test_no_hooks_after_the_release(lib: Any) -> None:
    y = leaf(lib, 1, 2) ** 2
    raw = y.grad_fn._raw_saved_self
    y.sum().backward()
    with raises(RuntimeError):
        raw.register_hooks(lambda each: each, lambda each: each)


def test_a_node_that_did_not_run_keeps_its_saved_tensors(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    h = x**2
    lib.autograd.grad((h * 3).sum(), h)
    assert h.grad_fn._saved_self is x


# _raw_saved_*


def test_raw_saved_tensors(lib: Any) -> None:
    x, c = leaf(lib, 1, 2), constant(lib, 3, 4)
    y = x * c
    assert isinstance(y.grad_fn._raw_saved_other, lib.autograd.SavedTensor)
    assert y.grad_fn._raw_saved_other is y.grad_fn._raw_saved_other


# Version checks.


def test_versions_count_changes(lib: Any) -> None:
    x = constant(lib, 1, 2)
    view = x[:1]
    assert x._version == 0
    x.add_(1)
    view.mul_(2)
    x[0] = 5
    assert x._version == 3
    assert view._version == 3
    assert x.clone()._version == 0
    assert x.detach()._version == 3


CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "add_": lambda lib, h: h.add_(1),
    "zero_": lambda lib, h: h.zero_(),
    "fill_": lambda lib, h: h.fill_(3),
    "copy_": lambda lib, h: h.copy_(constant(lib, 7, 8)),
    "an index": lambda lib, h: h.__setitem__(0, 5),
    "a view": lambda lib, h: h[1:].add_(1),
    "the base": lambda lib, h: h.view(2, 1).mul_(2),
    "in no_grad": lambda lib, h: lib.no_grad()(h.add_)(1),
    "a detached one": lambda lib, h: h.detach().add_(1),
    "there and back": lambda lib, h: (h.add_(1), h.sub_(1)),
    "nothing": lambda lib, h: h.add_(0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_saved_tensor_changed_in_place_is_refused(lib: Any, change: str) -> None:
    x = leaf(lib, 1, 2)
    h = x * 2
    y = h**2
    CHANGES[change](lib, h)
    with raises(RuntimeError):
        y.grad_fn._saved_self
    with raises(RuntimeError):
        y.sum().backward()
    assert x.grad is None


@pytest.mark.parametrize("operation", ["exp", "tanh", "sigmoid", "sqrt"])
def test_a_saved_output_changed_in_place_is_refused(lib: Any, operation: str) -> None:
    x = leaf(lib, 1, 2)
    y = getattr(x, operation)()
    node = y.grad_fn
    y.add_(1)
    with raises(RuntimeError):
        node._saved_result
    with raises(RuntimeError):
        y.sum().backward()


def test_unsaved_tensors_may_change(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    h = x * 2
    y = h + 1
    z = h.sin()
    h.add_(1)
    y.mul_(3)
    y.sum().backward(retain_graph=True)
    assert x.grad.tolist() == [6, 6]
    with raises(RuntimeError):
        z.sum().backward()


def test_a_leaf_changed_in_no_grad_after_it_was_saved(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x**2
    with lib.no_grad():
        x.mul_(2)
    with raises(RuntimeError):
        y.sum().backward()
    (x**2).sum().backward()
    assert x.grad.tolist() == [4, 8]


def test_a_saved_view_whose_base_changed_is_refused(lib: Any) -> None:
    x = leaf(lib, 1, 2, 3)
    h = x * 2
    y = h[:1] ** 2
    h[2] = 0
    with raises(RuntimeError):
        y.sum().backward()


def test_a_constant_changed_after_it_was_saved_is_refused(lib: Any) -> None:
    x, c = leaf(lib, 1, 2), constant(lib, 3, 4)
    y = x * c
    c.zero_()
    with raises(RuntimeError):
        y.sum().backward()


def test_after_backward_everything_may_change(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    h = x * 2
    y = h**2
    y.sum().backward()
    h.add_(1)
    assert x.grad.tolist() == [8, 16]


def test_a_change_between_two_backwards_is_noticed(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    h = x * 2
    y = (h**2).sum()
    y.backward(retain_graph=True)
    h.add_(1)
    with raises(RuntimeError):
        y.backward()
    assert x.grad.tolist() == [8, 16]


def test_a_failed_in_place_operation_is_no_change(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    h = x * 2
    y = h**2
    with raises(RuntimeError):
        h.add_(constant(lib, 1, 2, 3))
    y.sum().backward()
    assert x.grad.tolist() == [8, 16]


# Custom functions.


def square_of(lib: Any) -> Any:
    """Return a Function that squares and saves its input and its output."""

    class Square(lib.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            y = x * x
            ctx.save_for_backward(x, y)
            return y

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            x, _ = ctx.saved_tensors
            return grad * 2 * x

    return Square


def test_a_functions_saved_tensors(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = square_of(lib).apply(x)
    mine, output = y.grad_fn.saved_tensors
    assert mine is x
    assert output is not y
    assert output.equal(y)
    assert output.grad_fn is y.grad_fn
    assert isinstance(y.grad_fn, lib.autograd.graph.Node)
    assert y.grad_fn.name() == "SquareBackward"


def test_a_functions_raw_saved_tensors(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = square_of(lib).apply(x)
    raw = y.grad_fn._raw_saved_tensors
    assert len(raw) == 2
    seen: Any = []
    raw[0].register_hooks(lambda each: seen.append("pack") or each, lambda each: each * 10)
    y.sum().backward()
    assert seen == ["pack"]
    assert x.grad.tolist() == [20, 40]


def test_a_functions_saved_tensors_are_released(lib: Any) -> None:
    y = square_of(lib).apply(leaf(lib, 1, 2))
    node = y.grad_fn
    y.sum().backward()
    with raises(RuntimeError):
        node.saved_tensors


def test_a_functions_saved_tensors_are_checked_when_they_are_accessed(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    h = x * 1
    y = square_of(lib).apply(h)
    h.add_(1)
    with raises(RuntimeError):
        y.grad_fn.saved_tensors
    with raises(RuntimeError):
        y.sum().backward()
    assert x.grad is None


def test_the_class_of_every_refusal_is_the_same(lib: Any) -> None:
    """Released, changed, and released and changed: one `except RuntimeError` is enough."""
    x = leaf(lib, 1, 2)
    h = x * 2
    y = (h**2).sum()
    y.backward()
    assert raised(y.backward) is RuntimeError
    h.add_(1)
    with pytest.raises(RuntimeError) as info:
        y.backward()
    assert builtin_class(info.value) is RuntimeError


def test_a_saved_tensor_that_is_detached_in_place(lib: Any) -> None:
    """offgrad gives the gradient of the graph that saved it."""
    x = leaf(lib, 1, 2)
    y = x * 1
    loss = (y * y).sum()
    y.detach_()
    if lib is offgrad:
        loss.backward()
        assert x.grad.tolist() == [2, 4]
    else:
        with raises(RuntimeError):
            loss.backward()
