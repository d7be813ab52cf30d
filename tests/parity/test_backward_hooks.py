"""Hooks of backward: which fire, in which order, and their return values."""

import gc
import weakref
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from tests.parity.conftest import constant, leaf, lists, raises

with_a_graph = pytest.mark.filterwarnings("ignore:Using backward:UserWarning")


# Tensor.register_hook: arguments and return values.


def on_leaf(lib: Any, x: Any) -> Any:
    return x


def on_result(lib: Any, x: Any) -> Any:
    return x * 1


PLACES = pytest.mark.parametrize("place", [on_leaf, on_result], ids=["leaf", "result"])


@PLACES
def test_a_hook_gets_the_gradient(lib: Any, place: Any) -> None:
    x = leaf(lib, 1, 2)
    t = place(lib, x)
    seen: list[Any] = []
    t.register_hook(seen.append)
    (t * t).sum().backward()
    assert lists(seen) == [[2, 4]]
    assert not seen[0].requires_grad
    assert seen[0].dtype == lib.float64
    assert x.grad.tolist() == [2, 4]


@PLACES
def test_a_hook_may_return_another_gradient(lib: Any, place: Any) -> None:
    x = leaf(lib, 1, 2)
    t = place(lib, x)
    t.register_hook(lambda grad: grad * 10)
    (t * t).sum().backward()
    assert x.grad.tolist() == [20, 40]


@PLACES
def test_later_hooks_get_the_results_of_earlier_ones(lib: Any, place: Any) -> None:
    x = leaf(lib, 1, 2)
    t = place(lib, x)
    seen: Any = []
    t.register_hook(lambda grad: seen.append(grad.tolist()) or grad + 1)
    t.register_hook(lambda grad: seen.append(grad.tolist()))
    t.register_hook(lambda grad: seen.append(grad.tolist()) or grad * 10)
    (t * t).sum().backward()
    assert seen == [[2, 4], [3, 5], [3, 5]]
    assert x.grad.tolist() == [30, 50]


@PLACES
def test_a_hook_fires_once_with_the_sum_of_all_paths(lib: Any, place: Any) -> None:
    t = place(lib, leaf(lib, 1, 2))
    seen: list[Any] = []
    t.register_hook(lambda grad: seen.append(grad.tolist()))
    (t * 2 + t * 3 + t).sum().backward()
    assert seen == [[6, 6]]


@PLACES
def test_a_hook_fires_in_every_backward(lib: Any, place: Any) -> None:
    t = place(lib, leaf(lib, 1, 2))
    seen: list[Any] = []
    t.register_hook(lambda grad: seen.append(grad.tolist()))
    y = (t * t).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert seen == [[2, 4], [2, 4]]


@PLACES
@pytest.mark.parametrize("wrong", [3.0, "x", [1.0, 2.0]], ids=repr)
def test_a_hook_returns_a_tensor_or_nothing(lib: Any, place: Any, wrong: Any) -> None:
    x = leaf(lib, 1, 2)
    t = place(lib, x)
    t.register_hook(lambda grad: wrong)
    with raises(TypeError):
        (t * t).sum().backward()
    assert x.grad is None


@PLACES
def test_a_hook_returns_the_same_shape_and_dtype(lib: Any, place: Any) -> None:
    for wrong in (
        lib.ones(3, dtype=lib.float64),
        lib.ones(1, dtype=lib.float64),
        lib.ones(2, 1, dtype=lib.float64),
        lib.ones(2, dtype=lib.float32),
        lib.ones(2, dtype=lib.complex128),
    ):
        x = leaf(lib, 1, 2)
        t = place(lib, x)
        t.register_hook(lambda grad, wrong=wrong: wrong)
        with raises(RuntimeError):
            (t * t).sum().backward()
        assert x.grad is None


def test_only_tensors_that_require_grad_have_hooks(lib: Any) -> None:
    with raises(RuntimeError):
        constant(lib, 1, 2).register_hook(lambda grad: grad)
    with raises(RuntimeError):
        (leaf(lib, 1) * 2).detach().register_hook(lambda grad: grad)


def test_the_roots_hook(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = (x * 2).sum()
    seen: Any = []
    y.register_hook(lambda grad: seen.append(grad.item()) or grad * 10)
    y.backward(constant(lib, 3))
    assert seen == [3]
    assert x.grad.tolist() == [60, 60]


def test_hooks_of_one_output_of_several(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    first, second = x.unbind()
    seen: Any = []
    second.register_hook(lambda grad: seen.append(grad.item()) or grad * 10)
    (first * 2 + second * 3).backward()
    assert seen == [3]
    assert x.grad.tolist() == [2, 30]


def test_the_hook_of_an_output_that_was_not_used(lib: Any) -> None:
    first, second = leaf(lib, 1, 2).unbind()
    seen: list[Any] = []
    second.register_hook(seen.append)
    (first * 2).backward()
    assert seen == [] or seen == [None]


def test_a_hook_out_of_the_way_does_not_fire(lib: Any) -> None:
    x = leaf(lib, 1.0)
    a = x * 2
    later, beside = a * 3, x * 5
    seen: list[Any] = []
    for each in (later, beside):
        each.register_hook(seen.append)
        each.grad_fn.register_hook(lambda *_: seen.append("node"))
        each.grad_fn.register_prehook(lambda *_: seen.append("node"))
    a.backward()
    assert seen == []


def test_a_hook_outlives_its_tensor(lib: Any) -> None:
    x = leaf(lib, 1.0)
    h = x * 2
    seen: list[Any] = []
    h.register_hook(lambda grad: seen.append(grad.item()))
    y = h * 3
    del h
    gc.collect()
    y.backward()
    assert seen == [3]


def test_a_hook_registered_after_the_forward(lib: Any) -> None:
    x = leaf(lib, 1.0)
    h = x * 2
    y = h * 3
    for each in (x, h, y):
        each.register_hook(lambda grad: grad * 10)
    y.backward()
    assert x.grad.item() == 6000


def test_hooks_may_be_registered_in_no_grad(lib: Any) -> None:
    x = leaf(lib, 1.0)
    h = x * 2
    with lib.no_grad():
        h.register_hook(lambda grad: grad * 10)
    h.backward()
    assert x.grad.item() == 20


# Handles.


def registrations(lib: Any, x: Any, h: Any, seen: list[Any]) -> list[Callable[[], Any]]:
    """Return ways to register a hook that fires in a backward through h to x."""
    graph = lib.autograd.graph
    note: Callable[..., None] = lambda *_: seen.append("fired")
    return [
        lambda: x.register_hook(note),
        lambda: h.register_hook(note),
        lambda: x.register_post_accumulate_grad_hook(note),
        lambda: h.grad_fn.register_hook(note),
        lambda: h.grad_fn.register_prehook(note),
        lambda: graph.register_multi_grad_hook([x, h], note),
        lambda: graph.register_multi_grad_hook([x, h], note, mode="any"),
    ]


KINDS = pytest.mark.parametrize(
    "kind", range(7), ids=["leaf", "result", "post", "node", "pre", "all", "any"]
)
SIMPLE = pytest.mark.parametrize("kind", range(5), ids=["leaf", "result", "post", "node", "pre"])


@KINDS
def test_a_removed_hook_does_not_fire(lib: Any, kind: int) -> None:
    x = leaf(lib, 1.0)
    h = x * 2
    seen: list[Any] = []
    handle = registrations(lib, x, h, seen)[kind]()
    (h + 0).backward(retain_graph=True)
    assert seen == ["fired"]
    handle.remove()
    (h + 0).backward(retain_graph=True)
    assert seen == ["fired"]
    handle.remove()


@KINDS
def test_a_handle_is_a_context_manager(lib: Any, kind: int) -> None:
    x = leaf(lib, 1.0)
    h = x * 2
    seen: list[Any] = []
    with registrations(lib, x, h, seen)[kind]():
        (h + 0).backward(retain_graph=True)
    (h + 0).backward()
    assert seen == ["fired"]


@KINDS
def test_removing_one_hook_leaves_the_others(lib: Any, kind: int) -> None:
    x = leaf(lib, 1.0)
    h = x * 2
    seen: list[Any] = []
    register = registrations(lib, x, h, seen)[kind]
    handles = [register() for _ in range(3)]
    handles[1].remove()
    (h + 0).backward()
    assert seen == ["fired"] * 2


@KINDS
def test_a_handle_outlives_its_tensor(lib: Any, kind: int) -> None:
    x = leaf(lib, 1.0)
    h = x * 2
    handle = registrations(lib, x, h, [])[kind]()
    del x, h
    gc.collect()
    handle.remove()


@SIMPLE
def test_a_handle_does_not_keep_the_graph_alive(lib: Any, kind: int) -> None:
    x = leaf(lib, 1.0)
    h = x * 2

    class Witness:
        pass

    witness = Witness()
    h.grad_fn.metadata["witness"] = witness
    alive = weakref.ref(witness)
    handle = registrations(lib, x, h, [])[kind]()
    del witness, h
    gc.collect()
    assert alive() is None
    handle.remove()


@KINDS
def test_an_error_of_a_hook_comes_out_of_backward(lib: Any, kind: int) -> None:
    x = leaf(lib, 1.0)
    h = x * 2

    class MineError(Exception):
        pass

    class Raising(list[Any]):
        def append(self, each: Any) -> None:
            raise MineError

    handle = registrations(lib, x, h, Raising())[kind]()
    with pytest.raises(MineError):
        (h + 0).backward(retain_graph=True)
    assert lib.is_grad_enabled()
    x.grad = None
    handle.remove()
    (h + 0).backward()
    assert x.grad.item() == 2


def test_a_hook_that_raises_stops_the_accumulation(lib: Any) -> None:
    x = leaf(lib, 1.0)

    def hook(grad: Any) -> Any:
        raise KeyError("mine")

    x.register_hook(hook)
    with pytest.raises(KeyError, match="mine"):
        (x * 2).backward()
    assert x.grad is None


# Hooks that change hooks.


@SIMPLE
def test_a_hook_that_removes_itself(lib: Any, kind: int) -> None:
    x = leaf(lib, 1.0)
    h = x * 2
    seen: list[Any] = []

    class Removing(list[Any]):
        def append(self, each: Any) -> None:
            seen.append("once")
            handle.remove()

    registrations(lib, x, h, seen)[kind]()
    handle = registrations(lib, x, h, Removing())[kind]()
    registrations(lib, x, h, seen)[kind]()
    (h + 0).backward(retain_graph=True)
    assert seen == ["fired", "once", "fired"]
    (h + 0).backward()
    assert seen == ["fired", "once", "fired"] + ["fired"] * 2


@SIMPLE
def test_a_hook_added_by_a_hook_fires_from_the_next_time_on(lib: Any, kind: int) -> None:
    x = leaf(lib, 1.0)
    h = x * 2
    seen: list[Any] = []

    class Adding(list[Any]):
        def append(self, each: Any) -> None:
            seen.append("adding")
            registrations(lib, x, h, seen)[kind]()

    handle = registrations(lib, x, h, Adding())[kind]()
    (h + 0).backward(retain_graph=True)
    assert seen == ["adding"]
    handle.remove()
    (h + 0).backward()
    assert seen == ["adding", "fired"]


def test_a_hook_added_further_on_fires_in_this_backward(lib: Any) -> None:
    x = leaf(lib, 1.0)
    h = x * 2
    y = h * 3
    seen: list[Any] = []

    def hook(grad: Any) -> None:
        x.register_hook(lambda grad: seen.append("x"))
        h.register_hook(lambda grad: seen.append("h"))

    y.register_hook(hook)
    y.backward()
    assert seen == ["h", "x"]


# Re-entrance.


def test_a_hook_may_run_another_backward(lib: Any) -> None:
    x, w = leaf(lib, 2.0), leaf(lib, 5.0)
    y = x * x
    seen: list[Any] = []

    def hook(grad: Any) -> Any:
        with lib.enable_grad():
            (w * w).backward()
        seen.append(lib.is_grad_enabled())
        return grad * w.grad.item()

    y.register_hook(hook)
    y.backward()
    assert w.grad.item() == 10
    assert x.grad.item() == 40
    assert seen == [False]


def test_a_hook_may_run_grad(lib: Any) -> None:
    x, w = leaf(lib, 2.0), leaf(lib, 5.0)
    other = w * w
    y = x * x
    y.register_hook(lambda grad: grad * lib.autograd.grad(other, w)[0])
    y.backward()
    assert x.grad.item() == 40
    assert w.grad is None


def test_a_hook_may_run_a_backward_through_the_same_leaf(lib: Any) -> None:
    x = leaf(lib, 2.0)
    y = x * x
    other = x * 3
    y.grad_fn.register_hook(lambda *_: other.backward())
    y.backward()
    assert x.grad.item() == 7


def test_hooks_may_nest_deeply(lib: Any) -> None:
    leaves = [leaf(lib, 1.0) for _ in range(100)]
    results = [each * 2 for each in leaves]
    for each, following in pairwise(results):
        each.register_hook(lambda grad, following=following: following.backward())
    results[0].backward()
    assert [each.grad.item() for each in leaves] == [2] * 100


def test_an_error_in_an_inner_backward_leaves_the_outer_usable(lib: Any) -> None:
    x, w = leaf(lib, 2.0), leaf(lib, 5.0)
    inner = w * w
    inner.backward()
    y = x * x

    def hook(grad: Any) -> None:
        with pytest.raises(RuntimeError):
            inner.backward()

    y.register_hook(hook)
    y.backward()
    assert x.grad.item() == 4


# register_post_accumulate_grad_hook


def test_a_post_accumulate_hook_gets_the_leaf_after_the_accumulation(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    seen: list[Any] = []
    x.register_post_accumulate_grad_hook(lambda p: seen.append((p is x, p.grad.tolist())))
    (x * 3).sum().backward()
    (x * 3).sum().backward()
    assert seen == [(True, [3, 3]), (True, [6, 6])]


def test_a_post_accumulate_hook_fires_once_with_the_sum_of_all_paths(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    seen: list[Any] = []
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.tolist()))
    (x * 3 + x * x).sum().backward()
    assert seen == [[5, 7]]


def test_a_step_of_an_optimizer_in_backward(lib: Any) -> None:
    x, w = leaf(lib, 1, 2), leaf(lib, 3, 4)

    def step(p: Any) -> None:
        with lib.no_grad():
            p -= 0.5 * p.grad
        p.grad = None

    for each in (x, w):
        each.register_post_accumulate_grad_hook(step)
    (x * w).sum().backward()
    assert lists([x.grad, w.grad]) == [None, None]
    assert lists([x, w]) == [[-0.5, 0], [2.5, 3]]
    assert x.is_leaf


def test_post_accumulate_hooks_fire_in_their_order(lib: Any) -> None:
    x = leaf(lib, 1.0)
    seen: list[int] = []
    for each in range(3):
        x.register_post_accumulate_grad_hook(lambda p, each=each: seen.append(each))
    (x * 3).backward()
    assert seen == [0, 1, 2]


def test_post_accumulate_hooks_are_for_leaves_that_require_grad(lib: Any) -> None:
    with raises(RuntimeError):
        (leaf(lib, 1.0) * 2).register_post_accumulate_grad_hook(lambda p: None)
    with raises(RuntimeError):
        constant(lib, 1.0).register_post_accumulate_grad_hook(lambda p: None)


def test_post_accumulate_hooks_do_not_fire_where_nothing_accumulates(lib: Any) -> None:
    x, w = leaf(lib, 1.0), leaf(lib, 2.0)
    seen: list[Any] = []
    for each in (x, w):
        each.register_post_accumulate_grad_hook(seen.append)
    lib.autograd.grad(x * w, [x, w])
    assert seen == []
    (x * w).backward(inputs=[w])
    assert len(seen) == 1
    assert seen[0] is w


# Node.register_hook and register_prehook: arguments and return values.


def test_arguments_of_a_nodes_hooks(lib: Any) -> None:
    x, w, c = leaf(lib, 1, 2), leaf(lib, 3, 4), constant(lib, 5, 6)
    seen: list[Any] = []
    y = x * w
    y.grad_fn.register_prehook(lambda outputs: seen.append(("pre", outputs)))
    y.grad_fn.register_hook(lambda inputs, outputs: seen.append(("post", inputs, outputs)))
    (y * c).sum().backward()
    (_, before), (_, inputs, outputs) = seen
    assert isinstance(before, tuple)
    assert isinstance(inputs, tuple)
    assert isinstance(outputs, tuple)
    assert lists(before) == [[5, 6]]
    assert lists(inputs) == [[15, 24], [5, 12]]
    assert lists(outputs) == [[5, 6]]


def test_the_gradient_of_a_constant_is_none(lib: Any) -> None:
    x, c = leaf(lib, 1, 2), constant(lib, 3, 4)
    y = x * c
    seen: list[Any] = []
    y.grad_fn.register_hook(lambda inputs, outputs: seen.append(inputs))
    y.sum().backward()
    assert [lists(each) for each in seen] == [[[3, 4], None]]


def test_the_gradient_of_an_output_that_was_not_used_is_none(lib: Any) -> None:
    first, _ = leaf(lib, 1, 2).unbind()
    seen: list[Any] = []
    first.grad_fn.register_prehook(lambda outputs: seen.append(lists(outputs)))
    first.grad_fn.register_hook(lambda inputs, outputs: seen.append(lists(inputs)))
    first.backward()
    assert seen == [[1, None], [[1, 0]]]


def test_a_prehook_may_replace_the_gradients_of_outputs(lib: Any) -> None:
    x, w = leaf(lib, 1, 2), leaf(lib, 3, 4)
    y = x * w
    y.grad_fn.register_prehook(lambda outputs: (outputs[0] * 10,))
    y.grad_fn.register_prehook(lambda outputs: None)
    y.grad_fn.register_prehook(lambda outputs: (outputs[0] + 1,))
    y.sum().backward()
    assert lists([x.grad, w.grad]) == [[33, 44], [11, 22]]


def test_a_hook_of_a_node_may_replace_the_gradients_of_inputs(lib: Any) -> None:
    x, w = leaf(lib, 1, 2), leaf(lib, 3, 4)
    y = x * w
    y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] * 10, inputs[1]))
    y.grad_fn.register_hook(lambda inputs, outputs: None)
    y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] + 1, inputs[1]))
    y.sum().backward()
    assert lists([x.grad, w.grad]) == [[31, 41], [1, 2]]


def test_a_hook_of_a_node_may_drop_a_gradient(lib: Any) -> None:
    x, w = leaf(lib, 1, 2), leaf(lib, 3, 4)
    y = x * w
    y.grad_fn.register_hook(lambda inputs, outputs: (None, inputs[1]))
    y.sum().backward()
    assert lists([x.grad, w.grad]) == [None, [1, 2]]


@pytest.mark.parametrize("pre", [True, False], ids=["pre", "post"])
@pytest.mark.parametrize(
    ("error", "wrong"),
    [
        (TypeError, lambda grads: grads[0]),
        (TypeError, list),
        (TypeError, lambda grads: 3.0),
        (TypeError, lambda grads: (3.0,) * len(grads)),
        (RuntimeError, lambda grads: (*grads, grads[0])),
        (RuntimeError, lambda grads: ()),
        (RuntimeError, lambda grads: tuple(each[:1] for each in grads)),
        (RuntimeError, lambda grads: tuple(each.float() for each in grads)),
    ],
    ids=["bare", "list", "number", "numbers", "too many", "none", "shape", "dtype"],
)
def test_wrong_results_of_a_nodes_hooks(
    lib: Any, pre: bool, error: type[Exception], wrong: Callable[[Any], Any]
) -> None:
    x, w = leaf(lib, 1, 2), leaf(lib, 3, 4)
    y = x * w
    if pre:
        y.grad_fn.register_prehook(wrong)
    else:
        y.grad_fn.register_hook(lambda inputs, outputs: wrong(inputs))
    with raises(error):
        y.sum().backward()
    assert lists([x.grad, w.grad]) == [None, None]


def test_hooks_of_a_leafs_node(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * 3
    node = y.grad_fn.next_functions[0][0]
    seen: Any = []
    node.register_prehook(lambda outputs: seen.append(lists(outputs)) or (outputs[0] * 10,))
    node.register_hook(lambda inputs, outputs: seen.append((inputs, lists(outputs))))
    y.sum().backward()
    assert seen == [[[3, 3]], ((), [[30, 30]])]
    assert x.grad.tolist() == [30, 30]


def test_hooks_of_a_node_last_as_long_as_the_node(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    h = x * x
    seen: list[Any] = []
    h.grad_fn.register_hook(lambda *_: seen.append("fired"))
    y = (h * 2).sum()
    del h
    gc.collect()
    y.backward()
    assert seen == ["fired"]


# Which hooks fire, and in which order.


def all_hooks(lib: Any) -> tuple[Any, Any, Any, list[str]]:
    """Return a leaf, a result of it, a root, and the list in which every hook notes itself.

    They are registered in the opposite order of the one they fire in.
    """
    x = leaf(lib, 1, 2)
    h = x * 1
    node = h.grad_fn
    leafs = node.next_functions[0][0]
    seen: list[str] = []
    x.register_post_accumulate_grad_hook(lambda p: seen.append("leaf accumulated"))
    leafs.register_hook(lambda *_: seen.append("leaf node post"))
    leafs.register_prehook(lambda *_: seen.append("leaf node pre"))
    x.register_hook(lambda grad: seen.append("leaf tensor"))
    node.register_hook(lambda *_: seen.append("node post"))
    node.register_prehook(lambda *_: seen.append("node pre"))
    h.register_hook(lambda grad: seen.append("tensor"))
    return x, h, (h * 3).sum(), seen


TO_H = ["tensor"]
THROUGH_H = ["tensor", "node pre", "node post"]
TO_X = ["leaf tensor"]
THROUGH_X = ["leaf tensor", "leaf node pre", "leaf accumulated", "leaf node post"]

RUNS: dict[str, tuple[Callable[[Any, Any, Any, Any], Any], list[str]]] = {
    "backward": (lambda lib, x, h, y: y.backward(), THROUGH_H + THROUGH_X),
    "backward to x": (lambda lib, x, h, y: y.backward(inputs=[x]), THROUGH_H + THROUGH_X),
    "backward to h": (lambda lib, x, h, y: y.backward(inputs=[h]), THROUGH_H),
    "backward to both": (lambda lib, x, h, y: y.backward(inputs=[h, x]), THROUGH_H + THROUGH_X),
    "backward with a graph": (
        lambda lib, x, h, y: y.backward(create_graph=True),
        THROUGH_H + THROUGH_X,
    ),
    "grad of x": (lambda lib, x, h, y: lib.autograd.grad(y, x), THROUGH_H + TO_X),
    "grad of h": (lambda lib, x, h, y: lib.autograd.grad(y, h), TO_H),
    "grad of both": (lambda lib, x, h, y: lib.autograd.grad(y, [h, x]), THROUGH_H + TO_X),
    "grad with a graph": (
        lambda lib, x, h, y: lib.autograd.grad(y, x, create_graph=True),
        THROUGH_H + TO_X,
    ),
}


@with_a_graph
@pytest.mark.parametrize("run", RUNS)
def test_which_hooks_fire_and_in_which_order(lib: Any, run: str) -> None:
    x, h, y, seen = all_hooks(lib)
    call, expected = RUNS[run]
    call(lib, x, h, y)
    assert seen == expected
    x.grad = None


def test_a_tensors_hook_fires_though_its_node_does_not_run(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    h = x * 1
    h.register_hook(lambda grad: grad * 10)
    (grad,) = lib.autograd.grad((h * 3).sum(), h)
    assert grad.tolist() == [30, 30]
    x.register_hook(lambda grad: grad * 100)
    (grad,) = lib.autograd.grad((x * 3).sum(), x)
    assert grad.tolist() == [300, 300]


def test_a_prehook_of_a_node_that_does_not_run_changes_nothing(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    h = x * 1
    h.grad_fn.register_prehook(lambda outputs: (outputs[0] * 10,))
    (to_h,) = lib.autograd.grad((h * 3).sum(), h, retain_graph=True)
    (to_x,) = lib.autograd.grad((h * 3).sum(), x)
    assert to_h.tolist() == [3, 3]
    assert to_x.tolist() == [30, 30]
    leafs = h.grad_fn.next_functions[0][0]
    leafs.register_prehook(lambda outputs: (outputs[0] * 100,))
    h = x * 1
    (to_x,) = lib.autograd.grad(h.sum(), x, retain_graph=True)
    assert to_x.tolist() == [1, 1]
    h.sum().backward()
    assert x.grad.tolist() == [100, 100]


def test_the_nodes_hooks_run_if_another_input_depends_on_it(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    h = x * 1
    k = h * 2
    seen: list[Any] = []
    for name, each in (("h", h), ("k", k)):
        each.grad_fn.register_hook(lambda *_, name=name: seen.append(name))
    lib.autograd.grad(k.sum(), [k, h])
    assert seen == ["k"]


def test_all_hooks_of_a_kind_fire_in_the_order_of_their_registration(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    h = x * 1
    seen: list[str] = []
    for each in ("first", "second", "third"):
        h.grad_fn.register_hook(lambda *_, each=each: seen.append(f"{each} post"))
        h.register_hook(lambda *_, each=each: seen.append(f"{each} tensor"))
        h.grad_fn.register_prehook(lambda *_, each=each: seen.append(f"{each} pre"))
    h.sum().backward()
    assert seen == [
        *(f"{each} tensor" for each in ("first", "second", "third")),
        *(f"{each} pre" for each in ("first", "second", "third")),
        *(f"{each} post" for each in ("first", "second", "third")),
    ]


def test_a_retained_gradient_is_the_result_of_the_tensors_hooks(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    h = x * 1
    h.register_hook(lambda grad: grad + 1)
    h.retain_grad()
    h.register_hook(lambda grad: grad * 10)
    h.sum().backward()
    assert h.grad.tolist() == [20, 20]
    assert x.grad.tolist() == [20, 20]


def test_a_retained_gradient_is_there_when_the_node_runs(lib: Any) -> None:
    h = leaf(lib, 1, 2) * 1
    h.retain_grad()
    seen: list[Any] = []
    h.register_hook(lambda grad: seen.append(h.grad is None))
    h.grad_fn.register_hook(lambda *_: seen.append(h.grad.tolist()))
    h.sum().backward()
    assert seen == [True, [1, 1]]


def test_a_nodes_prehooks_do_not_change_a_retained_gradient(lib: Any) -> None:
    """Where the specification's list and torch differ, torch is followed.

    The list has the prehooks of the node before the retained gradient; torch 2.13 retains first.
    """
    x = leaf(lib, 1, 2)
    h = x * 1
    h.retain_grad()
    h.grad_fn.register_prehook(lambda outputs: (outputs[0] * 10,))
    h.sum().backward()
    assert h.grad.tolist() == [1, 1]
    assert x.grad.tolist() == [10, 10]


def test_grad_updates_a_retained_gradient(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    h = x * 1
    h.retain_grad()
    (grad,) = lib.autograd.grad((h * 3).sum(), h)
    assert grad.tolist() == [3, 3]
    assert h.grad.tolist() == [3, 3]
    grad.mul_(10)
    assert h.grad.tolist() == [3, 3]


def test_backward_with_a_result_as_input_gives_the_result_of_its_hooks(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    h = x * 1
    h.register_hook(lambda grad: grad * 10)
    h.sum().backward(inputs=[h])
    assert h.grad.tolist() == [10, 10]


# Grad mode and higher orders.


def test_hooks_run_without_recording(lib: Any) -> None:
    x, h, y, _ = all_hooks(lib)
    modes: list[Any] = []
    x.register_hook(lambda grad: modes.append(lib.is_grad_enabled()))
    h.grad_fn.register_hook(lambda *_: modes.append(lib.is_grad_enabled()))
    h.grad_fn.register_prehook(lambda *_: modes.append(lib.is_grad_enabled()))
    y.backward()
    assert modes == [False] * 3


@with_a_graph
def test_hooks_run_recording_if_a_graph_is_created(lib: Any) -> None:
    x, h, y, _ = all_hooks(lib)
    modes: list[Any] = []
    x.register_hook(lambda grad: modes.append(lib.is_grad_enabled()))
    h.grad_fn.register_hook(lambda *_: modes.append(lib.is_grad_enabled()))
    h.grad_fn.register_prehook(lambda *_: modes.append(lib.is_grad_enabled()))
    lib.autograd.grad(y, x, create_graph=True)
    assert modes == [True] * 3


def test_operations_of_a_hook_are_differentiated(lib: Any) -> None:
    x = leaf(lib, 2.0)
    x.register_hook(lambda grad: grad * grad)
    (first,) = lib.autograd.grad(x**2, x, create_graph=True)
    assert first.item() == 16
    (second,) = lib.autograd.grad(first, x)
    assert second.item() == 16 * 16 * 1


def test_operations_of_a_nodes_hooks_are_differentiated(lib: Any) -> None:
    x = leaf(lib, 2.0)
    y = x**2
    y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] ** 2, *inputs[1:]))
    (first,) = lib.autograd.grad(y, x, create_graph=True)
    (second,) = lib.autograd.grad(first, x)
    assert first.item() == 16
    assert second.item() == 16


# register_multi_grad_hook


def test_a_multi_grad_hook_gets_all_gradients_when_the_last_is_known(lib: Any) -> None:
    x, w = leaf(lib, 1.0), leaf(lib, 2.0)
    h = x * w
    seen: list[Any] = []
    lib.autograd.graph.register_multi_grad_hook((h, w, x), seen.append)
    (h * 3).backward()
    (grads,) = seen
    assert lists(grads) == [3, 3, 6]


def test_a_multi_grad_hook_gets_none_for_tensors_without_a_gradient(lib: Any) -> None:
    x, w, z = leaf(lib, 1.0), leaf(lib, 2.0), leaf(lib, 3.0)
    seen: list[Any] = []
    lib.autograd.graph.register_multi_grad_hook((x, w, z), seen.append)
    (x * 2 + z * 3).backward()
    (grads,) = seen
    assert lists(grads) == [2, None, 3]
    (w * 5).backward()
    assert [lists(each) for each in seen] == [[2, None, 3], [None, 5, None]]


def test_a_multi_grad_hook_fires_once_in_each_backward(lib: Any) -> None:
    x, w = leaf(lib, 1.0), leaf(lib, 2.0)
    seen: list[Any] = []
    lib.autograd.graph.register_multi_grad_hook((x, w), seen.append)
    y = x * w
    y.backward(retain_graph=True)
    y.backward()
    assert [lists(each) for each in seen] == [[2, 1], [2, 1]]


def test_a_multi_grad_hook_counts_per_backward(lib: Any) -> None:
    x, w = leaf(lib, 1.0), leaf(lib, 2.0)
    seen: list[Any] = []
    lib.autograd.graph.register_multi_grad_hook((x, w), seen.append)
    (x * w).backward(inputs=[x])
    (x * w).backward()
    assert [lists(each) for each in seen] == [[2, None], [2, 1]]


def test_a_multi_grad_hook_of_tensors_that_backward_does_not_reach(lib: Any) -> None:
    x, w = leaf(lib, 1.0), leaf(lib, 2.0)
    seen: list[Any] = []
    for mode in ("all", "any"):
        lib.autograd.graph.register_multi_grad_hook((x,), seen.append, mode=mode)
    (w * 2).backward()
    assert seen == []


def test_a_multi_grad_hook_is_a_hook_of_the_last_tensor(lib: Any) -> None:
    x, w = leaf(lib, 1.0), leaf(lib, 2.0)
    seen: list[Any] = []
    for name, each in (("x", x), ("w", w)):
        each.register_hook(lambda grad, name=name: seen.append(f"{name} before"))
    lib.autograd.graph.register_multi_grad_hook((x, w), lambda grads: seen.append("multi"))
    for name, each in (("x", x), ("w", w)):
        each.register_hook(lambda grad, name=name: seen.append(f"{name} after"))
    (x * w).backward()
    a, b = ("x", "w") if seen[0].startswith("x") else ("w", "x")
    assert seen == [f"{a} before", f"{a} after", f"{b} before", "multi", f"{b} after"]


def test_a_multi_grad_hook_gets_the_results_of_earlier_hooks(lib: Any) -> None:
    x, w = leaf(lib, 1.0), leaf(lib, 2.0)
    x.register_hook(lambda grad: grad * 10)
    seen: list[Any] = []
    lib.autograd.graph.register_multi_grad_hook((x, w), seen.append)
    (x * w).backward()
    assert [lists(each) for each in seen] == [[20, 1]]


@pytest.mark.parametrize("mode", ["all", "any"])
def test_the_result_of_a_multi_grad_hook_is_ignored(lib: Any, mode: str) -> None:
    x = leaf(lib, 1.0)
    lib.autograd.graph.register_multi_grad_hook((x,), lambda grads: 3.0, mode=mode)
    (x * 2).backward()
    assert x.grad.item() == 2


def test_a_multi_grad_hook_of_any_fires_with_the_first(lib: Any) -> None:
    x = leaf(lib, 1.0)
    h = x * 2
    y = h * 3
    seen: list[Any] = []
    graph = lib.autograd.graph
    graph.register_multi_grad_hook((x, h, y), lambda grad: seen.append(grad.item()), mode="any")
    y.backward(retain_graph=True)
    y.backward()
    assert seen == [1, 1]


def test_a_multi_grad_hook_of_any_takes_the_first_gradient(lib: Any) -> None:
    x = leaf(lib, 1.0)
    h = x * 2
    k = x * 5
    seen: list[Any] = []
    graph = lib.autograd.graph
    graph.register_multi_grad_hook((h, k), lambda grad: seen.append(grad.item()), mode="any")
    (k * 3).backward()
    (h * 4).backward()
    assert seen == [3, 4]


def test_a_multi_grad_hook_in_grad(lib: Any) -> None:
    x = leaf(lib, 1.0)
    h = x * 2
    k = h * 3
    seen: list[Any] = []
    lib.autograd.graph.register_multi_grad_hook((h, k), seen.append)
    lib.autograd.grad(k * 5, x)
    assert [lists(each) for each in seen] == [[15, 5]]


def test_the_modes_of_a_multi_grad_hook(lib: Any) -> None:
    with raises(ValueError):
        lib.autograd.graph.register_multi_grad_hook((leaf(lib, 1.0),), print, mode="some")


# Tensors modified in place.


def test_the_specifications_example_of_hooks_and_in_place_changes(lib: Any) -> None:
    seen: list[Any] = []
    x = leaf(lib, 1.0)
    t = x.sin()
    sine = t.item()
    t.register_hook(lambda grad: seen.append(("before", grad.item())))
    t.cos_()
    t.register_hook(lambda grad: seen.append(("after", grad.item())))
    t.backward()
    assert [name for name, _ in seen] == ["after", "before"]
    assert seen[0][1] == 1
    assert seen[1][1] == pytest.approx(-constant(lib, sine).sin().item())


def test_hooks_before_and_after_an_in_place_change(lib: Any) -> None:
    seen: list[Any] = []
    x = leaf(lib, 1, 2)
    t = x * 2
    t.register_hook(lambda grad: seen.append(("before", grad.tolist())))
    t.mul_(3)
    t.register_hook(lambda grad: seen.append(("between", grad.tolist())))
    t.mul_(5)
    t.register_hook(lambda grad: seen.append(("after", grad.tolist())))
    (t * 7).sum().backward()
    assert seen == [("after", [7, 7]), ("between", [35, 35]), ("before", [105, 105])]
    assert x.grad.tolist() == [210, 210]


def test_a_hook_registered_before_an_in_place_change_acts_on_the_old_value(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    t = x * 2
    t.register_hook(lambda grad: grad * 10)
    node = t.grad_fn
    t.add_(x)
    assert t.grad_fn is not node
    t.sum().backward()
    assert x.grad.tolist() == [21, 21]


def test_a_hook_can_be_removed_after_an_in_place_change(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    t = x * 2
    handle = t.register_hook(lambda grad: grad * 10)
    t.mul_(3)
    handle.remove()
    t.sum().backward()
    assert x.grad.tolist() == [6, 6]


def test_the_hooks_of_a_leaf_stay_when_it_is_changed_in_no_grad(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    seen: list[Any] = []
    x.register_hook(lambda grad: seen.append(grad.tolist()))
    with lib.no_grad():
        x.mul_(2)
    (x * x).sum().backward()
    assert seen == [[4, 8]]


def test_a_retained_gradient_and_hooks_around_an_in_place_change(lib: Any) -> None:
    """retain_grad moves to the tensor's new value, hooks stay with the old one."""
    x = leaf(lib, 1, 2)
    t = x * 2
    t.register_hook(lambda grad: grad * 10)
    t.retain_grad()
    t.mul_(3)
    (t * 7).sum().backward()
    assert t.grad.tolist() == [7, 7]
    assert x.grad.tolist() == [420, 420]


def test_the_hook_of_a_view_stays_with_its_old_value_when_the_base_changes(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    base = x * 2
    view = base[:1]
    before = view * 5
    view.register_hook(lambda grad: grad * 10)
    base.mul_(3)
    view.sum().backward(retain_graph=True)
    assert x.grad.tolist() == [6, 0]
    x.grad = None
    before.sum().backward()
    assert x.grad.tolist() == [100, 0]


def test_hooks_of_an_accumulator_through_in_place_use_of_the_leaf(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    seen: list[Any] = []
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.tolist()))
    t = x.clone()
    t.mul_(x)
    t.sum().backward()
    assert seen == [[2, 4]]
