"""Backward within backward: in hooks, in custom Functions, nested deep, and to recompute."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad
from tests.parity.conftest import leaf, lists, raises


def nested(lib: Any, inside: Callable[[], Any]) -> Any:
    """Return a Function that doubles, and calls `inside` in its backward, recording."""

    class Nested(lib.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            with lib.enable_grad():
                inside()
            return grads[0] * 2

    return Nested.apply


def test_in_a_hook_of_a_tensor(lib: Any) -> None:
    x, w = leaf(lib, 1, 2), leaf(lib, 3, 4)
    y = x * 2

    def hook(grad: Any) -> Any:
        with lib.enable_grad():
            (w * w).sum().backward()
        return grad + w.grad

    y.register_hook(hook)
    y.sum().backward()
    assert w.grad.tolist() == [6, 8]
    assert x.grad.tolist() == [14, 18]


def test_in_hooks_of_nodes(lib: Any) -> None:
    x, w = leaf(lib, 1, 2), leaf(lib, 3, 4)
    y = x * 2
    inner = (w * w).sum()

    def before(grads: Any) -> Any:
        return tuple(each + lib.autograd.grad(inner, w, retain_graph=True)[0] for each in grads)

    y.grad_fn.register_prehook(before)
    y.grad_fn.register_hook(lambda gi, go: inner.backward(retain_graph=True))
    y.sum().backward()
    assert x.grad.tolist() == [14, 18]
    assert w.grad.tolist() == [6, 8]


def test_in_a_hook_after_accumulation(lib: Any) -> None:
    x, w = leaf(lib, 1, 2), leaf(lib, 3, 4)
    inner = (w * 5).sum()
    x.register_post_accumulate_grad_hook(lambda t: inner.backward())
    (x * 2).sum().backward()
    assert lists([x.grad, w.grad]) == [[2, 2], [5, 5]]


def test_in_the_backward_of_a_function(lib: Any) -> None:
    x, w = leaf(lib, 1, 2), leaf(lib, 3, 4)
    nested(lib, lambda: (w * w).sum().backward())(x).sum().backward()
    assert lists([x.grad, w.grad]) == [[2, 2], [6, 8]]


def test_into_the_same_leaf(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    nested(lib, lambda: (x * 10).sum().backward())(x).sum().backward()
    assert x.grad.tolist() == [12, 12]


def test_through_a_retained_part_of_the_same_graph(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    shared = x * x
    y = nested(lib, lambda: (shared * 10).sum().backward(retain_graph=True))(shared)
    y.sum().backward()
    assert x.grad.tolist() == [24, 48]


def test_through_the_same_graph_before_it_is_freed(lib: Any) -> None:
    """The inner backward frees what the outer one still needs; it must say so."""
    x = leaf(lib, 1, 2)
    shared = x * x
    y = nested(lib, lambda: shared.sum().backward())(shared)
    with raises(RuntimeError) as info:
        y.sum().backward()
    assert "retain_graph" in str(info.value)


def test_grad_inside_backward_and_the_other_way(lib: Any) -> None:
    x, w = leaf(lib, 1, 2), leaf(lib, 3, 4)
    seen = []

    def inside() -> None:
        (first,) = lib.autograd.grad((w**3).sum(), w, create_graph=True)
        (second,) = lib.autograd.grad(first.sum(), w)
        seen.append(lists([first, second]))

    y = nested(lib, inside)(x).sum()
    lib.autograd.grad(y, x, retain_graph=True)
    y.backward()
    assert seen == [[[27, 48], [18, 24]]] * 2
    assert w.grad is None
    assert x.grad.tolist() == [2, 2]


@pytest.mark.parametrize("depth", [1, 5, 30])
def test_nested_deep(lib: Any, depth: int) -> None:
    x = leaf(lib, 1, 2)
    order = []

    def level(n: int) -> None:
        order.append(n)
        if n < depth:
            y = nested(lib, lambda: level(n + 1))(x)
            (y * (n + 1)).sum().backward()
            order.append(-n)

    level(0)
    assert order == [*range(depth + 1), *(-n for n in reversed(range(depth)))]
    assert x.grad.tolist() == [2 * sum(range(1, depth + 1))] * 2


def test_several_in_one_backward(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    double = nested(lib, lambda: (x * 100).sum().backward())
    y = double(double(x) + double(x))
    y.sum().backward()
    assert x.grad.tolist() == [308, 308]


def test_nodes_of_the_outer_graph_are_not_run_by_the_inner(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    seen: list[str] = []
    y = x * 2
    y.register_hook(lambda g: seen.append("outer"))

    def inside() -> None:
        seen.append("inside")
        (x * 1).sum().backward()

    z = nested(lib, inside)(y)
    z.register_hook(lambda g: seen.append("last"))
    z.sum().backward()
    assert seen == ["last", "inside", "outer"]
    assert x.grad.tolist() == [5, 5]


def test_an_error_inside_comes_out(lib: Any) -> None:
    x = leaf(lib, 1, 2)

    def fail() -> None:
        raise ZeroDivisionError("inner")

    middle = nested(lib, fail)
    y = nested(lib, lambda: middle(x).sum().backward())(x)
    with pytest.raises(ZeroDivisionError, match="inner"):
        y.sum().backward()
    assert lists([x.grad]) == [None]
    (x * 3).sum().backward()
    assert x.grad.tolist() == [3, 3]


def test_modes_are_those_of_each_backward(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    seen: list[bool] = []

    def inside() -> None:
        y = x * x
        y.register_hook(lambda g: seen.append(lib.is_grad_enabled()))
        lib.autograd.grad(y.sum(), x, create_graph=True)
        seen.append(lib.is_grad_enabled())

    y = x * 1
    y.register_hook(lambda g: seen.append(lib.is_grad_enabled()))
    nested(lib, inside)(y).sum().backward()
    assert seen == [True, True, False]


def test_with_a_graph_of_the_gradient(lib: Any) -> None:
    x, w = leaf(lib, 1, 2), leaf(lib, 3, 4)
    y = nested(lib, lambda: (w * w).sum().backward())(x * x)
    (first,) = lib.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = lib.autograd.grad(first.sum(), x)
    assert lists([first, second, w.grad]) == [[4, 8], [4, 4], [6, 8]]


# Recomputation.


def recompute(lib: Any, function: Callable[..., Any]) -> Any:
    """Return a Function that drops the results of `function` and recomputes them."""

    class Recompute(lib.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            ctx.save_for_backward(*inputs)
            return function(*inputs)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            inputs = [each.detach().requires_grad_() for each in ctx.saved_tensors]
            with lib.enable_grad():
                output = function(*inputs)
            lib.autograd.backward(output, grads[0])
            return tuple(each.grad for each in inputs)

    return Recompute.apply


def block(x: Any, w: Any) -> Any:
    y = x * w
    y[:1].mul_(2)
    return y.tanh() * w


def test_recomputation_gives_the_same_gradients(lib: Any) -> None:
    def run(apply: Callable[..., Any]) -> Any:
        x, w = leaf(lib, 0.5, 2), leaf(lib, 0.25, 1)
        y = x * 1
        for _ in range(4):
            y = apply(y, w)
        y.sum().backward()
        return x.grad.tolist() + w.grad.tolist()

    assert run(recompute(lib, block)) == pytest.approx(run(block), rel=1e-12)


def test_recomputation_saves_inputs_alone(lib: Any) -> None:
    packed: list[Any] = []
    x, w = leaf(lib, 0.5, 2), leaf(lib, 0.25, 1)

    def pack(tensor: Any) -> Any:
        packed.append(tensor)
        return tensor

    with lib.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = recompute(lib, block)(x, w)
    assert lists(packed) == lists([x, w])
    y.sum().backward()
    assert x.grad is not None


def test_recomputation_within_recomputation(lib: Any) -> None:
    count = []

    def inner(x: Any, w: Any) -> Any:
        count.append(1)
        return block(x, w)

    def middle(x: Any, w: Any) -> Any:
        apply = recompute(lib, inner)
        return apply(apply(x, w), w)

    def run(function: Callable[..., Any]) -> Any:
        x, w = leaf(lib, 0.5, 2), leaf(lib, 0.25, 1)
        function(x, w).sum().backward()
        return x.grad.tolist() + w.grad.tolist()

    expected = run(lambda x, w: block(block(x, w), w))
    assert run(recompute(lib, middle)) == pytest.approx(expected, rel=1e-12)
    assert len(count) == 2 + 2 + 2


@pytest.mark.parametrize("where", ["pool", "disk"])
def test_recomputation_in_a_session(where: str) -> None:
    def run(session: Any) -> list[bytes]:
        x = offgrad.tensor(np.random.default_rng(0).standard_normal((64, 64)), requires_grad=True)
        w = offgrad.tensor(np.random.default_rng(1).standard_normal((64, 64)), requires_grad=True)
        y: Any = x * 1
        with session:
            for _ in range(3):
                y = recompute(offgrad, block)(y, w)
        y.sum().backward()
        assert x.grad is not None
        assert w.grad is not None
        return [x.grad.numpy().tobytes(), w.grad.numpy().tobytes()]

    assert run(offgrad.offload(where)) == run(offgrad.offload("keep"))
