"""Functions of the user's own on both libraries: backward, grad mode, exceptions, nodes."""

import importlib
from collections.abc import Callable
from typing import Any

import pytest

from tests.parity.conftest import constant, leaf, lists
from tests.parity.functions import cube, double, log_and, make

# Return values of backward


RETURNED: dict[str, tuple[Callable[[Any, Any], Any], Any]] = {
    "two": (lambda lib, g: (g, g), ([1, 1], [1, 1])),
    "None": (lambda lib, g: (None, None), (None, None)),
    "more Nones": (lambda lib, g: (g, g, None, None), ([1, 1], [1, 1])),
    "another dtype": (lambda lib, g: (g.float(), g), ([1, 1], [1, 1])),
    "none": (lambda lib, g: (), RuntimeError),
    "too few": (lambda lib, g: (g,), RuntimeError),
    "one tensor": (lambda lib, g: g, RuntimeError),
    "one None": (lambda lib, g: None, RuntimeError),
    "too many": (lambda lib, g: (g, g, g), RuntimeError),
    "a dict": (lambda lib, g: {"a": g}, RuntimeError),
    "too small": (lambda lib, g: (g[:1], g), RuntimeError),
    "too wide": (lambda lib, g: (lib.ones(3, dtype=lib.float64), g), RuntimeError),
    "a sum": (lambda lib, g: (g.sum(), g), RuntimeError),
}


@pytest.mark.parametrize("case", RETURNED)
def test_results_of_backward(lib: Any, case: str) -> None:
    returned, expected = RETURNED[case]
    a, b = leaf(lib, 1, 2), leaf(lib, 3, 4)
    y = make(lib, lambda ctx, a, b: a + b, lambda ctx, grad: returned(lib, grad)).apply(a, b)
    if expected is RuntimeError:
        with pytest.raises(RuntimeError) as caught:
            y.sum().backward()
        assert type(caught.value) is RuntimeError
    else:
        y.sum().backward()
        assert lists((a.grad, b.grad)) == list(expected)
        assert all(each.grad is None or each.grad.dtype == lib.float64 for each in (a, b))


@pytest.mark.parametrize("value", [3.0, "text", (1,), "a list"])
def test_gradients_that_are_no_tensors(lib: Any, value: Any) -> None:
    a, b = leaf(lib, 1, 2), leaf(lib, 3, 4)

    def backward(ctx: Any, grad: Any) -> Any:
        return [grad, grad] if value == "a list" else (value, grad)

    with pytest.raises(RuntimeError):
        make(lib, lambda ctx, a, b: a + b, backward).apply(a, b).sum().backward()


@pytest.mark.parametrize("shape", [(1, 2), (3, 2)])
def test_gradients_are_summed_to_the_shape_of_the_input(lib: Any, shape: tuple[int, ...]) -> None:
    x = leaf(lib, 1, 2)
    ones = lib.ones(shape, dtype=lib.float64)
    make(lib, lambda ctx, x: x * 1, lambda ctx, grad: grad * ones).apply(x).sum().backward()
    assert x.grad.tolist() == [shape[0]] * 2


def test_complex_gradients_of_real_inputs(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = make(lib, lambda ctx, x: x * 1, lambda ctx, grad: grad * (1 + 1j)).apply(x)
    with pytest.raises(RuntimeError):
        y.sum().backward()


def test_real_gradients_of_complex_inputs(lib: Any) -> None:
    z = lib.tensor([1 + 1j], requires_grad=True)
    make(lib, lambda ctx, z: z.real * 1, lambda ctx, grad: grad * 2).apply(z).sum().backward()
    assert z.grad.tolist() == [2 + 0j]


def test_gradients_take_the_dtype_of_the_input(lib: Any) -> None:
    x = lib.tensor([1.0, 2.0], requires_grad=True)
    make(lib, lambda ctx, x: x.double(), lambda ctx, grad: grad * 2).apply(x).sum().backward()
    assert (x.grad.dtype, x.grad.tolist()) == (lib.float32, [2, 2])


@pytest.mark.parametrize("wrong", [False, True])
def test_gradients_of_inputs_without_requires_grad_are_dropped(lib: Any, wrong: bool) -> None:
    x, c = leaf(lib, 1, 2), constant(lib, 3, 4)
    function = make(lib, lambda ctx, x, c: x + c, lambda ctx, g: (g, g[:1] if wrong else g))
    function.apply(x, c).sum().backward()
    assert (x.grad.tolist(), c.grad) == ([1, 1], None)


def test_gradients_of_non_tensors(lib: Any) -> None:
    y = make(lib, lambda ctx, x, k: x + k, lambda ctx, grad: (grad, grad)).apply(leaf(lib, [1]), 3)
    with pytest.raises(RuntimeError):
        y.backward()


def test_too_few_gradients_with_non_tensors(lib: Any) -> None:
    y = make(lib, lambda ctx, x, k: x + k, lambda ctx, grad: grad).apply(leaf(lib, [1]), 3)
    with pytest.raises(RuntimeError):
        y.backward()


def test_gradients_returned_unchanged_are_not_shared(lib: Any) -> None:
    a, b, start = leaf(lib, 1, 2), leaf(lib, 1, 2), lib.ones(2, dtype=lib.float64)
    make(lib, lambda ctx, a, b: a + b, lambda ctx, grad: (grad, grad)).apply(a, b).backward(start)
    a.grad.mul_(5)
    assert lists((start, b.grad)) == [[1, 1], [1, 1]]


# Second derivatives


def test_third_derivatives(lib: Any) -> None:
    x = leaf(lib, 2, 3)
    found = [cube(lib).apply(x)]
    for _ in range(3):
        found.append(lib.autograd.grad(found[-1].sum(), x, create_graph=True)[0])
    assert lists(found[1:]) == [[12, 27], [12, 18], [6, 6]]


def test_a_function_in_the_backward_of_another(lib: Any) -> None:
    def forward(ctx: Any, grad: Any, x: Any) -> Any:
        ctx.save_for_backward(grad, x)
        return grad * 2 * x

    def backward(ctx: Any, grad_grad: Any) -> Any:
        grad, x = ctx.saved_tensors
        return grad_grad * 2 * x, grad_grad * 2 * grad

    inner = make(lib, forward, backward, name="SquareGradient")

    def outer_forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    outer = make(lib, outer_forward, lambda ctx, grad: inner.apply(grad, ctx.saved_tensors[0]))
    x = leaf(lib, 2, 3)
    (first,) = lib.autograd.grad(outer.apply(x).sum(), x, create_graph=True)
    assert first.grad_fn.name() == "SquareGradientBackward"
    (second,) = lib.autograd.grad(first.sum(), x)
    assert lists((first, second)) == [[4, 6], [2, 2]]


@pytest.mark.parametrize("several", [False, True])
def test_once_differentiable(lib: Any, several: bool) -> None:
    once = importlib.import_module(f"{lib.__name__}.autograd.function").once_differentiable
    modes: list[bool] = []

    def forward(ctx: Any, x: Any, k: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    def backward(ctx: Any, grad: Any) -> Any:
        modes.append(lib.is_grad_enabled())
        return grad * 2 * ctx.saved_tensors[0], None

    function = make(lib, forward, once(backward))
    x, start = leaf(lib, [3]), leaf(lib, [1])
    function.apply(x, 2).backward()
    assert x.grad.tolist() == [6]
    (first,) = lib.autograd.grad(
        function.apply(x, 2), x, start if several else None, create_graph=True
    )
    assert first.tolist() == [6]
    with pytest.raises(RuntimeError):
        first.backward()
    assert modes == [False, False]


# Grad mode


def test_grad_mode_within(lib: Any) -> None:
    seen: list[Any] = []

    def forward(x: Any) -> Any:
        return log_and(x * 1, seen, ("forward", lib.is_grad_enabled()))

    def backward(ctx: Any, grad: Any) -> Any:
        return log_and(grad * 1, seen, (lib.is_grad_enabled(), grad.requires_grad))

    function = make(lib, lambda ctx, x: forward(x), backward)
    x = leaf(lib, [1])
    function.apply(x).backward()
    lib.autograd.grad(function.apply(x), x, create_graph=True)
    setup = make(
        lib,
        forward,
        backward,
        lambda ctx, inputs, output: seen.append(("setup", lib.is_grad_enabled())),
    )
    setup.apply(x)
    off = ("forward", False)
    assert seen == [off, (False, False), off, (True, False), off, ("setup", False)]
    assert lib.is_grad_enabled()


def test_under_no_grad(lib: Any) -> None:
    x = leaf(lib, [1])
    with lib.no_grad():
        y = cube(lib).apply(x)
        assert not lib.is_grad_enabled()
    assert (y.requires_grad, y.grad_fn, y.is_leaf) == (False, None, True)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_inputs_returned_under_no_grad(lib: Any, requires_grad: bool) -> None:
    x = lib.ones(2, requires_grad=requires_grad)
    with lib.no_grad():
        y = make(lib, lambda ctx, x: x).apply(x)
    assert (y is x, y.requires_grad, x.requires_grad) == (False, False, requires_grad)
    assert y.data_ptr() == x.data_ptr()


def test_in_inference_mode(lib: Any) -> None:
    x = leaf(lib, [1])
    with lib.inference_mode():
        y, c = double(lib).apply(x), lib.ones(1, dtype=lib.float64)
    assert (y.requires_grad, y.is_inference()) == (False, True)

    def forward(ctx: Any, x: Any, c: Any) -> Any:
        ctx.save_for_backward(c)
        return x * c

    with pytest.raises(RuntimeError, match=r"[Ii]nference"):
        make(lib, forward).apply(x, c)


def test_a_graph_recorded_inside_forward_is_not_followed(lib: Any) -> None:
    def forward(ctx: Any, x: Any) -> Any:
        with lib.enable_grad():
            return x * 7

    x = leaf(lib, [1])
    y = make(lib, forward, lambda ctx, grad: grad * 5).apply(x)
    assert y.grad_fn.name() == "CustomBackward"
    y.backward()
    assert x.grad.tolist() == [5]


def test_leaves_made_by_forward_become_results(lib: Any) -> None:
    for make_leaf in (
        lambda ctx, x: lib.ones(1, dtype=lib.float64, requires_grad=True),
        lambda ctx, x: (x * 1).requires_grad_(),
        lambda ctx, x: x.detach(),
    ):
        x = leaf(lib, [1])
        y = make(lib, make_leaf, lambda ctx, grad: grad * 4).apply(x)
        assert (y.grad_fn.name(), y.is_leaf) == ("CustomBackward", False)
        y.backward()
        assert x.grad.tolist() == [4]


def test_functions_within_forward_are_not_recorded(lib: Any) -> None:
    seen: list[Any] = []

    def forward(ctx: Any, x: Any) -> Any:
        y = cube(lib).apply(x)
        ctx.save_for_backward(x)
        return log_and(y * 2, seen, (y.requires_grad, lib.is_grad_enabled()))

    def backward(ctx: Any, grad: Any) -> Any:
        with lib.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            y = cube(lib).apply(x) * 2
        return lib.autograd.grad(y, x, grad)

    x = leaf(lib, 2, 3)
    make(lib, forward, backward).apply(x).sum().backward()
    assert seen == [(False, False)]
    assert x.grad.tolist() == [24, 54]


# backward within backward


def test_backward_within_backward(lib: Any) -> None:
    weight = leaf(lib, [5])

    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x * weight

    def backward(ctx: Any, grad: Any) -> Any:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with lib.enable_grad():
            y = x * x * weight
        y.backward(grad)
        return x.grad

    x = leaf(lib, [2])
    function = make(lib, forward, backward)
    function.apply(function.apply(x) * 1).backward()  # w (w x^2)^2
    assert x.grad.tolist() == [4 * 5**3 * 2**3]
    assert weight.grad.tolist() == [3 * 5**2 * 2**4]
    assert lib.is_grad_enabled()


def test_backward_within_backward_runs_to_its_end_first(lib: Any) -> None:
    log: list[str] = []

    def backward(ctx: Any, grad: Any) -> Any:
        log.append("begin")
        x = leaf(lib, [1])
        x.register_hook(lambda grad: log.append("hook"))
        with lib.enable_grad():
            y = (x * 2).sum()
        y.backward()
        log.append("end")
        return grad

    first = make(lib, lambda ctx, x: x * 1, lambda ctx, grad: log_and(grad, log, "outer"))
    make(lib, lambda ctx, x: x * 1, backward).apply(first.apply(leaf(lib, [1]))).backward()
    assert log == ["begin", "hook", "end", "outer"]


def test_backward_within_backward_many_times(lib: Any) -> None:
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * 3

    def nested(depth: int) -> Any:
        def backward(ctx: Any, grad: Any) -> Any:
            x = ctx.saved_tensors[0].detach().requires_grad_()
            with lib.enable_grad():
                y = nested(depth - 1).apply(x) if depth else x * 3
            y.backward(grad)
            return x.grad

        return make(lib, forward, backward)

    x = leaf(lib, [2])
    nested(20).apply(x).backward()
    assert x.grad.tolist() == [3]


# Exceptions


def test_exceptions_in_forward(lib: Any) -> None:
    def forward(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        raise KeyError("its own")

    x = leaf(lib, [1]) * 1
    version, name = x._version, x.grad_fn.name()
    with pytest.raises(KeyError, match="its own"):
        make(lib, forward).apply(x)
    assert lib.is_grad_enabled()
    assert (x._version, x.grad_fn.name()) == (version, name)


def test_exceptions_in_setup_context(lib: Any) -> None:
    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        raise KeyError("its own")

    with pytest.raises(KeyError, match="its own"):
        make(lib, lambda x: x * 1, None, setup).apply(leaf(lib, [1]))
    assert lib.is_grad_enabled()


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_exceptions_in_backward(lib: Any, error: type[BaseException]) -> None:
    calls: list[int] = []

    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * 1

    def backward(ctx: Any, grad: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise error("its own")
        return grad * ctx.saved_tensors[0]

    x = leaf(lib, [2])
    y = make(lib, forward, backward).apply(x * 1)
    with pytest.raises(error):
        y.backward()
    assert (lib.is_grad_enabled(), x.grad) == (True, None)
    y.backward()  # The saved tensors of the node were not freed.
    assert x.grad.tolist() == [2]


def test_missing_methods(lib: Any) -> None:
    with pytest.raises(NotImplementedError):
        make(lib, None).apply(leaf(lib, [1]))
    with pytest.raises(NotImplementedError):
        make(lib, lambda ctx, x: x * 1).apply(leaf(lib, [1])).backward()


def test_vjp_is_another_name_for_backward(lib: Any) -> None:
    x = leaf(lib, [1])
    make(lib, lambda ctx, x: x * 1, vjp=lambda ctx, grad: grad * 7).apply(x).backward()
    assert x.grad.tolist() == [7]


def identity(ctx: Any, grad: Any) -> Any:
    return grad


def test_backward_and_vjp_exclude_each_other(lib: Any) -> None:
    with pytest.raises(RuntimeError):
        make(lib, lambda ctx, x: x * 1, identity, vjp=identity).apply(leaf(lib, [1])).backward()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_instances_are_not_called(lib: Any) -> None:
    with pytest.raises(RuntimeError):
        double(lib)()(leaf(lib, [1]))


# Nodes: names, edges, hooks


def test_names(lib: Any) -> None:
    y = make(lib, lambda ctx, x: x * 1, name="My_Op").apply(leaf(lib, [1]))
    assert y.grad_fn.name() == "My_OpBackward"
    assert "My_OpBackward object at" in repr(y.grad_fn)
    assert "grad_fn=<My_OpBackward>" in repr(y)


def test_name_of_the_class_of_a_node(lib: Any) -> None:
    assert type(double(lib).apply(leaf(lib, [1])).grad_fn).__name__ == "DoubleBackward"


def test_next_functions(lib: Any) -> None:
    x, c, w = leaf(lib, [1]), constant(lib, [2]), leaf(lib, [3])
    y = x * 1
    edges = make(lib, lambda ctx, *inputs: inputs[0] * 1).apply(y, c, w).grad_fn.next_functions
    assert edges[0] == (y.grad_fn, 0)
    assert edges[1] == (None, 0)
    assert edges[2][0].variable is w


def test_edges_are_of_tensors_only(lib: Any) -> None:
    seen: list[Any] = []
    x = leaf(lib, [1])
    y = make(
        lib, lambda ctx, k, x, none, c: x * 1, lambda ctx, grad: (None, grad * 2, None, None)
    ).apply(3, x, None, constant(lib, [1]))
    y.grad_fn.register_hook(lambda inputs, outputs: seen.append((lists(inputs), lists(outputs))))
    y.backward()
    assert len(y.grad_fn.next_functions) == 2
    assert seen == [([[2], None], [[1]])]


def test_hooks_on_nodes(lib: Any) -> None:
    x = leaf(lib, [1])
    y = make(lib, lambda ctx, x: x * 1, lambda ctx, grad: grad * 2).apply(x)
    y.grad_fn.register_prehook(lambda outputs: (outputs[0] * 10,))
    handle = y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] * 100 + outputs[0],))
    y.backward(retain_graph=True)
    assert x.grad.tolist() == [2010]
    handle.remove()
    x.grad = None
    y.backward()
    assert x.grad.tolist() == [20]


def test_hooks_on_nodes_see_missing_gradients_as_none(lib: Any) -> None:
    seen: list[Any] = []
    a, _ = make(lib, lambda ctx, x: (x * 1, x * 2), lambda ctx, g, h: g + h).apply(leaf(lib, [1]))
    a.grad_fn.register_prehook(lambda outputs: seen.append(lists(outputs)))
    a.grad_fn.register_hook(lambda inputs, outputs: seen.append(lists(outputs)))
    a.backward()
    assert seen == [[[1], None], [[1], None]]


def test_hooks_on_outputs(lib: Any) -> None:
    seen: list[Any] = []
    x = leaf(lib, [1])
    a, b = make(lib, lambda ctx, x: (x * 1, x * 2), lambda ctx, g, h: g * 2 + h).apply(x)
    a.register_hook(lambda grad: grad * 10)
    b.retain_grad()
    lib.autograd.graph.register_multi_grad_hook([a, b], lambda grads: seen.append(lists(grads)))
    (a * 3 + b).sum().backward()
    assert (x.grad.tolist(), b.grad.tolist()) == ([61], [1])
    assert seen == [[[30], [1]]]
