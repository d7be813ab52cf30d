"""Functions of the user's own on both libraries: in-place changes and views."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.parity.conftest import constant, leaf, lists
from tests.parity.functions import double, make

# mark_dirty


def triple(
    lib: Any,
    result: Callable[[Any], Any] = lambda x: x,
    backward: Callable[..., Any] = lambda ctx, grad: grad * 3,
) -> Any:
    """Return a Function that multiplies by 3, in place."""

    def forward(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        x.mul_(3)
        return result(x)

    return make(lib, forward, backward, name="Triple")


def test_mark_dirty(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * 1
    z = triple(lib).apply(y)
    assert z is y
    assert (y._version, y.grad_fn.name(), y.tolist()) == (2, "TripleBackward", [3, 6])
    z.sum().backward()
    assert x.grad.tolist() == [3, 3]


def test_mark_dirty_in_setup_context(lib: Any) -> None:
    x = leaf(lib, [1])
    y = x * 1
    function = make(
        lib,
        lambda x: x.mul_(3),
        lambda ctx, grad: grad * 3,
        lambda ctx, inputs, output: ctx.mark_dirty(inputs[0]),
    )
    assert function.apply(y) is y
    y.backward()
    assert x.grad.tolist() == [3]


@pytest.mark.parametrize("view", [False, True])
def test_mark_dirty_of_leaves(lib: Any, view: bool) -> None:
    x = leaf(lib, 1, 2)
    with pytest.raises(RuntimeError, match="leaf"):
        triple(lib).apply(x[:1] if view else x)


def test_mark_dirty_of_constants(lib: Any) -> None:
    c = constant(lib, [1])
    assert triple(lib).apply(c) is c
    assert (c.requires_grad, c.tolist()) == (False, [3])

    def forward(ctx: Any, c: Any, x: Any) -> Any:
        ctx.mark_dirty(c)
        return c.mul_(x)

    x = leaf(lib, [5])
    assert make(lib, forward, lambda ctx, grad: (None, grad * 3)).apply(c, x) is c
    assert (c.requires_grad, c.is_leaf) == (True, False)
    c.backward()
    assert x.grad.tolist() == [3]


def test_mark_dirty_of_several(lib: Any) -> None:
    def forward(ctx: Any, a: Any, b: Any, c: Any) -> Any:
        ctx.mark_dirty(a)
        ctx.mark_dirty(a, b)
        return a.mul_(2), b.mul_(3), c * 4

    x = leaf(lib, [1])
    a, b = x * 1, x * 1
    p, q, r = make(lib, forward, lambda ctx, f, g, h: (f * 2, g * 3, h * 4)).apply(a, b, x)
    assert (p is a, q is b, p.output_nr, q.output_nr) == (True, True, 0, 1)
    (p + q + r).sum().backward()
    assert x.grad.tolist() == [9]


def test_mark_dirty_is_noticed_by_saved_tensors(lib: Any) -> None:
    y = leaf(lib, [1]) * 1
    square = (y * y).sum()
    triple(lib).apply(y)
    with pytest.raises(RuntimeError, match=r"in.?place"):
        square.backward()


def test_mark_dirty_counts_by_itself(lib: Any) -> None:
    def forward(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        return x

    x = leaf(lib, [1]) * 1
    make(lib, forward, lambda ctx, grad: grad).apply(x)
    assert x._version == 1


def test_a_dirty_tensor_is_saved_as_it_is_afterwards(lib: Any) -> None:
    def forward(ctx: Any, x: Any) -> Any:
        x.exp_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    function = make(lib, forward, lambda ctx, grad: grad * ctx.saved_tensors[0])
    x = leaf(lib, 0, 1)
    y = function.apply(x * 1)
    y.sum().backward()
    assert x.grad.tolist() == y.tolist()
    y = function.apply(x * 1)
    y.mul_(2)
    with pytest.raises(RuntimeError, match=r"in.?place"):
        y.sum().backward()


def test_a_dirty_input_must_be_returned(lib: Any) -> None:
    with pytest.raises(RuntimeError):
        triple(lib, lambda x: x * 2).apply(leaf(lib, [1]) * 1)


def test_a_dirty_input_returned_twice(lib: Any) -> None:
    y = leaf(lib, [1]) * 1
    a, b = triple(lib, lambda x: (x, x), lambda ctx, g, h: g * 3 + h * 5).apply(y)
    assert a is y
    assert b is y


def test_changes_without_a_mark(lib: Any) -> None:
    x = leaf(lib, [1])
    a = x * 1
    y = make(lib, lambda ctx, x: x.mul_(3), lambda ctx, grad: grad * 3).apply(a)
    assert (y is a, a.tolist(), a.grad_fn.name()) == (False, [3], "MulBackward0")
    y.backward()
    assert x.grad.tolist() == [3]


def test_second_derivatives_through_a_dirty_tensor(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    (first,) = lib.autograd.grad(triple(lib).apply(x * x).sum(), x, create_graph=True)
    (second,) = lib.autograd.grad(first.sum(), x)
    assert lists((first, second)) == [[6, 12], [6, 6]]


def test_hooks_around_mark_dirty(lib: Any) -> None:
    log: list[Any] = []
    y = leaf(lib, [1]) * 1
    y.register_hook(lambda grad: log.append(("before", grad.tolist())))
    y.retain_grad()
    triple(lib).apply(y)
    y.register_hook(lambda grad: log.append(("after", grad.tolist())))
    (y * 2).sum().backward()
    assert log == [("after", [2]), ("before", [6])]
    assert y.grad.tolist() == [2]


def test_mark_dirty_of_leaves_under_no_grad(lib: Any) -> None:
    x = leaf(lib, [1])
    with lib.no_grad():
        y = triple(lib).apply(x)
    assert (x.tolist(), x.requires_grad, x.is_leaf) == ([3], True, True)
    assert not y.requires_grad


def test_dirty_and_not_differentiable(lib: Any) -> None:
    def forward(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        ctx.mark_non_differentiable(x)
        return x

    x = leaf(lib, [1]) * 1
    y = make(lib, forward).apply(x)
    assert (y.requires_grad, x.requires_grad) == (False, True)


# mark_dirty of views and of tensors with views


def test_mark_dirty_of_a_view(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    base = x * 1
    view = base[:1]
    assert triple(lib).apply(view) is view
    assert base.tolist() == [3, 2]
    assert "CopySlices" in base.grad_fn.name()
    assert lib.autograd.grad(base.sum(), x, retain_graph=True)[0].tolist() == [3, 1]
    assert lib.autograd.grad(view.sum(), x)[0].tolist() == [3, 0]


def test_mark_dirty_of_a_view_of_a_view(lib: Any) -> None:
    x = leaf(lib, 1, 2, 3)
    base = x * 1
    outer = base[:2]
    triple(lib).apply(outer[1:])
    (outer * constant(lib, 1, 10)).sum().backward()
    assert (base.tolist(), x.grad.tolist()) == ([1, 6, 3], [1, 30, 0])


def test_mark_dirty_of_a_view_of_a_constant(lib: Any) -> None:
    def forward(ctx: Any, c: Any, x: Any) -> Any:
        ctx.mark_dirty(c)
        return c.mul_(x)

    c, x = constant(lib, 2, 5), leaf(lib, [3])
    make(lib, forward, lambda ctx, grad: (None, grad * 2)).apply(c[:1], x)
    assert c.requires_grad
    c.sum().backward()
    assert x.grad.tolist() == [2]


def test_mark_dirty_of_a_base(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    base = x * 1
    view = base[:1]
    triple(lib).apply(base)
    assert view.tolist() == [3]
    view.sum().backward()
    assert x.grad.tolist() == [3, 0]


def test_a_dirty_view_may_be_saved(lib: Any) -> None:
    def forward(ctx: Any, x: Any) -> Any:
        x.exp_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    x = leaf(lib, 0, 2)
    base = x * 1
    make(lib, forward, lambda ctx, grad: grad * ctx.saved_tensors[0]).apply(base[:1])
    base.sum().backward()
    assert x.grad.tolist() == [1, 1]


def test_a_dirty_view_must_be_the_only_result(lib: Any) -> None:
    function = triple(lib, lambda x: (x, x * 2), lambda ctx, g, h: g + h)
    with pytest.raises(RuntimeError):
        function.apply((leaf(lib, 1, 2) * 1)[:1])


def test_mark_dirty_of_expanded_tensors(lib: Any) -> None:
    with pytest.raises(RuntimeError):
        triple(lib).apply((leaf(lib, [1]) * 1).expand(3))


# Inputs returned as they came, and views of them


def identity(lib: Any) -> Any:
    return make(lib, lambda ctx, x: x, lambda ctx, grad: grad * 5, name="Identity")


def test_inputs_returned_as_they_came(lib: Any) -> None:
    x = leaf(lib, [1])
    y = identity(lib).apply(x)
    assert (y is x, y._is_view(), y._base is x, x.grad_fn) == (False, True, True, None)
    assert y.data_ptr() == x.data_ptr()
    assert y.grad_fn.name() == "IdentityBackward"
    y.backward()
    assert x.grad.tolist() == [5]


def test_inputs_with_a_history_returned_as_they_came(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    a = x * 2
    y = identity(lib).apply(a)
    assert (y is a, a.grad_fn.name()) == (False, "MulBackward0")
    (y + a).sum().backward()
    assert x.grad.tolist() == [12, 12]
    identity(lib).apply((x * 2)[:1]).sum().backward()
    assert x.grad.tolist() == [22, 12]


def test_inputs_returned_twice(lib: Any) -> None:
    x = leaf(lib, [1])
    a, b = make(lib, lambda ctx, x: (x, x), lambda ctx, g, h: g * 2 + h * 3).apply(x)
    assert (a is b, a is x, a.output_nr, b.output_nr) == (False, False, 0, 1)
    (a * 10 + b).sum().backward()
    assert x.grad.tolist() == [23]


def test_constants_returned_as_they_came(lib: Any) -> None:
    c, x = constant(lib, [1]), leaf(lib, [2])
    y = make(lib, lambda ctx, c, x: c, lambda ctx, grad: (None, grad * 2)).apply(c, x)
    assert (y is c, c.requires_grad, y.requires_grad) == (False, False, True)
    y.backward()
    assert x.grad.tolist() == [2]


def test_one_result_twice_reaches_backward(lib: Any) -> None:
    def forward(ctx: Any, x: Any) -> Any:
        y = x * 2
        return y, y

    x = leaf(lib, [1])
    a, b = make(lib, forward, lambda ctx, g, h: (g + h) * 2).apply(x)
    (a + b).sum().backward()
    assert x.grad.tolist() == [4]


def test_an_input_that_is_saved_and_returned(lib: Any) -> None:
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x

    x = leaf(lib, [3])
    y = make(lib, forward, lambda ctx, grad: grad * ctx.saved_tensors[0]).apply(x)
    (first,) = lib.autograd.grad(y, x, create_graph=True)
    (second,) = lib.autograd.grad(first, x)
    assert lists((first, second)) == [[3], [1]]


def test_views_of_inputs(lib: Any) -> None:
    function = make(lib, lambda ctx, x: x.view(-1), lambda ctx, grad: grad.view(2, 1) * 3)
    x = leaf(lib, [1], [2])
    y = function.apply(x)
    assert (y._is_view(), y._base is x, y.data_ptr() == x.data_ptr()) == (True, True, True)
    assert y.grad_fn.name() == "CustomBackward"
    y.sum().backward()
    assert x.grad.tolist() == [[3], [3]]


def test_several_views_of_inputs(lib: Any) -> None:
    function = make(lib, lambda ctx, x: (x[:1], x[1:]), lambda ctx, g, h: lib.cat([g, h]))
    x = leaf(lib, 1, 2)
    y, z = function.apply(x * 1)
    (y * 3 + z).sum().backward()
    assert x.grad.tolist() == [3, 1]


def view_function(lib: Any) -> Any:
    return make(lib, lambda ctx, x: x.view(-1), lambda ctx, grad: grad.view(2, 1) * 3)


@pytest.mark.parametrize(
    "function",
    [
        identity,
        view_function,
        lambda lib: make(lib, lambda ctx, x: (x * 2)[:1]),
        lambda lib: make(lib, lambda ctx, x: (x.view(-1), x * 2)),
        lambda lib: make(lib, lambda ctx, x: (x[:1], x[1:])),
    ],
)
def test_results_that_are_views_are_not_changed_in_place(
    lib: Any, function: Callable[..., Any]
) -> None:
    result = function(lib).apply(leaf(lib, [1], [2]) * 1)
    view = result[0] if isinstance(result, tuple) else result
    with pytest.raises(RuntimeError, match="view") as caught:
        view.mul_(2)
    assert type(caught.value) is RuntimeError
    with lib.no_grad():
        view.mul_(2)


def test_results_that_are_views_after_no_grad(lib: Any) -> None:
    a = leaf(lib, [1], [2]) * 1
    with lib.no_grad():
        y = view_function(lib).apply(a)
    with pytest.raises(RuntimeError) as caught:
        y.mul_(2)
    assert type(caught.value) is RuntimeError


@pytest.mark.parametrize("function", [identity, view_function])
def test_inputs_changed_after_a_view_was_returned(lib: Any, function: Callable[..., Any]) -> None:
    x = leaf(lib, [1], [2])
    a = x * 1
    y = function(lib).apply(a)
    a.mul_(2)
    assert y.numel() == 2
    assert lib.autograd.grad(a.sum(), x, retain_graph=True)[0].tolist() == [[2], [2]]
    with pytest.raises(RuntimeError) as caught:
        y * 1
    assert type(caught.value) is RuntimeError


def test_results_may_be_changed_in_place(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = double(lib).apply(x)
    y[0].mul_(4)
    y.add_(1)
    y.sum().backward()
    assert x.grad.tolist() == [8, 2]
    a, b = make(lib, lambda ctx, x: (x * 2, x * 3), lambda ctx, g, h: g * 2 + h * 3).apply(x)
    a.mul_(4)
    assert lib.autograd.grad((a + b).sum(), x)[0].tolist() == [11, 11]


def test_a_detached_view_of_the_input(lib: Any) -> None:
    x = leaf(lib, [1])
    a = x * 1
    y = make(lib, lambda ctx, x: x.detach(), lambda ctx, grad: grad * 3).apply(a)
    assert y.data_ptr() == a.data_ptr()
    y.mul_(2)
    y.sum().backward()
    assert (a.tolist(), x.grad.tolist()) == ([2], [6])
