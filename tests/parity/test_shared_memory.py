"""Tensors that share memory without sharing history: each keeps its own."""

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import offgrad
from tests.parity.conftest import constant, leaf, raises

PRODUCTS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "mul": lambda lib, a, b: a * b,
    "div": lambda lib, a, b: a / b,
    "pow": lambda lib, a, b: a**b,
    "matmul": lambda lib, a, b: a.view(2, 1) @ b.view(1, 2),
    "dot": lambda lib, a, b: lib.dot(a, b),
    "addcmul": lambda lib, a, b: lib.addcmul(a, a, b),
    "atan2": lambda lib, a, b: lib.atan2(a, b),
    "xlogy": lambda lib, a, b: lib.xlogy(a, b),
}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_with_a_detached_self(lib: Any, name: str, turned: bool) -> None:
    """The second derivative must not take the detached factor for the other one."""
    x = leaf(lib, 0.5, 2)

    def derivatives(other: Any) -> list[Any]:
        y = x * 1
        pair = (other(y), y) if turned else (y, other(y))
        (first,) = lib.autograd.grad(PRODUCTS[name](lib, *pair).sum(), x, create_graph=True)
        (second,) = lib.autograd.grad((first + 0 * x).sum(), x)
        return [first.tolist(), second.tolist()]

    expected = derivatives(lambda y: constant(lib, 0.5, 2))
    for other in (lambda y: y.detach(), lambda y: y.data, lambda y: y.flatten().detach()):
        assert derivatives(other) == [pytest.approx(each) for each in expected]


def test_a_detached_leaf_of_its_own(lib: Any) -> None:
    y = leaf(lib, 2) * 1
    t = y.detach().requires_grad_()
    (first,) = lib.autograd.grad((t * t * y).sum(), t, create_graph=True)
    assert [each.tolist() for each in lib.autograd.grad(first.sum(), [t, y])] == [4, 4]


def test_a_function_that_saves_the_view_it_changed(lib: Any) -> None:
    class Exp(lib.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            x.exp_()
            ctx.mark_dirty(x)
            ctx.save_for_backward(x)
            return x

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * ctx.saved_tensors[0]

    x = leaf(lib, 0.5, 1, 2)
    y = x * 1
    Exp.apply(y[:2])
    (first,) = lib.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = lib.autograd.grad(first.sum(), x)
    assert second.tolist() == pytest.approx([*constant(lib, 0.5, 1).exp().tolist(), 0])


def test_views_of_a_leaf_that_is_a_view_itself(lib: Any) -> None:
    b = lib.zeros(2)[:1]
    b.requires_grad_()
    turned = lib.ones(1, 2).t_()
    turned.requires_grad_()
    for change in (b[:].zero_, lambda: b[:].mul_(2), lambda: turned[0].mul_(2)):
        with raises(RuntimeError):
            change()
    with raises(RuntimeError):
        turned[0] = 5
    assert b.is_leaf
    assert turned.tolist() == [[1], [1]]


def test_complex_values_do_not_lose_their_imaginary_part(lib: Any) -> None:
    x = constant(lib, 1, 2)
    with raises(RuntimeError):
        x[lib.tensor([0])] = constant(lib, [1 + 2j], dtype=lib.complex128)
    assert x.tolist() == [1, 2]


def test_a_shape_changed_under_a_view(lib: Any) -> None:
    c = constant(lib, [[1, 2], [3, 4]])
    row = c[0]
    c.requires_grad_()
    with lib.no_grad():
        c.t_()
    try:
        (found,) = lib.autograd.grad((row * constant(lib, 1, 10)).sum(), c)
    except RuntimeError:
        return
    assert found.t().tolist() == [[1, 10], [0, 0]]


def test_threads_that_change_views_of_one_base(lib: Any) -> None:
    for _ in range(10):
        x = leaf(lib, 1, 1, 1, 1)
        y = x * 1
        parts = [y[index : index + 1] for index in range(4)]
        threads = [
            threading.Thread(target=part.mul_, args=(index + 2,))
            for index, part in enumerate(parts)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        if lib.__name__ == "torch":
            return  # it may lose one
        y.sum().backward()
        assert x.grad.tolist() == [2, 3, 4, 5]


def test_two_backwards_that_run_each_other_in_hooks(lib: Any) -> None:
    """No lock is held while a hook runs."""
    x = leaf(lib, 1)
    a, b = x * 2, x * 3
    meet = threading.Barrier(2, timeout=60)
    inside = threading.local()

    def crossing(other: Any) -> Callable[[Any], None]:
        def hook(grad: Any) -> None:
            if not getattr(inside, "is", False):
                inside.__dict__["is"] = True
                meet.wait()
                other.backward(constant(lib, 1), retain_graph=True)

        return hook

    a.grad_fn.register_prehook(crossing(b))
    b.grad_fn.register_prehook(crossing(a))
    threads = [
        threading.Thread(
            target=each.backward, args=(constant(lib, 1),), kwargs={"retain_graph": True}
        )
        for each in (a, b)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert not any(each.is_alive() for each in threads)
    assert x.grad.tolist() == 10


def test_nothing_is_kept_by_an_anomaly_or_a_multi_grad_hook() -> None:
    gc.disable()
    try:
        x = leaf(offgrad, 0)
        y = x.sqrt() * 0
        alive = [weakref.ref(y.grad_fn)]
        with offgrad.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="nan"):
            y.sum().backward()
        z = x * 2
        offgrad.autograd.graph.register_multi_grad_hook([x, z], lambda grads: None)
        alive.append(weakref.ref(z.grad_fn))
        del y, z
        assert [each() for each in alive] == [None, None]
    finally:
        gc.enable()
