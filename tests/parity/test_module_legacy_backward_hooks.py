"""Module.register_backward_hook: a hook of the node that made the output, and its warnings.

grad_input is that of the last operation, which is the module's only if the module is one operation.
"""

import gc
import threading
import weakref
from functools import partial
from typing import Any, NamedTuple

import pytest

from tests.parity.conftest import constant, leaf, lists, raises
from tests.parity.hooked import module

INSTEAD = "register_full_backward_hook"  # every warning recommends it

quietly = pytest.mark.filterwarnings("ignore:.*register_full_backward_hook:FutureWarning")


def result(lib: Any, *values: Any) -> Any:
    """Return a tensor that a node has made."""
    return leaf(lib, *values) * 1


def watch(hooked: Any) -> list[Any]:
    """Note grad_input and grad_output."""
    seen: list[Any] = []
    hooked.register_backward_hook(
        lambda _, grad_input, grad_output: seen.append((lists(grad_input), lists(grad_output)))
    )
    return seen


# One operation: gradients are the module's, and there is no warning.


def test_a_module_of_one_operation(lib: Any) -> None:
    layer = lib.nn.Sigmoid()
    seen = watch(layer)
    layer(result(lib, 0, 0)).sum().backward()
    assert seen == [([[0.25, 0.25]], [[1, 1]])]


@pytest.mark.parametrize(
    ("name", "grad"), [("ReLU", 0), ("Sigmoid", 0.25), ("Tanh", 1), ("SiLU", 0.5), ("GELU", 0.5)]
)
def test_activations_are_one_operation(lib: Any, name: str, grad: float) -> None:
    layer = getattr(lib.nn, name)()
    seen = watch(layer)
    layer(result(lib, 0.0)).backward()
    assert seen == [([grad], [1])]


def test_an_operation_of_two_inputs(lib: Any) -> None:
    doing = module(lib, lambda a, b: a * b)
    seen = watch(doing)
    doing(result(lib, 1, 2), result(lib, 3, 4)).sum().backward()
    assert seen == [([[3, 4], [1, 2]], [[1, 1]])]


def test_an_operation_of_one_input_twice(lib: Any) -> None:
    """grad_input has an entry per input of the operation, the module has one input."""
    doing = module(lib, lambda x: x * x)
    seen = watch(doing)
    doing(result(lib, 1, 2)).sum().backward()
    assert seen == [([[1, 2], [1, 2]], [[1, 1]])]


def test_an_operation_of_several_outputs(lib: Any) -> None:
    doing = module(lib, lambda x: x.unbind())
    seen = watch(doing)
    first, second = doing(result(lib, 1, 2))
    (first * 3 + second * 5).backward(retain_graph=True)
    (first * 7).backward()
    assert seen == [([[3, 5]], [3, 5]), ([[7, 0]], [7, None])]


def test_a_named_tuple_of_outputs_of_one_operation(lib: Any) -> None:
    class Pair(NamedTuple):
        first: Any
        second: Any

    doing = module(lib, lambda x: Pair(*x.unbind()))
    seen = watch(doing)
    output = doing(result(lib, 1, 2))
    assert type(output) is Pair
    output.second.backward()
    assert seen == [([[0, 1]], [None, 1])]


def test_one_output_returned_twice(lib: Any) -> None:
    """It is one tensor with one gradient."""

    def forward(x: Any) -> Any:
        y = x.relu()
        return y, y

    doing = module(lib, forward)
    seen = watch(doing)
    first, second = doing(result(lib, 1.0))
    assert first is second
    (first * 3 + second * 5).backward()
    assert seen == [([8], [8])]


def test_outputs_that_no_node_made_beside_one(lib: Any) -> None:
    w = leaf(lib, 5.0)
    doing = module(lib, lambda x: (x.relu(), x.detach(), w))
    seen = watch(doing)
    doing(result(lib, 1.0))[0].backward()
    assert seen == [([1], [1])]


def test_the_arguments_of_a_hook(lib: Any) -> None:
    layer = lib.nn.ReLU()
    found: Any = []
    layer.register_backward_hook(lambda *args: found.extend(args))
    layer(result(lib, 1, 2)).sum().backward()
    hooked, grad_input, grad_output = found
    assert hooked is layer
    assert type(grad_input) is tuple
    assert type(grad_output) is tuple
    assert lists(grad_input + grad_output) == [[1, 1], [1, 1]]
    assert not grad_input[0].requires_grad


def test_any_callable_is_a_hook(lib: Any) -> None:
    seen: list[str] = []

    class Hook:
        def __call__(self, *_: Any) -> None:
            seen.append("object")

        def method(self, *_: Any) -> None:
            seen.append("method")

    layer = lib.nn.ReLU()
    for hook in (partial(lambda name, *_: seen.append(name), "partial"), Hook(), Hook().method):
        layer.register_backward_hook(hook)
    layer(result(lib, 1.0)).backward()
    assert seen == ["partial", "object", "method"]


def test_registering_does_not_warn(lib: Any) -> None:
    lib.nn.ReLU().register_backward_hook(lambda *_: None)


# Several operations: grad_input is that of the last one.


@pytest.mark.parametrize(
    ("forward", "grad_input"),
    [
        (lambda x, w: x * w * 3, [[3, 3], None]),
        (lambda x, w: (x * w).relu(), [[1, 1]]),
        (lambda x, w: (x * w) ** 2, [[10, 20]]),
        (lambda x, w: x.relu() * (x * w), [[5, 10], [1, 2]]),
        (lambda x, w: (x * w).sum(), [[1, 1]]),
    ],
    ids=["mul", "relu", "pow", "two branches", "sum"],
)
def test_grad_input_is_that_of_the_last_operation(lib: Any, forward: Any, grad_input: Any) -> None:
    w = leaf(lib, 5.0)
    doing = module(lib, lambda x: forward(x, w))
    seen = watch(doing)
    with pytest.warns(FutureWarning, match=INSTEAD):
        y = doing(result(lib, 1, 2))
    y.sum().backward()
    assert [first for first, _ in seen] == [grad_input]


def test_grad_input_differs_from_the_full_hooks(lib: Any) -> None:
    old, full = module(lib, lambda x: (x * 5) ** 2), module(lib, lambda x: (x * 5) ** 2)
    seen, other = watch(old), []
    full.register_full_backward_hook(lambda _, i, o: other.append((lists(i), lists(o))))
    x = leaf(lib, 1, 2)
    with pytest.warns(FutureWarning, match=INSTEAD):
        y = old(x * 1)
    y.sum().backward()
    full(x * 1).sum().backward()
    assert seen == [([[10, 20]], [[1, 1]])]
    assert other == [([[50, 100]], [[1, 1]])]
    assert x.grad.tolist() == [100, 200]


def test_a_linear_layer(lib: Any) -> None:
    """grad_input is that of addmm: bias, input, weight (which in torch is transposed)."""
    layer = lib.nn.Linear(2, 1).double()
    with lib.no_grad():
        layer.weight.copy_(constant(lib, [[2, 3]]))
    seen = watch(layer)
    with pytest.warns(FutureWarning, match=INSTEAD):
        y = layer(result(lib, [[5, 7]]))
    y.sum().backward()
    (((bias, x, weight), outputs),) = seen
    assert (bias, x, outputs) == ([1], [[2, 3]], [[[1]]])
    assert [each for row in weight for each in row] == [5, 7]


def test_a_linear_layer_without_bias(lib: Any) -> None:
    layer = lib.nn.Linear(2, 1, bias=False).double()
    with lib.no_grad():
        layer.weight.copy_(constant(lib, [[2, 3]]))
    seen = watch(layer)
    with pytest.warns(FutureWarning, match=INSTEAD):
        y = layer(result(lib, [[5, 7]]))
    y.sum().backward()
    (((x, weight), outputs),) = seen
    assert (x, outputs) == ([[2, 3]], [[[1]]])
    assert [each for row in weight for each in row] == [5, 7]


@quietly
def test_the_last_operation_of_a_sequential(lib: Any) -> None:
    net = lib.nn.Sequential(lib.nn.ReLU(), lib.nn.Sigmoid())
    seen: list[Any] = []
    for name, each in net.named_modules():
        each.register_backward_hook(
            lambda _, i, o, name=name: seen.append((name or "net", lists(i), lists(o)))
        )
    net(result(lib, 0.0)).backward()
    assert seen == [("1", [0.25], [1]), ("net", [0.25], [1]), ("0", [0], [0.25])]


# Where nodes and inputs do not match, it warns.


def test_an_input_that_is_a_leaf(lib: Any) -> None:
    """A leaf has no node of its own that the last operation could follow."""
    layer = lib.nn.ReLU()
    seen = watch(layer)
    with pytest.warns(FutureWarning, match=INSTEAD):
        y = layer(leaf(lib, 1, 2))
    y.sum().backward()
    assert seen == [([[1, 1]], [[1, 1]])]


def test_an_operation_with_a_number(lib: Any) -> None:
    doing = module(lib, lambda x: x * 2)
    seen = watch(doing)
    with pytest.warns(FutureWarning, match=INSTEAD):
        y = doing(result(lib, 1, 2))
    y.sum().backward()
    assert seen == [([[2, 2], None], [[1, 1]])]


def test_an_input_that_needs_no_grad(lib: Any) -> None:
    doing = module(lib, lambda a, b: a * b)
    seen = watch(doing)
    with pytest.warns(FutureWarning, match=INSTEAD):
        y = doing(result(lib, 1, 2), constant(lib, 3, 4))
    y.sum().backward()
    assert seen == [([[3, 4], None], [[1, 1]])]


def test_an_input_that_is_not_used(lib: Any) -> None:
    doing = module(lib, lambda a, b: a.relu())
    seen = watch(doing)
    with pytest.warns(FutureWarning, match=INSTEAD):
        y = doing(result(lib, 1, 2), result(lib, 3, 4))
    y.sum().backward()
    assert seen == [([[1, 1]], [[1, 1]])]


def test_no_input_at_all(lib: Any) -> None:
    w = leaf(lib, 5.0)
    doing = module(lib, lambda: w * w)
    seen = watch(doing)
    with pytest.warns(FutureWarning, match=INSTEAD):
        y = doing()
    y.backward()
    assert seen == [([5, 5], [1])]


def test_keyword_arguments_are_no_inputs(lib: Any) -> None:
    doing = module(lib, lambda x, k: x * k)
    seen = watch(doing)
    with pytest.warns(FutureWarning, match=INSTEAD):
        y = doing(result(lib, 1, 2), k=result(lib, 3, 4))
    y.sum().backward()
    assert seen == [([[3, 4], [1, 2]], [[1, 1]])]


@pytest.mark.parametrize(
    "other", [3, None, "text", [1.0], {}], ids=lambda each: type(each).__name__
)
def test_an_input_that_is_no_tensor(lib: Any, other: Any) -> None:
    doing = module(lib, lambda x, other: x.relu())
    seen = watch(doing)
    with pytest.warns(FutureWarning, match=INSTEAD):
        y = doing(result(lib, 1, 2), other)
    y.sum().backward()
    assert seen == [([[1, 1]], [[1, 1]])]


def test_the_output_is_the_input(lib: Any) -> None:
    """The hook is one of the node before the module, and fires without the module."""
    identity = lib.nn.Identity()
    seen = watch(identity)
    h = leaf(lib, 1.0) * 2
    with pytest.warns(FutureWarning, match=INSTEAD):
        assert identity(h) is h
    (h * 3).backward()
    assert seen == [([6, None], [3])]


def test_outputs_of_different_nodes(lib: Any) -> None:
    """The hook is one of the first output's node only."""
    doing = module(lib, lambda x: (x.relu(), x.sigmoid()))
    seen = watch(doing)
    with pytest.warns(FutureWarning, match=INSTEAD):
        first, second = doing(result(lib, 0.5))
    second.backward(retain_graph=True)
    assert seen == []
    (first * 3 + second).backward()
    assert seen == [([3], [3])]


def test_a_list_of_outputs(lib: Any) -> None:
    doing = module(lib, lambda x: [x.relu(), x.sigmoid()])
    seen = watch(doing)
    with pytest.warns(FutureWarning, match=INSTEAD):
        first, second = doing(result(lib, 0.5))
    second.backward(retain_graph=True)
    assert seen == []
    (first * 3).backward()
    assert seen == [([3], [3])]


def test_a_dict_of_outputs(lib: Any) -> None:
    """The hook is one of the node of the first tensor in it."""
    doing = module(lib, lambda x: {"count": 3, "a": x.relu(), "b": x.sigmoid()})
    seen = watch(doing)
    with pytest.warns(FutureWarning, match=INSTEAD):
        output = doing(result(lib, 0.5))
    assert list(output) == ["count", "a", "b"]
    output["b"].backward(retain_graph=True)
    assert seen == []
    (output["a"] * 3).backward()
    assert seen == [([3], [3])]


@pytest.mark.parametrize(
    ("pack", "unpack"),
    [
        (lambda t: ((t,),), lambda o: o[0][0]),
        (lambda t: ([t], t), lambda o: o[0][0]),
        (lambda t: ({"key": t},), lambda o: o[0]["key"]),
        (lambda t: {"key": t}, lambda o: o["key"]),
        (lambda t: [[[t]]], lambda o: o[0][0][0]),
        (lambda t: (t, None), lambda o: o[0]),
        (lambda t: (t, 3, "text"), lambda o: o[0]),
    ],
    ids=["tuple", "list", "dict in tuple", "dict", "deep", "none", "others"],
)
def test_outputs_in_structures(lib: Any, pack: Any, unpack: Any) -> None:
    doing = module(lib, lambda x: pack(x.relu()))
    seen = watch(doing)
    with pytest.warns(FutureWarning, match=INSTEAD):
        output = doing(result(lib, 1.0))
    unpack(output).backward()
    assert seen == [([1], [1])]


def test_one_warning_per_call(lib: Any) -> None:
    """Not one per hook, nor one per flaw."""
    doing = module(lib, lambda x, k: {"key": x * k})
    for _ in range(3):
        doing.register_backward_hook(lambda *_: None)
    with pytest.warns(FutureWarning, match=INSTEAD) as warned:
        doing(leaf(lib, 1.0), 3)
    assert len(warned) == 1
    with pytest.warns(FutureWarning, match=INSTEAD) as warned:
        _ = doing(leaf(lib, 1.0), 3), doing(leaf(lib, 1.0), 3)
    assert len(warned) == 2


@pytest.mark.parametrize("warned", ["structure", "nodes", "operations", "inputs"])
def test_the_warning_may_be_an_error(lib: Any, warned: str) -> None:
    """The tests' own filters make every warning an error."""
    forward: Any = {
        "structure": lambda x, *_: [x.relu()],
        "nodes": lambda x, *_: (x.relu(), x.sigmoid()),
        "operations": lambda x, *_: (x * 2).relu(),
        "inputs": lambda x, *_: x.relu(),
    }[warned]
    doing = module(lib, forward)
    watch(doing)
    with raises(FutureWarning):
        doing(result(lib, 1.0), *([3] if warned == "inputs" else []))


# Nothing to hook.


def test_an_output_that_no_node_made(lib: Any) -> None:
    w = leaf(lib, 5.0)
    seen: list[Any] = []
    for forward in (lambda x: w, lambda x: x.detach(), lambda x: (w, x.relu()), lambda x: [w]):
        doing = module(lib, forward)
        doing.register_backward_hook(lambda *_: seen.append("fired"))
        output = doing(result(lib, 1.0))
        if isinstance(output, tuple):
            output[1].backward()
    w.backward()
    assert seen == []


def test_the_first_output_needs_no_grad(lib: Any) -> None:
    """Then there is no hook for the others either, and no warning."""
    doing = module(lib, lambda x: (x.detach(), x * 2 * 3))
    seen = watch(doing)
    doing(result(lib, 1.0))[1].backward()
    assert seen == []


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_without_grad_mode(lib: Any, mode: str) -> None:
    for forward in (lambda x: x.relu(), lambda x: [x * 2 * 3], lambda x: (x, x * 2)):
        doing = module(lib, forward)
        watch(doing)
        with getattr(lib, mode)():
            doing(leaf(lib, 1.0))


def test_inputs_that_need_no_grad(lib: Any) -> None:
    layer = lib.nn.ReLU()
    watch(layer)
    assert not layer(constant(lib, 1.0)).requires_grad


def test_a_forward_that_was_called_itself(lib: Any) -> None:
    layer = lib.nn.ReLU()
    seen = watch(layer)
    layer.forward(result(lib, 1.0)).backward()
    assert seen == []


# No views: inputs and outputs are unchanged.


def test_inputs_and_outputs_come_as_they_are(lib: Any) -> None:
    received: Any = []

    def forward(x: Any) -> Any:
        received.extend([x, x.relu()])
        return received[1]

    doing = module(lib, forward)
    watch(doing)
    h = result(lib, 1, 2)
    y = doing(h)
    assert received[0] is h
    assert received[1] is y
    assert not y._is_view()
    assert y.grad_fn.name() == "ReluBackward0"


@quietly
def test_changes_in_place_are_allowed(lib: Any) -> None:
    doing = module(lib, lambda x: x.mul_(2))
    seen = watch(doing)
    x = leaf(lib, 1, 2)
    y = doing(x * 1)
    y.mul_(3)
    y.sum().backward()
    assert seen == [([[6, 6], None], [[3, 3]])]
    assert x.grad.tolist() == [6, 6]


# When it fires.


def test_a_retained_graph_fires_hooks_again(lib: Any) -> None:
    layer = lib.nn.ReLU()
    seen = watch(layer)
    y = layer(result(lib, 1.0))
    for _ in range(3):
        y.backward(retain_graph=True)
    assert seen == [([1], [1])] * 3


@quietly
def test_a_module_called_on_its_own_output(lib: Any) -> None:
    layer = lib.nn.ReLU()
    seen = watch(layer)
    layer(layer(leaf(lib, 1.0)) * 5).backward()
    assert seen == [([1], [1]), ([5], [5])]


def test_the_output_is_not_used(lib: Any) -> None:
    layer = lib.nn.ReLU()
    seen = watch(layer)
    h = result(lib, 1.0)
    layer(h)
    (h * 2).backward()
    assert seen == []


def test_a_graph_of_the_gradients(lib: Any) -> None:
    """The node runs again in the second backward if its result was saved."""
    doing = module(lib, lambda x: x.exp())
    seen: list[Any] = []
    doing.register_backward_hook(
        lambda _, i, o: seen.append((lists(i), lists(o), i[0].requires_grad))
    )
    x = leaf(lib, 0.0)
    (first,) = lib.autograd.grad(doing(x * 1), x, create_graph=True)
    (second,) = lib.autograd.grad(first, x)
    assert lists([first, second]) == [1, 1]
    assert seen == [([1], [1], True), ([1], [1], False)]


def test_hooks_of_tensors_and_nodes(lib: Any) -> None:
    seen: list[Any] = []
    layer = lib.nn.ReLU()
    layer.register_backward_hook(lambda *_: seen.append("module"))
    h = result(lib, 1.0)
    h.register_hook(lambda _: seen.append("input"))
    y = layer(h)
    y.grad_fn.register_hook(lambda *_: seen.append("node after"))
    y.grad_fn.register_prehook(lambda *_: seen.append("node before"))
    y.register_hook(lambda _: seen.append("output"))
    y.backward()
    assert seen == ["output", "node before", "module", "node after", "input"]


def test_an_error_of_a_hook_comes_out_of_backward(lib: Any) -> None:
    class MineError(Exception):
        pass

    def hook(*_: Any) -> None:
        raise MineError

    layer = lib.nn.ReLU()
    layer.register_backward_hook(hook)
    x = leaf(lib, 1.0)
    y = layer(x * 1)
    with pytest.raises(MineError):
        y.backward()
    assert x.grad is None


# Return values.


def test_a_hook_may_replace_grad_input(lib: Any) -> None:
    layer = lib.nn.ReLU()
    layer.register_backward_hook(lambda _, grad_input, __: (grad_input[0] * 10,))
    x = leaf(lib, 1, 2)
    layer(x * 1).sum().backward()
    assert x.grad.tolist() == [10, 10]


@quietly
def test_it_replaces_the_gradient_of_the_last_operation(lib: Any) -> None:
    """So the gradients of weights inside the module change as well."""
    w = leaf(lib, 5.0)
    doing = module(lib, lambda x: (x * w) ** 2)
    doing.register_backward_hook(lambda _, grad_input, __: (grad_input[0] * 10,))
    x = leaf(lib, 1, 2)
    doing(x).sum().backward()
    assert x.grad.tolist() == [500, 1000]
    assert w.grad.item() == 500


def test_hooks_get_the_results_of_earlier_ones(lib: Any) -> None:
    layer = lib.nn.ReLU()
    seen: list[Any] = []

    def returning(factor: int | None) -> Any:
        def hook(_: Any, grad_input: Any, grad_output: Any) -> Any:
            seen.append((lists(grad_input), lists(grad_output)))
            return (grad_input[0] * factor,) if factor else None

        return hook

    for factor in (10, None, 7):
        layer.register_backward_hook(returning(factor))
    x = leaf(lib, 1.0)
    layer(x * 1).backward()
    assert seen == [([1], [1]), ([10], [1]), ([10], [1])]
    assert x.grad.item() == 70


@quietly
def test_none_stays_none(lib: Any) -> None:
    doing = module(lib, lambda x: x * 2)
    x = leaf(lib, 1.0)
    with doing.register_backward_hook(lambda _, grads, __: (grads[0] * 10, None)):
        doing(x).backward()
    assert x.grad.item() == 20


def test_a_hook_may_drop_a_gradient(lib: Any) -> None:
    layer = lib.nn.ReLU()
    layer.register_backward_hook(lambda *_: (None,))
    x = leaf(lib, 1.0)
    layer(x * 1).backward()
    assert x.grad is None


@pytest.mark.parametrize(
    ("new", "error"),
    [
        (lambda g: g[0] * 10, TypeError),
        (lambda g: [g[0] * 10], TypeError),
        (lambda g: 3.0, TypeError),
        (lambda g: (3.0,), TypeError),
        (lambda g: (), RuntimeError),
        (lambda g: (g[0], g[0]), RuntimeError),
        (lambda g: (g[0][:1],), RuntimeError),
        (lambda g: (g[0].float(),), RuntimeError),
    ],
    ids=["tensor", "list", "number", "numbers", "none", "two", "shape", "dtype"],
)
def test_invalid_results_of_a_hook(lib: Any, new: Any, error: Any) -> None:
    layer = lib.nn.ReLU()
    layer.register_backward_hook(lambda _, grad_input, __: new(grad_input))
    x = leaf(lib, 1, 2)
    y = layer(x * 1).sum()
    with raises(error):
        y.backward()
    assert x.grad is None


# Handles.


def test_a_removed_hook_does_not_fire(lib: Any) -> None:
    layer = lib.nn.ReLU()
    seen: list[int] = []
    handles = [layer.register_backward_hook(lambda *_, k=k: seen.append(k)) for k in range(3)]
    for _ in range(2):
        handles[1].remove()
    layer(result(lib, 1.0)).backward()
    assert seen == [0, 2]


def test_a_handle_is_a_context_manager(lib: Any) -> None:
    layer = lib.nn.ReLU()
    seen: list[str] = []
    with layer.register_backward_hook(lambda *_: seen.append("fired")):
        layer(result(lib, 1.0)).backward()
    layer(result(lib, 1.0)).backward()
    assert seen == ["fired"]


def test_a_forward_takes_the_hooks_of_its_time(lib: Any) -> None:
    layer = lib.nn.ReLU()
    seen: list[str] = []
    handle = layer.register_backward_hook(lambda *_: seen.append("early"))
    y = layer(result(lib, 1.0))
    handle.remove()
    layer.register_backward_hook(lambda *_: seen.append("late"))
    y.backward()
    assert seen == ["early"]


def test_hooks_that_change_hooks_while_they_run(lib: Any) -> None:
    layer = lib.nn.ReLU()
    seen: list[str] = []

    def changing(*_: Any) -> None:
        seen.append("changing")
        last.remove()
        layer.register_backward_hook(lambda *_: seen.append("added"))

    layer.register_backward_hook(changing)
    last = layer.register_backward_hook(lambda *_: seen.append("last"))
    y = layer(result(lib, 1.0))
    y.backward(retain_graph=True)
    y.backward()
    assert seen == ["changing", "last"] * 2


def test_there_is_no_prepend(lib: Any) -> None:
    with raises(TypeError):
        lib.nn.ReLU().register_backward_hook(lambda *_: None, prepend=True)


def test_a_graph_does_not_keep_its_module(lib: Any) -> None:
    """Unlike a full hook: without its module, the hook cannot be called."""
    layer = lib.nn.ReLU()
    layer.register_backward_hook(lambda *_: None)
    alive = weakref.ref(layer)
    y = layer(result(lib, 1.0))
    del layer
    gc.collect()
    assert alive() is None
    with raises(RuntimeError):
        y.backward()


# Beside the other kinds of hooks.


@pytest.mark.parametrize("removed", [False, True], ids=["there", "removed"])
def test_old_after_full_raises(lib: Any, removed: bool) -> None:
    """A module is of one kind for good."""
    layer = lib.nn.ReLU()
    handle = layer.register_full_backward_hook(lambda *_: None)
    if removed:
        handle.remove()
    with raises(RuntimeError):
        layer.register_backward_hook(lambda *_: None)


@pytest.mark.parametrize("removed", [False, True], ids=["there", "removed"])
def test_full_after_old_raises(lib: Any, removed: bool) -> None:
    layer = lib.nn.ReLU()
    handle = layer.register_backward_hook(lambda *_: None)
    if removed:
        handle.remove()
    for prepend in (False, True):
        with raises(RuntimeError):
            layer.register_full_backward_hook(lambda *_: None, prepend=prepend)


def test_a_failed_registration_leaves_nothing(lib: Any) -> None:
    layer = lib.nn.ReLU()
    seen = watch(layer)
    with raises(RuntimeError):
        layer.register_full_backward_hook(lambda *_: pytest.fail("it is registered"))
    layer(result(lib, 1.0)).backward()
    assert seen == [([1], [1])]


def test_two_modules_may_have_hooks_of_different_kinds(lib: Any) -> None:
    inner = lib.nn.Sigmoid()
    net = lib.nn.Sequential(lib.nn.ReLU(), inner)
    seen, other = watch(inner), []
    net.register_full_backward_hook(lambda _, i, o: other.append((lists(i), lists(o))))
    net(leaf(lib, 0.0)).backward()
    assert seen == [([0.25], [1])]
    assert other == [([0], [1])]


def test_an_old_hook_of_a_net_of_modules_with_full_hooks(lib: Any) -> None:
    """The net's last node is the one of the full hook: its grad_input is grad_output."""
    inner = lib.nn.Sigmoid()
    net = lib.nn.Sequential(lib.nn.ReLU(), inner)
    inner.register_full_backward_hook(lambda *_: None)
    seen = watch(net)
    with pytest.warns(FutureWarning, match=INSTEAD):
        y = net(result(lib, 0.0))
    y.backward()
    assert seen == [([1], [1])]


def test_full_pre_hooks_beside_old_hooks(lib: Any) -> None:
    """They may be mixed: the old hook's node is the pre-hook's then."""
    layer = lib.nn.ReLU()
    seen: Any = watch(layer)
    layer.register_full_backward_pre_hook(
        lambda _, grads: seen.append(lists(grads)) or (grads[0] * 10,)
    )
    x = leaf(lib, 1, 2)
    with pytest.warns(FutureWarning, match=INSTEAD):
        y = layer(x * 1)
    assert y.grad_fn.name() == "BackwardHookFunctionBackward"
    y.sum().backward()
    assert seen == [[[1, 1]], ([[10, 10]], [[1, 1]])]
    assert x.grad.tolist() == [10, 10]


def test_forward_hooks_come_first(lib: Any) -> None:
    """Their return value is the output: its node has the hook."""
    layer = lib.nn.ReLU()
    seen = watch(layer)
    layer.register_forward_hook(lambda _, __, output: output.sigmoid())
    with pytest.warns(FutureWarning, match=INSTEAD):
        y = layer(result(lib, 0.0))
    y.backward()
    assert seen == [([0.25], [1])]


# Threads.


def test_threads_that_share_a_module(lib: Any) -> None:
    layer = lib.nn.ReLU()
    seen: list[Any] = []
    layer.register_backward_hook(
        lambda _, i, o: seen.append((threading.get_ident(), i[0].item(), o[0].item()))
    )
    barrier = threading.Barrier(8)
    found: list[Any] = []

    def train(factor: int) -> None:
        barrier.wait(60)
        x = leaf(lib, 1.0)
        for _ in range(20):
            (layer(x * 1) * factor).backward()
        found.append((threading.get_ident(), factor, x.grad.item()))

    threads = [threading.Thread(target=train, args=(k,), daemon=True) for k in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(120)
    assert sorted(grad for _, _, grad in found) == [20 * factor for factor in range(8)]
    for ident, factor, _ in found:
        assert seen.count((ident, factor, factor)) == 20
    assert len(seen) == 160
