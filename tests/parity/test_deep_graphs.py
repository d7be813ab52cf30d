"""Graphs of a hundred thousand operations in a row, and tensors used ten thousand times."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from tests.parity.conftest import constant, leaf, lists, raises

DEPTH = 100_000
SHORTER = 10_000
"""Enough for every recursion to fail that a hundred thousand would make fail."""
WIDTH = 10_000


class Token:
    """Something whose end can be seen."""


def chain(step: Callable[[Any], Any], start: Any, depth: int = DEPTH) -> Any:
    for _ in range(depth):
        start = step(start)
    return start


def watched(lib: Any, x: Any) -> tuple[Any, "weakref.ref[Token]"]:
    """Return x * x, and a weak reference that dies with the tensor it saved."""
    token = Token()
    watch = weakref.ref(token)

    def pack(tensor: Any, token: Token = token) -> Any:
        return token, tensor

    with lib.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed[1]):
        y = x * x
    return y, watch


def test_a_long_chain_more_than_once(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = chain(lambda t: t + 1, x, SHORTER)
    y.sum().backward(retain_graph=True)
    (found,) = lib.autograd.grad(y.sum(), x)
    assert found.tolist() == x.grad.tolist() == [1, 1]


def test_a_long_chain_that_saves(lib: Any) -> None:
    x, one = leaf(lib, 1, 2), constant(lib, 1)
    y = chain(lambda t: t * one, x, SHORTER)
    y.sum().backward()
    assert x.grad.tolist() == [1, 1]
    with raises(RuntimeError):
        y.sum().backward()


@pytest.mark.slow
def test_a_long_chain_freed_without_backward(lib: Any) -> None:
    y, watch = watched(lib, leaf(lib, 1, 2))
    z = chain(lambda t: t + 1, y)
    del y
    assert watch() is not None
    del z
    gc.collect()
    assert watch() is None


@pytest.mark.slow
def test_a_long_chain_runs_forward_and_backward_and_is_freed(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y, watch = watched(lib, x)
    z = chain(lambda t: t + 1, y)
    del y
    assert z.tolist() == [DEPTH + 1, DEPTH + 4]
    z.sum().backward()
    gc.collect()
    assert watch() is None
    node = z.grad_fn
    del z
    assert node.name() == "AddBackward0"
    del node
    assert x.grad.tolist() == [2, 4]


def test_a_long_chain_freed_from_the_leaf_s_side(lib: Any) -> None:
    """The kept tensor is in the middle: later nodes are freed."""
    x = leaf(lib, 1, 2)
    middle = chain(lambda t: t + 1, x, SHORTER // 2)
    end = chain(lambda t: t + 1, middle, SHORTER // 2)
    del end, x
    middle.sum().backward()
    assert middle.grad_fn is not None


@pytest.mark.slow
def test_a_long_chain_of_views(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = chain(lambda t: t.view(2), x)
    assert y._base is x
    y.sum().backward()
    assert x.grad.tolist() == [1, 1]
    y, watch = watched(lib, leaf(lib, 1, 2))
    z = chain(lambda t: t.view(2), y, SHORTER)
    assert z._base is y
    del y
    assert watch() is not None
    del z
    gc.collect()
    assert watch() is None


def test_a_long_chain_of_changes_in_place(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * 1
    for _ in range(SHORTER):
        y.add_(1)
    assert y._version == SHORTER
    y.sum().backward()
    assert x.grad.tolist() == [1, 1]
    z, watch = watched(lib, leaf(lib, 1, 2))
    for _ in range(SHORTER):
        z.add_(1)
    del z
    gc.collect()
    assert watch() is None


def test_many_changes_of_views(lib: Any) -> None:
    depth = SHORTER // 5
    x = leaf(lib, 1, 2)
    y, watch = watched(lib, x)
    first, second = y[:1], y[1]
    for _ in range(depth):
        first.add_(1)
        second.sub_(1)
    assert y.tolist() == [1 + depth, 4 - depth]
    second.backward(retain_graph=True)
    assert x.grad.tolist() == [0, 4]
    y.sum().backward()
    assert x.grad.tolist() == [2, 8]
    gc.collect()
    assert watch() is None
    del y, first, second


def test_a_view_rebuilt_after_many_changes(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * 1
    view = y[:1]
    for _ in range(SHORTER // 5):
        y[1:].add_(1)
    view.sum().backward()
    assert x.grad.tolist() == [1, 0]


def test_a_long_chain_with_its_gradient_s_graph(lib: Any) -> None:
    depth = SHORTER // 2
    x = leaf(lib, 1, 2)
    y = chain(lambda t: -t, x * x, depth)
    (first,) = lib.autograd.grad(y.sum(), x, create_graph=True)
    assert first.tolist() == [2, 4]
    (second,) = lib.autograd.grad(first.sum(), x)
    assert second.tolist() == [2, 2]
    del first, y


def test_a_long_chain_of_custom_functions(lib: Any) -> None:
    class Next(lib.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x + 1

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return grads[0]

    x = leaf(lib, 1, 2)
    y, watch = watched(lib, x)
    z = chain(Next.apply, y, SHORTER)
    del y
    z.sum().backward(retain_graph=True)
    assert x.grad.tolist() == [2, 4]
    del z
    gc.collect()
    assert watch() is None


def test_a_long_chain_of_gradients(lib: Any) -> None:
    """A recurrence over .grad with its graph, as unrolled optimisation has."""
    x = leaf(lib, 1, 2)
    w = x
    for _ in range(200):
        (found,) = lib.autograd.grad((w * w).sum() / 2, w, create_graph=True)
        w = w - found * 0
    w.sum().backward()
    assert x.grad.tolist() == [1, 1]


def test_an_exception_at_the_end_of_a_long_chain(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y, watch = watched(lib, x)

    def fail(grad: Any) -> None:
        raise ZeroDivisionError

    y.register_hook(fail)
    z = chain(lambda t: t + 1, y, SHORTER)
    del y
    failed = False
    try:  # not pytest.raises: its result holds the traceback, and with it the graph
        z.sum().backward()
    except ZeroDivisionError:
        failed = True
    assert failed
    assert x.grad is None
    del z
    gc.collect()
    assert watch() is None


def test_one_tensor_used_many_times(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * x
    total = sum((y * 2 for _ in range(WIDTH)), start=constant(lib, 0, 0))
    total.sum().backward()
    assert x.grad.tolist() == [4 * WIDTH, 8 * WIDTH]


@pytest.mark.slow
def test_one_function_with_many_inputs(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * x
    lib.stack([y] * WIDTH).sum().backward()
    assert x.grad.tolist() == [2 * WIDTH, 4 * WIDTH]
    x.grad = None
    y = x * x
    lib.cat([y * 1 if n % 2 else x for n in range(WIDTH)]).sum().backward(inputs=[x])
    assert x.grad.tolist() == [WIDTH // 2 * 3, WIDTH // 2 * 5]


def test_many_views_of_one_base(lib: Any) -> None:
    x = lib.zeros(WIDTH, dtype=lib.float64, requires_grad=True)
    y = x * 1
    views = [y[n : n + 1] for n in range(WIDTH)]
    y.mul_(3)
    lib.cat(views[::100]).sum().backward()
    assert x.grad.sum().item() == 3 * WIDTH // 100
    assert x.grad[0].item() == 3
    assert x.grad[1].item() == 0


@pytest.mark.slow
def test_many_roots_and_many_leaves(lib: Any) -> None:
    leaves = [leaf(lib, n) for n in range(WIDTH)]
    roots = [each * 2 for each in leaves]
    found = lib.autograd.grad(roots, leaves, retain_graph=True)
    assert set(lists(found)) == {2}
    lib.autograd.backward(roots)
    assert {each.grad.item() for each in leaves} == {2}


def test_a_ladder_takes_each_rung_once(lib: Any) -> None:
    """Two ways at every step: two to the power of depth paths, one pass."""
    x = leaf(lib, 1, 2)
    y = chain(lambda t: (t + t) * 0.5, x, SHORTER // 2)
    y.sum().backward()
    assert x.grad.tolist() == [1, 1]


def test_walking_a_long_graph(lib: Any) -> None:
    node = chain(lambda t: t + 1, leaf(lib, 1, 2), SHORTER).grad_fn
    count = 0
    while node.next_functions:
        node = node.next_functions[0][0]
        count += 1
    assert count == SHORTER
    assert "AccumulateGrad" in node.name()
