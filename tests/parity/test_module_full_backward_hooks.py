"""Full backward hooks of modules: when they fire, arguments, return values."""

import copy
import gc
import threading
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest

import offgrad
from tests.parity.conftest import constant, leaf, lists, raises
from tests.parity.hooked import module
from tests.parity.threads import results, together

FULL, PRE = "register_full_backward_hook", "register_full_backward_pre_hook"
BOTH = pytest.mark.parametrize("register", [FULL, PRE], ids=["full", "pre"])


def watch(hooked: Any) -> list[Any]:
    """Note grad_input and grad_output in a full hook."""
    seen: list[Any] = []
    hooked.register_full_backward_hook(
        lambda _, grad_input, grad_output: seen.append((lists(grad_input), lists(grad_output)))
    )
    return seen


def watch_before(hooked: Any) -> list[Any]:
    """Note grad_output in a pre-hook."""
    seen: list[Any] = []
    hooked.register_full_backward_pre_hook(lambda _, grad_output: seen.append(lists(grad_output)))
    return seen


def replace(hooked: Any, new: Callable[[Any], Any], register: str = FULL) -> Any:
    """Let a hook return something made of grad_input, or of grad_output in a pre-hook."""
    return getattr(hooked, register)(lambda _, grads, *__: new(grads))


def linear(lib: Any, weight: Any, bias: Any = None) -> Any:
    """Return a linear layer of float64 with these parameters."""
    layer = lib.nn.Linear(len(weight[0]), len(weight), bias=bias is not None).double()
    with lib.no_grad():
        layer.weight.copy_(constant(lib, weight))
        if bias is not None:
            layer.bias.copy_(constant(lib, bias))
    return layer


# Arguments of a hook.


def test_a_hook_gets_the_gradients_of_input_and_output(lib: Any) -> None:
    layer = linear(lib, [[2, 3], [4, 5]], [1, 1])
    seen = watch(layer)
    x = leaf(lib, [[1, 2]])
    layer(x).backward(constant(lib, [[10, 100]]))
    assert seen == [([[[420, 530]]], [[[10, 100]]])]
    assert x.grad.tolist() == [[420, 530]]
    assert layer.weight.grad.tolist() == [[10, 20], [100, 200]]
    assert layer.bias.grad.tolist() == [10, 100]


def test_a_pre_hook_gets_the_gradients_of_the_output(lib: Any) -> None:
    layer = linear(lib, [[2, 3], [4, 5]], [1, 1])
    seen = watch_before(layer)
    x = leaf(lib, [[1, 2]])
    layer(x).backward(constant(lib, [[10, 100]]))
    assert seen == [[[[10, 100]]]]
    assert x.grad.tolist() == [[420, 530]]


def test_the_arguments_of_a_hook(lib: Any) -> None:
    doing = module(lib, lambda x: x * 3)
    found: Any = []
    doing.register_full_backward_hook(lambda *args: found.extend(args))
    doing(leaf(lib, 1, 2)).sum().backward()
    hooked, grad_input, grad_output = found
    assert hooked is doing
    assert type(grad_input) is tuple
    assert type(grad_output) is tuple
    for (each,) in (grad_input, grad_output):
        assert isinstance(each, lib.Tensor)
        assert each.dtype == lib.float64
        assert each.shape == (2,)
        assert not each.requires_grad


def test_the_arguments_of_a_pre_hook(lib: Any) -> None:
    doing = module(lib, lambda x: x * 3)
    found: Any = []
    doing.register_full_backward_pre_hook(lambda *args: found.extend(args))
    doing(leaf(lib, 1, 2)).sum().backward()
    hooked, grad_output = found
    assert hooked is doing
    assert type(grad_output) is tuple
    assert lists(grad_output) == [[1, 1]]
    assert not grad_output[0].requires_grad


def test_any_callable_is_a_hook(lib: Any) -> None:
    seen: list[Any] = []

    def note(name: str, *_: Any) -> None:
        seen.append(name)

    class Hook:
        def __call__(self, *_: Any) -> None:
            seen.append("object")

        def method(self, *_: Any) -> None:
            seen.append("method")

    doing = module(lib, lambda x: x * 3)
    for hook in (partial(note, "partial"), Hook(), Hook().method):
        doing.register_full_backward_hook(hook)
    doing(leaf(lib, 1.0)).backward()
    assert seen == ["partial", "object", "method"]


def test_gradients_have_the_shapes_of_inputs_and_outputs(lib: Any) -> None:
    doing = module(lib, lambda x: x.expand(2, 3))
    seen = watch(doing)
    doing(leaf(lib, 1, 2, 3)).sum().backward()
    assert seen == [([[2, 2, 2]], [[[1, 1, 1], [1, 1, 1]]])]


def test_gradients_have_the_dtypes_of_inputs_and_outputs(lib: Any) -> None:
    doing = module(lib, lambda x: x.double() * 3)
    seen: list[Any] = []
    doing.register_full_backward_hook(lambda _, i, o: seen.append((i[0].dtype, o[0].dtype)))
    for dtype in (lib.float32, lib.float16):
        doing(lib.ones(2, dtype=dtype, requires_grad=True)).sum().backward()
    assert seen == [(lib.float32, lib.float64), (lib.float16, lib.float64)]


def test_complex_gradients(lib: Any) -> None:
    doing = module(lib, lambda x: x * 2j)
    seen = watch(doing)
    doing(lib.tensor([1 + 1j], requires_grad=True)).backward(lib.tensor([3 + 4j]))
    assert seen == [([[8 - 6j]], [[3 + 4j]])]


def test_gradients_of_empty_tensors(lib: Any) -> None:
    doing = module(lib, lambda x: x * 3)
    seen = watch(doing)
    doing(lib.zeros(0, dtype=lib.float64, requires_grad=True)).sum().backward()
    assert seen == [([[]], [[]])]


def test_the_output_is_used_more_than_once(lib: Any) -> None:
    doing = module(lib, lambda x: x * 2)
    seen = watch(doing)
    y = doing(leaf(lib, 1.0))
    (y * 3 + y * 4).backward()
    assert seen == [([14], [7])]


def test_part_of_the_output_is_used(lib: Any) -> None:
    doing = module(lib, lambda x: x * 3)
    seen = watch(doing)
    doing(leaf(lib, 1, 2, 3))[0].backward()
    assert seen == [([[3, 0, 0]], [[1, 0, 0]])]


def test_the_input_is_used_outside_too(lib: Any) -> None:
    """grad_input lacks the gradient that reaches the input past the module."""
    doing = module(lib, lambda x: x * 2)
    seen = watch(doing)
    x = leaf(lib, 1.0)
    (doing(x) + x * 3).backward()
    assert seen == [([2], [1])]
    assert x.grad.item() == 5


def test_a_custom_functions_gradient_is_grad_input(lib: Any) -> None:
    class Odd(lib.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 100

    doing = module(lib, Odd.apply)
    seen = watch(doing)
    doing(leaf(lib, 1.0)).backward()
    assert seen == [([100], [1])]


@BOTH
def test_grad_mode_inside_a_hook(lib: Any, register: str) -> None:
    doing = module(lib, lambda x: x * x)
    seen: list[bool] = []
    getattr(doing, register)(lambda *_: seen.append(lib.is_grad_enabled()))
    x = leaf(lib, 1.0)
    doing(x).backward()
    lib.autograd.grad(doing(x), x, create_graph=True)
    assert seen == [False, True]


# Several inputs.


def test_every_input_has_its_gradient(lib: Any) -> None:
    doing = module(lib, lambda a, b: a * b)
    seen = watch(doing)
    doing(leaf(lib, 1, 2), leaf(lib, 3, 4)).sum().backward()
    assert seen == [([[3, 4], [1, 2]], [[1, 1]])]


def test_one_tensor_passed_twice(lib: Any) -> None:
    """Each place has its own share."""
    doing = module(lib, lambda a, b: a * 2 + b * 3)
    seen = watch(doing)
    x = leaf(lib, 1, 2)
    doing(x, x).sum().backward()
    assert seen == [([[2, 2], [3, 3]], [[1, 1]])]
    assert x.grad.tolist() == [5, 5]


@pytest.mark.parametrize(
    "other",
    [3, None, 2.5, True, "text", b"bytes", [1, 2], {"a": 1}, (1, 2), object(), print],
    ids=lambda each: type(each).__name__,
)
def test_none_for_non_tensors(lib: Any, other: Any) -> None:
    received: Any = []
    doing = module(lib, lambda before, x, after: received.extend([before, after]) or x * 2)
    seen = watch(doing)
    doing(other, leaf(lib, 1, 2), other).sum().backward()
    assert seen == [([None, [2, 2], None], [[1, 1]])]
    assert received[0] is other
    assert received[1] is other


@pytest.mark.parametrize(
    "nest",
    [lambda t: [t], lambda t: (t,), lambda t: {"key": t}, lambda t: [[{"key": t}]]],
    ids=["list", "tuple", "dict", "deep"],
)
def test_tensors_inside_structures_are_no_tensors(lib: Any, nest: Any) -> None:
    received: Any = []

    def forward(x: Any, nested: Any) -> Any:
        while not isinstance(nested, lib.Tensor):
            nested = nested["key" if isinstance(nested, dict) else 0]
        received.append(nested)
        return x * nested

    doing = module(lib, forward)
    seen = watch(doing)
    inside = leaf(lib, 3, 4)
    doing(leaf(lib, 1, 2), nest(inside)).sum().backward()
    assert seen == [([[3, 4], None], [[1, 1]])]
    assert received[0] is inside
    assert inside.grad.tolist() == [1, 2]


def test_keyword_arguments_are_ignored(lib: Any) -> None:
    received: Any = []
    doing = module(lib, lambda x, k: received.append(k) or x * k)
    seen = watch(doing)
    k = leaf(lib, 3, 4)
    doing(leaf(lib, 1, 2), k=k).sum().backward()
    assert seen == [([[3, 4]], [[1, 1]])]
    assert received[0] is k
    assert k.grad.tolist() == [1, 2]


def test_an_input_that_is_not_used_has_a_gradient_of_zeros(lib: Any) -> None:
    """One node takes all inputs: a missing gradient is zeros, in .grad as well."""
    doing = module(lib, lambda x, unused: x * 2)
    x, unused = leaf(lib, 1, 2), leaf(lib, 3, 4)
    doing(x, unused).sum().backward()
    assert lists([unused.grad]) == [None]
    seen = watch(doing)
    doing(x, unused).sum().backward()
    assert seen == [([[2, 2], [0, 0]], [[1, 1]])]
    assert unused.grad.tolist() == [0, 0]


def test_grad_of_an_input_that_is_not_used(lib: Any) -> None:
    doing = module(lib, lambda x, unused: x * 2)
    x, unused = leaf(lib, 1.0), leaf(lib, 1.0)
    with raises(RuntimeError):
        lib.autograd.grad(doing(x, unused), unused)
    watch(doing)
    assert lists(lib.autograd.grad(doing(x, unused), unused)) == [0]


def test_inputs_that_need_no_grad_beside_one_that_does(lib: Any) -> None:
    """They get zeros of their dtype, not None."""
    doing = module(lib, lambda x, c, i, b: x * c * i)
    found: Any = []
    doing.register_full_backward_hook(lambda _, grads, __: found.extend(grads))
    c, i, b = constant(lib, 3, 4), lib.tensor([5, 6]), lib.tensor([True, False])
    doing(leaf(lib, 1, 2), c, i, b).sum().backward()
    assert lists(found) == [[15, 24], [0, 0], [0, 0], [False, False]]
    assert [each.dtype for each in found] == [lib.float64, lib.float64, lib.int64, lib.bool]
    assert c.grad is None


def test_the_input_that_needs_grad_need_not_be_first(lib: Any) -> None:
    doing = module(lib, lambda i, x: x * i)
    seen = watch(doing)
    doing(lib.tensor([5, 6]), leaf(lib, 1, 2)).sum().backward()
    assert seen == [([[0, 0], [5, 6]], [[1, 1]])]


def test_a_node_belongs_to_all_inputs(lib: Any) -> None:
    nodes: Any = []
    doing = module(lib, lambda a, b: nodes.extend([a.grad_fn, b.grad_fn]) or a * b)
    watch(doing)
    doing(leaf(lib, 1.0), leaf(lib, 2.0))
    assert nodes[0] is nodes[1]


# When a hook fires.


def without_backward(doing: Any, x: Any) -> None:
    doing(x)
    (x * 3).backward()


def output_not_used(doing: Any, x: Any) -> None:
    doing(x)
    y = doing(x * 1)
    (y.detach() * x).backward()


def output_without_grad(doing: Any, x: Any) -> None:
    y = doing(x)
    assert not y.requires_grad
    (y * x).backward()


def forward_called_directly(doing: Any, x: Any) -> None:
    doing.forward(x).backward()


@BOTH
@pytest.mark.parametrize(
    ("forward", "use"),
    [
        pytest.param(lambda lib, x: x * 2, without_backward, id="no backward"),
        pytest.param(lambda lib, x: x * 2, output_not_used, id="unused output"),
        pytest.param(lambda lib, x: x.detach() * 2, output_without_grad, id="detached output"),
        pytest.param(lambda lib, x: x.to(lib.int64), output_without_grad, id="int64 output"),
        pytest.param(lambda lib, x: x.to(lib.bool), output_without_grad, id="bool output"),
        pytest.param(lambda lib, x: x * 2, forward_called_directly, id="forward called directly"),
    ],
)
def test_no_hook_fires_where(
    lib: Any, register: str, forward: Callable[..., Any], use: Callable[..., None]
) -> None:
    doing = module(lib, partial(forward, lib))
    seen: list[Any] = []
    getattr(doing, register)(lambda *_: seen.append("fired"))
    use(doing, leaf(lib, 1.0))
    assert seen == []


@BOTH
def test_modes_of_training_do_not_matter(lib: Any, register: str) -> None:
    doing = module(lib, lambda x: x * 2)
    seen: list[bool] = []
    getattr(doing, register)(lambda hooked, *_: seen.append(hooked.training))
    doing.eval()(leaf(lib, 1.0)).backward()
    doing.train()(leaf(lib, 1.0)).backward()
    assert seen == [False, True]


@BOTH
def test_frozen_parameters_do_not_matter(lib: Any, register: str) -> None:
    layer = linear(lib, [[2, 3]]).requires_grad_(False)
    seen: list[Any] = []
    getattr(layer, register)(lambda *_: seen.append("fired"))
    layer(constant(lib, [[1, 1]]))
    layer(leaf(lib, [[1, 1]])).sum().backward()
    assert seen == ["fired"]


def test_a_backward_in_no_grad_fires_hooks(lib: Any) -> None:
    doing = module(lib, lambda x: x * 2)
    seen = watch(doing)
    y = doing(leaf(lib, 1.0))
    with lib.no_grad():
        y.backward()
    assert seen == [([2], [1])]


def test_backward_in_pieces(lib: Any) -> None:
    doing = module(lib, lambda x: (x * 2, x * 3))
    seen = watch(doing)
    x = leaf(lib, 1.0)
    first, second = doing(x)
    first.backward(retain_graph=True)
    second.backward()
    assert seen == [([2], [1, None]), ([3], [None, 1])]
    assert x.grad.item() == 5


def test_a_retained_graph_fires_hooks_again(lib: Any) -> None:
    doing = module(lib, lambda x: x * x)
    seen, before = watch(doing), watch_before(doing)
    x = leaf(lib, 1, 2)
    y = doing(x).sum()
    for _ in range(3):
        y.backward(retain_graph=True)
    assert seen == [([[2, 4]], [[1, 1]])] * 3
    assert before == [[[1, 1]]] * 3
    assert x.grad.tolist() == [6, 12]


def test_a_graph_that_is_gone_fires_no_full_hook(lib: Any) -> None:
    doing = module(lib, lambda x: x * x)
    seen = watch(doing)
    y = doing(leaf(lib, 1.0))
    y.backward()
    with raises(RuntimeError):
        y.backward()
    assert seen == [([2], [1])]


# Which gradients are wanted.


def test_weights_only(lib: Any) -> None:
    """The full hook waits for the gradients of the inputs, which are not asked for."""
    layer = linear(lib, [[2]])
    seen, before = watch(layer), watch_before(layer)
    x = leaf(lib, [[3]])
    layer(x).sum().backward(inputs=[layer.weight])
    lib.autograd.grad(layer(x).sum(), layer.weight)
    assert seen == []
    assert before == [[[[1]]]] * 2
    assert layer.weight.grad.tolist() == [[3]]
    assert x.grad is None


def test_weights_only_where_no_input_needs_grad(lib: Any) -> None:
    layer = linear(lib, [[2]])
    seen, before = watch(layer), watch_before(layer)
    with pytest.warns(UserWarning, match="input"):
        layer(constant(lib, [[3]])).sum().backward(inputs=[layer.weight])
    assert seen == [([None], [[[1]]])]
    assert before == [[[[1]]]]
    assert layer.weight.grad.tolist() == [[3]]


def test_weights_first_then_inputs(lib: Any) -> None:
    layer = linear(lib, [[2]])
    seen, before = watch(layer), watch_before(layer)
    x = leaf(lib, [[3]])
    y = layer(x).sum()
    lib.autograd.grad(y, layer.weight, retain_graph=True)
    assert seen == []
    lib.autograd.grad(y * 5, x)
    assert seen == [([[[10]]], [[[5]]])]
    assert before == [[[[1]]], [[[5]]]]


def test_inputs_only(lib: Any) -> None:
    layer = linear(lib, [[2]])
    seen, before = watch(layer), watch_before(layer)
    x = leaf(lib, [[3]])
    layer(x).sum().backward(inputs=[x])
    assert lists(lib.autograd.grad(layer(x).sum(), x)) == [[[2]]]
    assert seen == [([[[2]]], [[[1]]])] * 2
    assert before == [[[[1]]]] * 2
    assert layer.weight.grad is None


def test_one_of_two_inputs(lib: Any) -> None:
    """The hook gets both gradients nevertheless."""
    doing = module(lib, lambda a, b: a * b)
    seen = watch(doing)
    a, b = leaf(lib, 2.0), leaf(lib, 3.0)
    assert lists(lib.autograd.grad(doing(a, b), b)) == [2]
    doing(a, b).backward(inputs=[a])
    assert seen == [([3, 2], [1])] * 2
    assert a.grad.item() == 3
    assert b.grad is None


def test_an_input_that_is_a_result(lib: Any) -> None:
    doing = module(lib, lambda x: x * 2)
    seen = watch(doing)
    x = leaf(lib, 1.0)
    h = x * 3
    assert lists(lib.autograd.grad(doing(h), h)) == [2]
    assert seen == [([2], [1])]


def test_the_output_itself(lib: Any) -> None:
    doing = module(lib, lambda x: x * 2)
    seen, before = watch(doing), watch_before(doing)
    y = doing(leaf(lib, 1.0))
    assert lists(lib.autograd.grad(y * 3, y)) == [3]
    assert seen == []
    assert before == []


def test_something_later_than_the_module(lib: Any) -> None:
    doing = module(lib, lambda x: x * 2)
    seen, before = watch(doing), watch_before(doing)
    z = doing(leaf(lib, 1.0)) * 3
    assert lists(lib.autograd.grad(z * 4, z)) == [4]
    assert seen == []
    assert before == []


def test_something_earlier_than_the_module(lib: Any) -> None:
    doing = module(lib, lambda x: x * 2)
    seen = watch(doing)
    x = leaf(lib, 1.0)
    lib.autograd.grad(doing(x * 5 + 1), x)
    assert seen == [([2], [1])]


@pytest.mark.parametrize(("wanted", "grad"), [("received", 6), ("between", 2)])
def test_something_inside_the_module(lib: Any, wanted: str, grad: int) -> None:
    found: dict[str, Any] = {}

    def forward(x: Any) -> Any:
        found.update(received=x, between=x * 3)
        return found["between"] * 2

    doing = module(lib, forward)
    seen, before = watch(doing), watch_before(doing)
    y = doing(leaf(lib, 1.0))
    assert lists(lib.autograd.grad(y, found[wanted])) == [grad]
    assert seen == []
    assert before == [[1]]


def test_a_way_to_the_input_past_the_output(lib: Any) -> None:
    """The received tensor is used outside: its gradient does not come through the module."""
    found: Any = []
    doing = module(lib, lambda x: found.append(x) or x * 2)
    seen = watch(doing)
    x = leaf(lib, 1.0)
    y = doing(x)
    (found[0] * 3).backward(retain_graph=True)
    assert seen == []
    assert x.grad.item() == 3
    (found[0] * 3 + y).backward()
    assert seen == [([5], [1])]


def test_a_way_from_inside_past_the_output(lib: Any) -> None:
    found: Any = []

    def forward(x: Any) -> Any:
        found.append(x * 2)
        return found[0] * 3

    doing = module(lib, forward)
    seen = watch(doing)
    x = leaf(lib, 1.0)
    doing(x)
    (found[0] * 7).backward()
    assert seen == []
    assert x.grad.item() == 14


def test_an_output_that_does_not_depend_on_the_inputs(lib: Any) -> None:
    """The input needs grad, and its gradient never comes: only the pre-hook fires."""
    w = leaf(lib, 5.0)
    doing = module(lib, lambda x: w * 2)
    seen, before = watch(doing), watch_before(doing)
    doing(leaf(lib, 1.0)).backward()
    assert seen == []
    assert before == [[1]]
    assert w.grad.item() == 2


# No input needs grad.


def test_a_hook_fires_where_no_input_needs_grad(lib: Any) -> None:
    layer = linear(lib, [[2, 3]], [1])
    seen = watch(layer)
    y = layer(constant(lib, [[1, 2]])).sum()
    with pytest.warns(UserWarning, match="input"):
        y.backward()
    assert seen == [([None], [[[1]]])]
    assert layer.weight.grad.tolist() == [[1, 2]]


def test_it_fires_before_the_gradients_of_weights(lib: Any) -> None:
    w = leaf(lib, 5.0)
    doing = module(lib, lambda x: x * w)
    seen: list[str] = []
    w.register_hook(lambda _: seen.append("weight"))
    doing.register_full_backward_hook(lambda *_: seen.append("full"))
    doing.register_full_backward_pre_hook(lambda *_: seen.append("pre"))
    with pytest.warns(UserWarning, match="input"):
        doing(constant(lib, 3.0)).backward()
    assert seen == ["pre", "full", "weight"]


@pytest.mark.parametrize(
    ("args", "grad_input"),
    [((), []), ((3,), [None]), ((None, "text"), [None, None]), (([1.0],), [None])],
    ids=["nothing", "int", "several", "list"],
)
def test_a_hook_fires_where_no_input_is_a_tensor(lib: Any, args: Any, grad_input: Any) -> None:
    w = leaf(lib, 5.0)
    doing = module(lib, lambda *_: w * 2)
    seen = watch(doing)
    with pytest.warns(UserWarning, match="input"):
        doing(*args).backward()
    assert seen == [(grad_input, [1])]
    assert w.grad.item() == 2


def test_a_hook_fires_where_only_keywords_need_grad(lib: Any) -> None:
    doing = module(lib, lambda *args, k: k * 2)
    seen = watch(doing)
    k = leaf(lib, 3, 4)
    with pytest.warns(UserWarning, match="input"):
        doing(k=k).sum().backward()
    with pytest.warns(UserWarning, match="input"):
        doing(constant(lib, 1, 2), k=k).sum().backward()
    assert seen == [([], [[1, 1]]), ([None], [[1, 1]])]
    assert k.grad.tolist() == [4, 4]


def test_a_hook_fires_where_only_nested_tensors_need_grad(lib: Any) -> None:
    doing = module(lib, lambda listed: listed[0] * 2)
    seen = watch(doing)
    x = leaf(lib, 3, 4)
    with pytest.warns(UserWarning, match="input"):
        doing([x]).sum().backward()
    assert seen == [([None], [[1, 1]])]
    assert x.grad.tolist() == [2, 2]


def test_a_pre_hook_alone_warns_where_no_input_needs_grad(lib: Any) -> None:
    w = leaf(lib, 5.0)
    doing = module(lib, lambda x: x * w)
    seen = watch_before(doing)
    with pytest.warns(UserWarning, match="input"):
        doing(constant(lib, 3.0)).backward()
    assert seen == [[1]]


def test_the_warning_may_be_an_error(lib: Any) -> None:
    w = leaf(lib, 5.0)
    doing = module(lib, lambda x: x * w)
    seen = watch(doing)
    y = doing(constant(lib, 3.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with raises(UserWarning):
            y.backward()
    assert seen == []


@pytest.mark.parametrize("new", [None, (None,)], ids=repr)
def test_such_a_hook_may_return_none(lib: Any, new: Any) -> None:
    w = leaf(lib, 5.0)
    doing = module(lib, lambda x: x * w)
    replace(doing, lambda _: new)
    with pytest.warns(UserWarning, match="input"):
        doing(constant(lib, 3.0)).backward()
    assert w.grad.item() == 3


@pytest.mark.parametrize("pack", [lambda t: t, lambda t: (t,), lambda t: [t]])
def test_such_a_hook_may_return_nothing_else(lib: Any, pack: Any) -> None:
    w = leaf(lib, 5.0)
    doing = module(lib, lambda x: x * w)
    replace(doing, lambda _: pack(constant(lib, 7.0)))
    with pytest.warns(UserWarning, match="input"), raises(RuntimeError):
        doing(constant(lib, 3.0)).backward()
    assert w.grad is None


def test_several_hooks_where_no_input_needs_grad(lib: Any) -> None:
    w = leaf(lib, 5.0)
    doing = module(lib, lambda x: x * w)
    seen, again, before = watch(doing), watch(doing), watch_before(doing)
    replace(doing, lambda grads: (grads[0] * 10,), PRE)
    y = doing(constant(lib, 3.0))
    for _ in range(2):
        with pytest.warns(UserWarning, match="input"):
            y.backward(retain_graph=True)
    assert seen == again == [([None], [10])] * 2
    assert before == [[1]] * 2
    assert w.grad.item() == 60


# Outputs.


class Pair(NamedTuple):
    first: Any
    second: Any


def test_an_output_that_is_not_used_has_none(lib: Any) -> None:
    doing = module(lib, lambda x: (x * 2, x * 3))
    seen, before = watch(doing), watch_before(doing)
    doing(leaf(lib, 1, 2))[1].sum().backward()
    assert seen == [([[3, 3]], [None, [1, 1]])]
    assert before == [[None, [1, 1]]]


def test_all_outputs_are_used(lib: Any) -> None:
    doing = module(lib, lambda a, b: (a * 2, b * 3))
    seen = watch(doing)
    a, b = leaf(lib, 1.0), leaf(lib, 1.0)
    grads = lib.autograd.grad(doing(a, b), (a, b), (constant(lib, 10.0), constant(lib, 100.0)))
    assert lists(grads) == [20, 300]
    assert seen == [([20, 300], [10, 100])]


def test_a_node_belongs_to_all_outputs(lib: Any) -> None:
    doing = module(lib, lambda a, b: (a * 2, b * 3))
    watch(doing)
    first, second = doing(leaf(lib, 1.0), leaf(lib, 2.0))
    assert first.grad_fn is second.grad_fn
    assert [first.output_nr, second.output_nr] == [0, 1]


def test_an_input_that_the_used_output_does_not_depend_on(lib: Any) -> None:
    """One node takes all outputs: every input gets a gradient, if of zeros."""
    doing = module(lib, lambda a, b: (a * 2, b * 3))
    seen = watch(doing)
    a, b = leaf(lib, 1.0), leaf(lib, 1.0)
    doing(a, b)[0].backward()
    assert seen == [([2, 0], [1, None])]
    assert a.grad.item() == 2
    assert b.grad.item() == 0


def test_the_used_output_depends_on_weights_only(lib: Any) -> None:
    w = leaf(lib, 5.0)
    doing = module(lib, lambda x: (x * 2, w * 3))
    seen = watch(doing)
    x = leaf(lib, 1.0)
    doing(x)[1].backward()
    assert seen == [([0], [None, 1])]
    assert x.grad.item() == 0
    assert w.grad.item() == 3


def test_outputs_that_need_no_grad_have_none(lib: Any) -> None:
    doing = module(lib, lambda x: (x * 2, x.detach(), lib.tensor(3)))
    seen = watch(doing)
    outputs = doing(leaf(lib, 1, 2))
    assert [each.requires_grad for each in outputs] == [True, False, False]
    outputs[0].sum().backward()
    assert seen == [([[2, 2]], [[1, 1], None, None])]


def test_outputs_that_are_no_tensors_have_none(lib: Any) -> None:
    doing = module(lib, lambda x: (None, x * 2, 4, "text", [x * 3], {"a": x}, (x * 5,)))
    seen, before = watch(doing), watch_before(doing)
    outputs = doing(leaf(lib, 1, 2))
    assert outputs[0] is None
    assert outputs[2:4] == (4, "text")
    assert [type(each) for each in outputs[4:]] == [list, dict, tuple]
    (outputs[1] + outputs[6][0]).sum().backward()
    assert seen == [([[7, 7]], [None, [1, 1], None, None, None, None, None])]
    assert before == [[None, [1, 1], None, None, None, None, None]]


def test_one_tensor_returned_twice(lib: Any) -> None:
    def forward(x: Any) -> Any:
        y = x * 2
        return y, y

    doing = module(lib, forward)
    seen = watch(doing)
    first, second = doing(leaf(lib, 1.0))
    (first * 3 + second * 5).backward()
    assert seen == [([16], [3, 5])]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_tuple_stays_a_tuple(lib: Any, count: int) -> None:
    doing = module(lib, lambda x: (x * 2,) * count)
    seen = watch(doing)
    outputs = doing(leaf(lib, 1.0))
    assert type(outputs) is tuple
    assert len(outputs) == count
    outputs[-1].backward()
    assert seen == [([2], [None] * (count - 1) + [1])]


def test_a_named_tuple_keeps_its_type(lib: Any) -> None:
    doing = module(lib, lambda x: Pair(x * 2, None))
    seen = watch(doing)
    output = doing(leaf(lib, 1.0))
    assert type(output) is Pair
    assert output.second is None
    assert output.first.grad_fn.name() == "BackwardHookFunctionBackward"
    output.first.backward()
    assert seen == [([2], [1, None])]


@pytest.mark.parametrize(
    "output", [(), (None, 3), ("text", [1.0])], ids=["empty", "others", "nested"]
)
def test_a_tuple_without_tensors(lib: Any, output: Any) -> None:
    doing = module(lib, lambda x: output)
    watch(doing)
    assert doing(leaf(lib, 1.0)) == output


def test_tensors_only_in_containers_inside_a_tuple(lib: Any) -> None:
    doing = module(lib, lambda x: ([x * 2], {"a": x * 3}))
    seen, before = watch(doing), watch_before(doing)
    x = leaf(lib, 1.0)
    listed, named = doing(x)
    (listed[0] + named["a"]).backward()
    assert seen == []
    assert before == []
    assert x.grad.item() == 5


@BOTH
@pytest.mark.parametrize(
    "output",
    [None, 3, 2.5, "text", {1}, [], {}, object()],
    ids=lambda each: type(each).__name__,
)
def test_outputs_without_tensors(lib: Any, register: str, output: Any) -> None:
    """Hooks will not fire, and forward says so."""
    doing = module(lib, lambda x: output)
    getattr(doing, register)(lambda *_: pytest.fail("there is nothing to fire for"))
    with pytest.warns(UserWarning, match="(?i)tuple"):
        assert doing(leaf(lib, 1.0)) is output


@BOTH
@pytest.mark.parametrize("key", [0, "key"], ids=["list", "dict"])
def test_outputs_in_lists_and_dicts(lib: Any, register: str, key: Any) -> None:
    """They come as they are, no views; gradients are right, hooks do not fire."""
    received: Any = []

    def forward(x: Any) -> Any:
        received.append(x * 2)
        return {"key": received[0]} if key == "key" else [received[0], x * 3]

    doing = module(lib, forward)
    seen: list[Any] = []
    getattr(doing, register)(lambda *_: seen.append("fired"))
    x = leaf(lib, 1.0)
    with pytest.warns(UserWarning, match="(?i)tuple"):
        output = doing(x)
    assert output[key] is received[0]
    output[key].backward()
    assert seen == []
    assert x.grad.item() == 2


def test_no_warning_of_a_list_without_hooks(lib: Any) -> None:
    doing = module(lib, lambda x: [x * 2])
    doing.register_full_backward_hook(lambda *_: None).remove()
    x = leaf(lib, 1.0)
    doing(x)[0].backward()
    assert x.grad.item() == 2


def test_the_input_returned_as_it_is(lib: Any) -> None:
    identity = lib.nn.Identity()
    seen = watch(identity)
    x = leaf(lib, 3, 4)
    y = identity(x)
    assert y is not x
    assert y._base is x
    (y * 5).sum().backward()
    assert seen == [([[5, 5]], [[5, 5]])]
    assert x.grad.tolist() == [5, 5]


def test_the_input_returned_beside_another_output(lib: Any) -> None:
    doing = module(lib, lambda x: (x, x * 2))
    seen = watch(doing)
    first, second = doing(leaf(lib, 1.0))
    (first * 3 + second * 5).backward()
    assert seen == [([13], [3, 5])]


def test_a_parameter_returned_as_it_is(lib: Any) -> None:
    w = leaf(lib, 5.0)
    doing = module(lib, lambda x: (w, x * 2))
    seen = watch(doing)
    first, second = doing(leaf(lib, 1.0))
    assert first is not w
    (first * 3 + second * 5).backward()
    assert seen == [([10], [3, 5])]
    assert w.grad.item() == 3


def test_a_view_of_the_input_returned(lib: Any) -> None:
    doing = module(lib, lambda x: x[:1])
    seen = watch(doing)
    x = leaf(lib, 1, 2)
    y = doing(x)
    assert y._base is x
    y.sum().backward()
    assert seen == [([[1, 0]], [[1]])]


# Views.


@BOTH
def test_forward_receives_a_view(lib: Any, register: str) -> None:
    received: Any = []
    doing = module(lib, lambda x: received.append(x) or x * 2)
    getattr(doing, register)(lambda *_: None)
    x = leaf(lib, 1, 2)
    doing(x)
    (view,) = received
    assert view is not x
    assert view._is_view()
    assert view._base is x
    assert view.data_ptr() == x.data_ptr()
    assert view.requires_grad
    assert not view.is_leaf
    assert view.tolist() == [1, 2]
    assert view.grad_fn.name() == "BackwardHookFunctionBackward"
    assert type(view.grad_fn).__name__ == "BackwardHookFunctionBackward"
    assert type(view.grad_fn.next_functions[0][0]).__name__ == "AccumulateGrad"


@BOTH
def test_the_caller_receives_a_view(lib: Any, register: str) -> None:
    returned: Any = []

    def forward(x: Any) -> Any:
        returned.append(x * 2)
        return returned[0]

    doing = module(lib, forward)
    getattr(doing, register)(lambda *_: None)
    y = doing(leaf(lib, 3, 4))
    assert y is not returned[0]
    assert y._is_view()
    assert y._base is returned[0]
    assert y.data_ptr() == returned[0].data_ptr()
    assert y.grad_fn.name() == "BackwardHookFunctionBackward"
    assert y.grad_fn.next_functions[0][0] is returned[0].grad_fn
    assert "grad_fn=<BackwardHookFunctionBackward>" in repr(y)


def test_every_input_is_a_view_where_one_needs_grad(lib: Any) -> None:
    received: Any = []
    doing = module(lib, lambda *args: received.extend(args) or args[0] * args[1])
    watch(doing)
    inputs = leaf(lib, 1, 2), constant(lib, 3, 4), lib.tensor([5, 6])
    doing(*inputs)
    assert [each._base is given for each, given in zip(received, inputs, strict=True)] == [True] * 3
    assert [each.requires_grad for each in received] == [True, False, False]
    assert [each.grad_fn is None for each in received] == [False, True, True]


def test_every_output_is_a_view_where_one_needs_grad(lib: Any) -> None:
    plain = constant(lib, 3, 4)
    doing = module(lib, lambda x: (x * 2, plain))
    watch(doing)
    outputs = doing(leaf(lib, 1, 2))
    assert [each._is_view() for each in outputs] == [True, True]
    assert outputs[1]._base is plain
    assert outputs[1].grad_fn is None


def test_inputs_of_which_none_needs_grad_come_as_they_are(lib: Any) -> None:
    received: Any = []
    w = leaf(lib, 5.0)
    doing = module(lib, lambda x: received.append(x) or x * w)
    watch(doing)
    x = constant(lib, 1, 2)
    y = doing(x)
    assert received[0] is x
    assert y._is_view()


def test_outputs_of_which_none_needs_grad_come_as_they_are(lib: Any) -> None:
    plain = constant(lib, 3, 4)
    doing = module(lib, lambda x: plain)
    watch(doing)
    assert doing(leaf(lib, 1, 2)) is plain


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_without_grad_mode_everything_comes_as_it_is(lib: Any, mode: str) -> None:
    received: Any = []

    def forward(x: Any) -> Any:
        received.extend([x, x * 2])
        return received[1]

    doing = module(lib, forward)
    seen = watch(doing)
    x = leaf(lib, 1, 2)
    with getattr(lib, mode)():
        y = doing(x)
    assert received[0] is x
    assert received[1] is y
    assert not y.requires_grad
    assert not y._is_view()
    assert seen == []


def test_no_grad_inside_forward(lib: Any) -> None:
    def forward(x: Any) -> Any:
        with lib.no_grad():
            return x * 2

    doing = module(lib, forward)
    watch(doing)
    assert not doing(leaf(lib, 1, 2)).requires_grad


def test_grad_mode_inside_forward_only(lib: Any) -> None:
    """The mode of the call decides: no hook fires, and there are gradients."""

    def forward(x: Any) -> Any:
        with lib.enable_grad():
            return x * 2

    doing = module(lib, forward)
    seen = watch(doing)
    x = leaf(lib, 1.0)
    with lib.no_grad():
        y = doing(x)
    y.backward()
    assert seen == []
    assert x.grad.item() == 2


def test_an_input_that_is_a_view(lib: Any) -> None:
    received: Any = []
    doing = module(lib, lambda x: received.append(x) or x * 2)
    seen = watch(doing)
    base = leaf(lib, 1, 2, 3)
    doing(base[:2]).sum().backward()
    assert received[0]._base is base
    assert seen == [([[2, 2]], [[1, 1]])]
    assert base.grad.tolist() == [2, 2, 0]


def test_views_of_views_have_the_first_base(lib: Any) -> None:
    identity = lib.nn.Identity()
    seen = watch(identity)
    x = leaf(lib, 1.0)
    y = identity(identity(x))
    assert y._base is x
    y.backward()
    assert seen == [([1], [1])] * 2


def test_without_hooks_there_are_no_views(lib: Any) -> None:
    received: Any = []

    def forward(x: Any) -> Any:
        received.extend([x, x * 2])
        return received[1]

    doing = module(lib, forward)
    for register in (FULL, PRE):
        getattr(doing, register)(lambda *_: None).remove()
    x = leaf(lib, 1, 2)
    y = doing(x)
    assert received[0] is x
    assert received[1] is y


def test_forward_hooks_are_inside(lib: Any) -> None:
    """Pre-hooks get the input before it is a view, hooks the output before it is one."""
    received: Any = []

    def forward(x: Any) -> Any:
        received.append(x * 2)
        return received[0]

    doing = module(lib, forward)
    watch(doing)
    x = leaf(lib, 1.0)
    found: Any = []
    doing.register_forward_pre_hook(lambda _, args: found.append(args[0]))
    doing.register_forward_hook(lambda _, args, output: found.extend([args[0], output]))
    doing(x)
    assert found[0] is x
    assert found[1]._base is x
    assert found[2] is received[0]


def test_outputs_replaced_by_forward_hooks_have_the_gradients(lib: Any) -> None:
    doing = module(lib, lambda x: x * 2)
    seen = watch(doing)
    doing.register_forward_pre_hook(lambda _, args: (args[0] * 3,))
    doing.register_forward_hook(lambda _, args, output: output * 5)
    x = leaf(lib, 1.0)
    doing(x).backward()
    assert seen == [([10], [1])]
    assert x.grad.item() == 30


# Changes in place.


def assign(t: Any) -> None:
    t[0] = 3


IN_PLACE = pytest.mark.parametrize(
    "change",
    [lambda t: t.mul_(2), lambda t: t.relu_(), assign, lambda t: t[:1].add_(1)],
    ids=["mul", "relu", "item", "view"],
)


@BOTH
@IN_PLACE
def test_inputs_may_not_be_changed_in_place(lib: Any, register: str, change: Any) -> None:
    doing = module(lib, lambda x: (change(x), x * 1)[1])
    x = leaf(lib, 1, 2)
    doing(x * 1).sum().backward()
    getattr(doing, register)(lambda *_: None)
    with raises(RuntimeError):
        doing(x * 1)


@BOTH
@IN_PLACE
def test_outputs_may_not_be_changed_in_place(lib: Any, register: str, change: Any) -> None:
    doing = module(lib, lambda x: x * 2)
    x = leaf(lib, 1, 2)
    change(doing(x))
    getattr(doing, register)(lambda *_: None)
    y = doing(x)
    with raises(RuntimeError):
        change(y)


@pytest.mark.parametrize("index", [0, 1])
def test_none_of_several_inputs_and_outputs_may(lib: Any, index: int) -> None:
    doing = module(lib, lambda a, b, change: (a, b)[index].mul_(change))
    watch(doing)
    a, b = leaf(lib, 1.0), leaf(lib, 2.0)
    with raises(RuntimeError):
        doing(a * 1, b * 1, 3)
    doing = module(lib, lambda a, b: (a * 2, b * 3))
    watch(doing)
    outputs = doing(a, b)
    with raises(RuntimeError):
        outputs[index].mul_(3)


def test_outputs_may_not_where_no_input_needs_grad(lib: Any) -> None:
    w = leaf(lib, 5.0)
    doing = module(lib, lambda x: x * w)
    watch(doing)
    y = doing(constant(lib, 1, 2))
    with raises(RuntimeError):
        y.mul_(2)


def test_a_next_module_may_not_change_its_input(lib: Any) -> None:
    first, second = module(lib, lambda x: x * 2), module(lib, lambda x: x.relu_())
    net = lib.nn.Sequential(first, second)
    x = leaf(lib, 1, 2)
    with first.register_full_backward_hook(lambda *_: None), raises(RuntimeError):
        net(x)
    with second.register_full_backward_hook(lambda *_: None), raises(RuntimeError):
        net(x)
    seen = watch(net)
    net(x).sum().backward()
    assert seen == [([[2, 2]], [[1, 1]])]


def test_tensors_other_than_inputs_may_be_changed_inside(lib: Any) -> None:
    def forward(x: Any) -> Any:
        h = x * 2
        h.mul_(3)
        return x.clone().mul_(5) + h

    doing = module(lib, forward)
    seen = watch(doing)
    doing(leaf(lib, 1, 2)).sum().backward()
    assert seen == [([[11, 11]], [[1, 1]])]


def test_a_clone_of_the_output_may_be_changed(lib: Any) -> None:
    doing = module(lib, lambda x: x * 2)
    seen = watch(doing)
    doing(leaf(lib, 1, 2)).clone().mul_(3).sum().backward()
    assert seen == [([[6, 6]], [[3, 3]])]


def test_a_change_of_the_tensor_that_forward_returned_breaks_the_output(lib: Any) -> None:
    returned: Any = []

    def forward(x: Any) -> Any:
        returned.append(x * 2)
        return returned[0]

    doing = module(lib, forward)
    watch(doing)
    y = doing(leaf(lib, 1, 2))
    returned[0].mul_(5)
    with raises(RuntimeError):
        y.sum()


def test_the_original_input_may_be_changed_if_it_was_not_saved(lib: Any) -> None:
    doing = module(lib, lambda x: x * 2)
    seen = watch(doing)
    h = leaf(lib, 1, 2) * 1
    y = doing(h)
    h.mul_(5)
    y.sum().backward()
    assert seen == [([[2, 2]], [[1, 1]])]


def test_the_original_input_may_not_be_changed_if_it_was_saved(lib: Any) -> None:
    doing = module(lib, lambda x: x * x)
    seen = watch(doing)
    h = leaf(lib, 1, 2) * 1
    y = doing(h).sum()
    h.mul_(5)
    with raises(RuntimeError):
        y.backward()
    assert seen == []


def test_an_input_that_needs_no_grad_may_be_changed(lib: Any) -> None:
    doing = module(lib, lambda x, c: x * c.mul_(2))
    seen = watch(doing)
    c = constant(lib, 3, 4)
    doing(leaf(lib, 1, 2), c).sum().backward()
    assert c.tolist() == [6, 8]
    assert seen == [([[6, 8], [0, 0]], [[1, 1]])]


def test_inputs_of_which_none_needs_grad_may_be_changed(lib: Any) -> None:
    doing = module(lib, lambda x: x.mul_(2))
    watch(doing)
    c = constant(lib, 3, 4)
    assert doing(c) is c
    assert c.tolist() == [6, 8]


def test_an_output_that_needs_no_grad_may_be_changed(lib: Any) -> None:
    doing = module(lib, lambda x: (x * 2, x.detach() * 3))
    watch(doing)
    first, second = doing(leaf(lib, 1, 2))
    second.mul_(2)
    assert second.tolist() == [6, 12]
    with raises(RuntimeError):
        second.mul_(first)


# Return values of a full hook.


@pytest.mark.parametrize("pack", [tuple, list])
def test_a_hook_may_replace_grad_input(lib: Any, pack: Any) -> None:
    layer = linear(lib, [[2]])
    replace(layer, lambda grads: pack([grads[0] * 10]))
    x = leaf(lib, [[3]])
    layer(x).sum().backward()
    assert x.grad.tolist() == [[20]]
    assert layer.weight.grad.tolist() == [[3]]


def test_its_result_goes_on_upstream(lib: Any) -> None:
    first, second = linear(lib, [[2]]), linear(lib, [[3]])
    seen = watch(first)
    replace(second, lambda grads: (grads[0] * 10,))
    x = leaf(lib, [[5]])
    second(first(x)).sum().backward()
    assert seen == [([[[60]]], [[[30]]])]
    assert first.weight.grad.tolist() == [[150]]
    assert second.weight.grad.tolist() == [[10]]
    assert x.grad.tolist() == [[60]]


def test_a_hook_may_replace_it_by_a_constant(lib: Any) -> None:
    doing = module(lib, lambda x: x * 2)
    replace(doing, lambda _: (constant(lib, 7, 8),))
    x = leaf(lib, 1, 2)
    doing(x).sum().backward()
    assert x.grad.tolist() == [7, 8]


def test_its_result_reaches_grad(lib: Any) -> None:
    doing = module(lib, lambda x: x * 2)
    replace(doing, lambda grads: (grads[0] * 10,))
    x = leaf(lib, 1.0)
    h = x * 3
    assert lists(lib.autograd.grad(doing(h), (h, x))) == [20, 60]
    assert x.grad is None


def test_a_hook_may_swap_gradients(lib: Any) -> None:
    doing = module(lib, lambda a, b: a * 2 + b * 3)
    replace(doing, lambda grads: (grads[1], grads[0]))
    a, b = leaf(lib, 1.0), leaf(lib, 1.0)
    doing(a, b).backward()
    assert a.grad.item() == 3
    assert b.grad.item() == 2


def test_a_hook_may_drop_a_gradient(lib: Any) -> None:
    doing = module(lib, lambda a, b: a * 2 + b * 3)
    replace(doing, lambda grads: (grads[0], None))
    a, b = leaf(lib, 1.0), leaf(lib, 1.0)
    doing(a, b).backward()
    assert a.grad.item() == 2
    assert b.grad is None


def test_a_module_upstream_of_a_dropped_gradient(lib: Any) -> None:
    """Its hooks fire, with None and zeros."""
    first, second = module(lib, lambda x: x * 2), module(lib, lambda x: x * 3)
    seen = watch(first)
    replace(second, lambda grads: (None,))
    x = leaf(lib, 1.0)
    second(first(x)).backward()
    assert seen == [([0], [None])]
    assert x.grad.item() == 0


def test_results_for_other_inputs_are_ignored(lib: Any) -> None:
    doing = module(lib, lambda x, c, k: x * c)
    given = [
        lambda grads: (grads[0] * 10, None, None),
        lambda grads: (grads[0] * 10, grads[1] + 1, None),
        lambda grads: (grads[0] * 10, None, grads[0]),
        lambda grads: (grads[0] * 10, None, "text"),
    ]
    for new in given:
        x, c = leaf(lib, 1, 2), constant(lib, 3, 4)
        with replace(doing, new):
            doing(x, c, 5).sum().backward()
        assert x.grad.tolist() == [30, 40]
        assert c.grad is None


def test_a_hook_may_return_one_tensor() -> None:
    """As its documentation says; torch takes the rows of the tensor for the gradients."""
    doing = module(offgrad, lambda x: x * 2)
    replace(doing, lambda grads: grads[0] * 10)
    replace(doing, lambda grads: grads[0] * 10, PRE)
    x = leaf(offgrad, 1, 2)
    doing(x).sum().backward()
    assert x.grad.tolist() == [200, 200]


@pytest.mark.parametrize(
    "new",
    [lambda g: (), lambda g: (g[0], g[0]), lambda g: (g[0], None), lambda g: []],
    ids=["none", "two", "none too many", "list"],
)
def test_a_hook_returns_as_many_as_there_are_inputs(lib: Any, new: Any) -> None:
    doing = module(lib, lambda x: x * 2)
    replace(doing, new)
    x = leaf(lib, 1, 2)
    with raises(RuntimeError):
        doing(x).sum().backward()
    assert x.grad is None


def test_inputs_that_are_no_tensors_count(lib: Any) -> None:
    doing = module(lib, lambda x, k: x * k)
    replace(doing, lambda grads: (grads[0],))
    with raises(RuntimeError):
        doing(leaf(lib, 1, 2), 3).sum().backward()


@pytest.mark.parametrize("new", [3.0, 3, True, object()], ids=lambda each: type(each).__name__)
def test_a_hook_returns_a_tuple(lib: Any, new: Any) -> None:
    doing = module(lib, lambda x: x * 2)
    replace(doing, lambda _: new)
    x = leaf(lib, 1, 2)
    with raises(TypeError):
        doing(x).sum().backward()
    assert x.grad is None


@pytest.mark.parametrize("new", [3.0, "text", [1.0, 2.0]], ids=lambda each: type(each).__name__)
def test_a_hook_returns_a_tuple_of_tensors(lib: Any, new: Any) -> None:
    doing = module(lib, lambda x: x * 2)
    replace(doing, lambda _: (new,))
    x = leaf(lib, 1, 2)
    with raises(TypeError):
        doing(x).sum().backward()
    assert x.grad is None


@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 2), (2, 1)], ids=str)
@BOTH
def test_a_hook_keeps_shapes(lib: Any, register: str, shape: Any) -> None:
    doing = module(lib, lambda x: x * 2)
    replace(doing, lambda _: (lib.ones(shape, dtype=lib.float64),), register)
    x = leaf(lib, 1, 2)
    with raises(RuntimeError):
        doing(x).sum().backward()
    assert x.grad is None


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "complex128"])
@BOTH
def test_a_hook_keeps_dtypes(lib: Any, register: str, dtype: str) -> None:
    doing = module(lib, lambda x: x * 2)
    replace(doing, lambda _: (lib.ones(2, dtype=getattr(lib, dtype)),), register)
    x = leaf(lib, 1, 2)
    with raises(RuntimeError):
        doing(x).sum().backward()
    assert x.grad is None


# Return values of a pre-hook.


@pytest.mark.parametrize("pack", [tuple, list])
def test_a_pre_hook_may_replace_grad_output(lib: Any, pack: Any) -> None:
    layer = linear(lib, [[2]])
    replace(layer, lambda grads: pack([grads[0] * 10]), PRE)
    seen = watch(layer)
    x = leaf(lib, [[3]])
    layer(x).sum().backward()
    assert seen == [([[[20]]], [[[10]]])]
    assert x.grad.tolist() == [[20]]
    assert layer.weight.grad.tolist() == [[30]]


def test_its_result_is_not_the_gradient_of_the_output(lib: Any) -> None:
    """The output's own gradient comes before the hook."""
    doing = module(lib, lambda x: x * 2)
    replace(doing, lambda grads: (grads[0] * 10,), PRE)
    x = leaf(lib, 1.0)
    y = doing(x)
    assert lists(lib.autograd.grad(y * 3, (y, x), retain_graph=True)) == [3, 60]
    y.retain_grad()
    (y * 3).backward()
    assert y.grad.item() == 3
    assert x.grad.item() == 60


def test_a_pre_hook_may_fill_in_for_none(lib: Any) -> None:
    doing = module(lib, lambda x: (x * 3, x * 5))
    replace(doing, lambda grads: (grads[0], grads[0] * 10), PRE)
    seen = watch(doing)
    x = leaf(lib, 1.0)
    doing(x)[0].backward()
    assert seen == [([53], [1, 10])]
    assert x.grad.item() == 53


def test_a_pre_hook_may_swap_gradients(lib: Any) -> None:
    doing = module(lib, lambda x: (x * 3, x * 5))
    replace(doing, lambda grads: (grads[1], grads[0]), PRE)
    seen = watch(doing)
    doing(leaf(lib, 1.0))[0].backward()
    assert seen == [([5], [None, 1])]


def test_a_pre_hook_may_drop_gradients(lib: Any) -> None:
    """Weights have none then; the input, which has a node of its own, has zeros."""
    w = leaf(lib, 2.0)
    doing = module(lib, lambda x: x * w)
    replace(doing, lambda _: (None,), PRE)
    seen = watch(doing)
    x = leaf(lib, 3.0)
    doing(x).backward()
    assert seen == [([0], [None])]
    assert x.grad.item() == 0
    assert w.grad is None


def test_a_pre_hook_where_no_input_needs_grad(lib: Any) -> None:
    w = leaf(lib, 2.0)
    doing = module(lib, lambda x: x * w)
    replace(doing, lambda grads: (grads[0] * 10,), PRE)
    with pytest.warns(UserWarning, match="input"):
        doing(constant(lib, 3.0)).backward()
    assert w.grad.item() == 30


@pytest.mark.parametrize(
    "new",
    [lambda g: (), lambda g: (g[0], g[0]), lambda g: (g[0], None), lambda g: []],
    ids=["none", "two", "none too many", "list"],
)
def test_a_pre_hook_returns_as_many_as_there_are_outputs(lib: Any, new: Any) -> None:
    doing = module(lib, lambda x: x * 2)
    replace(doing, new, PRE)
    x = leaf(lib, 1, 2)
    with raises(RuntimeError):
        doing(x).sum().backward()
    assert x.grad is None


def test_outputs_that_are_no_tensors_count(lib: Any) -> None:
    doing = module(lib, lambda x: (x * 2, 7))
    x = leaf(lib, 1, 2)
    with replace(doing, lambda grads: (grads[0],), PRE), raises(RuntimeError):
        doing(x)[0].sum().backward()
    replace(doing, lambda grads: (grads[0] * 10, None), PRE)
    doing(x)[0].sum().backward()
    assert x.grad.tolist() == [20, 20]


@pytest.mark.parametrize("new", [3.0, (3.0,), ("text",)], ids=repr)
def test_a_pre_hook_returns_a_tuple_of_tensors(lib: Any, new: Any) -> None:
    doing = module(lib, lambda x: x * 2)
    replace(doing, lambda _: new, PRE)
    x = leaf(lib, 1, 2)
    with raises(TypeError):
        doing(x).sum().backward()
    assert x.grad is None


# Several hooks.


def test_hooks_get_the_results_of_earlier_ones(lib: Any) -> None:
    doing = module(lib, lambda x: x * 3)
    seen: list[Any] = []

    def full(factor: int | None) -> Any:
        def hook(_: Any, grad_input: Any, grad_output: Any) -> Any:
            seen.append(("full", lists(grad_input), lists(grad_output)))
            return (grad_input[0] * factor,) if factor else None

        return hook

    def pre(factor: int | None) -> Any:
        def hook(_: Any, grad_output: Any) -> Any:
            seen.append(("pre", lists(grad_output)))
            return (grad_output[0] * factor,) if factor else None

        return hook

    for factor in (10, None, 7):
        doing.register_full_backward_hook(full(factor))
    for factor in (2, None, 5):
        doing.register_full_backward_pre_hook(pre(factor))
    x = leaf(lib, 1.0)
    doing(x).backward()
    assert seen == [
        ("pre", [1]),
        ("pre", [2]),
        ("pre", [2]),
        ("full", [30], [10]),
        ("full", [300], [10]),
        ("full", [300], [10]),
    ]
    assert x.grad.item() == 2100


@BOTH
def test_hooks_fire_in_order_and_those_prepended_before(lib: Any, register: str) -> None:
    doing = module(lib, lambda x: x * 2)
    seen: list[str] = []
    for name, prepend in (("a", False), ("b", True), ("c", False), ("d", True)):
        getattr(doing, register)(lambda *_, name=name: seen.append(name), prepend=prepend)
    doing(leaf(lib, 1.0)).backward()
    assert seen == ["d", "b", "a", "c"]


def test_pre_hooks_fire_before_hooks(lib: Any) -> None:
    doing = module(lib, lambda x: x * 2)
    seen: list[str] = []
    doing.register_full_backward_hook(lambda *_: seen.append("full"), prepend=True)
    doing.register_full_backward_pre_hook(lambda *_: seen.append("pre"))
    doing(leaf(lib, 1.0)).backward()
    assert seen == ["pre", "full"]


@BOTH
def test_one_hook_registered_twice_fires_twice(lib: Any, register: str) -> None:
    doing = module(lib, lambda x: x * 2)
    seen: list[str] = []
    hook = lambda *_: seen.append("fired")
    handle = getattr(doing, register)(hook)
    getattr(doing, register)(hook)
    doing(leaf(lib, 1.0)).backward()
    assert seen == ["fired"] * 2
    handle.remove()
    doing(leaf(lib, 1.0)).backward()
    assert seen == ["fired"] * 3


@BOTH
@pytest.mark.parametrize("index", [0, 1, 2])
def test_removing_one_hook_leaves_the_others(lib: Any, register: str, index: int) -> None:
    doing = module(lib, lambda x: x * 2)
    seen: list[int] = []
    handles = [
        getattr(doing, register)(lambda *_, each=each: seen.append(each)) for each in range(3)
    ]
    for _ in range(2):
        handles[index].remove()
    doing(leaf(lib, 1.0)).backward()
    assert seen == [each for each in range(3) if each != index]


@BOTH
def test_a_handle_is_a_context_manager(lib: Any, register: str) -> None:
    doing = module(lib, lambda x: x * 2)
    seen: list[str] = []
    with getattr(doing, register)(lambda *_: seen.append("fired")):
        doing(leaf(lib, 1.0)).backward()
    doing(leaf(lib, 1.0)).backward()
    assert seen == ["fired"]


@BOTH
def test_a_handle_outlives_its_module(lib: Any, register: str) -> None:
    doing = module(lib, lambda x: x * 2)
    handle = getattr(doing, register)(lambda *_: None)
    alive = weakref.ref(doing)
    del doing
    gc.collect()
    assert alive() is None
    handle.remove()


@BOTH
def test_a_copied_module_has_hooks_of_its_own(lib: Any, register: str) -> None:
    doing = module(lib, lambda x: x * 2)
    seen: list[Any] = []
    handle = getattr(doing, register)(lambda hooked, *_: seen.append(hooked))
    copied = copy.deepcopy(doing)
    handle.remove()
    doing(leaf(lib, 1.0)).backward()
    assert seen == []
    copied(leaf(lib, 1.0)).backward()
    assert len(seen) == 1
    assert seen[0] is copied


# Hooks that come and go: a forward takes the hooks of its time.


@BOTH
def test_a_hook_removed_between_forward_and_backward_fires(lib: Any, register: str) -> None:
    doing = module(lib, lambda x: x * 2)
    seen: list[str] = []
    handle = getattr(doing, register)(lambda *_: seen.append("fired"))
    y = doing(leaf(lib, 1.0))
    handle.remove()
    y.backward()
    assert seen == ["fired"]


@BOTH
def test_a_hook_added_between_forward_and_backward_does_not_fire(lib: Any, register: str) -> None:
    doing = module(lib, lambda x: x * 2)
    seen: list[str] = []
    y = doing(leaf(lib, 1.0))
    getattr(doing, register)(lambda *_: seen.append("first"))
    z = doing(leaf(lib, 1.0))
    getattr(doing, register)(lambda *_: seen.append("second"))
    y.backward()
    assert seen == []
    z.backward()
    assert seen == ["first"]


@BOTH
def test_hooks_that_change_hooks_while_they_run(lib: Any, register: str) -> None:
    doing = module(lib, lambda x: x * 2)
    seen: list[str] = []
    add = getattr(doing, register)

    def adding(*_: Any) -> None:
        seen.append("adding")
        add(lambda *_: seen.append("added"))

    def removing(*_: Any) -> None:
        seen.append("removing")
        last.remove()

    first = add(adding)
    add(removing)
    last = add(lambda *_: seen.append("last"))
    y = doing(leaf(lib, 1.0))
    y.backward(retain_graph=True)
    assert seen == ["adding", "removing", "last"]
    y.backward()
    assert seen == ["adding", "removing", "last"] * 2
    first.remove()
    seen.clear()
    doing(leaf(lib, 1.0)).backward()
    assert seen == ["removing", "added", "added"]


@BOTH
def test_a_hook_registered_while_forward_runs(lib: Any, register: str) -> None:
    seen: list[str] = []

    def forward(x: Any) -> Any:
        getattr(doing, register)(lambda *_: seen.append("inside"))
        return x * 2

    doing = module(lib, forward)
    getattr(doing, register)(lambda *_: seen.append("before"))
    doing(leaf(lib, 1.0)).backward()
    assert seen == ["before"]
    doing(leaf(lib, 1.0)).backward()
    assert seen == ["before"] + ["before", "inside"]


# Several calls.


def test_a_module_called_on_its_own_output(lib: Any) -> None:
    doing = module(lib, lambda x, k: x * k)
    seen = watch(doing)
    doing(doing(doing(leaf(lib, 1.0), 2), 3), 5).backward()
    assert seen == [([5, None], [1]), ([15, None], [5]), ([30, None], [15])]


def test_a_module_called_twice_side_by_side(lib: Any) -> None:
    doing = module(lib, lambda x, k: x * k)
    seen = watch(doing)
    x = leaf(lib, 1.0)
    (doing(x, 2) * 10 + doing(x, 3) * 100).backward()
    assert seen == [([300, None], [100]), ([20, None], [10])]
    assert x.grad.item() == 320


def test_a_layer_that_stands_twice_in_a_sequential(lib: Any) -> None:
    layer = linear(lib, [[3]])
    seen = watch(layer)
    lib.nn.Sequential(layer, layer)(leaf(lib, [[2]])).sum().backward()
    assert seen == [([[[3]]], [[[1]]]), ([[[9]]], [[[3]]])]
    assert layer.weight.grad.tolist() == [[12]]


def test_a_module_that_calls_itself(lib: Any) -> None:
    def forward(x: Any, depth: int) -> Any:
        return doing(x * 2, depth - 1) if depth else x

    doing = module(lib, forward)
    seen = watch(doing)
    doing(leaf(lib, 1.0), 2).backward()
    assert seen == [([1, None], [1]), ([2, None], [1]), ([4, None], [1])]


def test_calls_in_two_graphs(lib: Any) -> None:
    doing = module(lib, lambda x: x * x)
    seen = watch(doing)
    first, second = doing(leaf(lib, 1.0)), doing(leaf(lib, 5.0))
    second.backward()
    first.backward()
    assert seen == [([10], [1]), ([2], [1])]


# Modules inside modules.


def nested(lib: Any) -> Any:
    """Return a Sequential of two Sequentials of two layers each."""
    two: Any = lambda: lib.nn.Sequential(linear(lib, [[2]]), linear(lib, [[3]]))
    return lib.nn.Sequential(two(), two())


def note_names(net: Any, *, full: bool = True, pre: bool = True) -> list[str]:
    """Note the names of modules, the outermost being `net`, as hooks fire."""
    seen: list[str] = []
    for name, each in net.named_modules():
        label = name or "net"
        if full:
            each.register_full_backward_hook(lambda *_, label=label: seen.append(label))
        if pre:
            each.register_full_backward_pre_hook(
                lambda *_, label=label: seen.append(f"pre {label}")
            )
    return seen


def test_the_order_of_nested_modules(lib: Any) -> None:
    net = nested(lib)
    seen = note_names(net, pre=False)
    net(leaf(lib, [[1]])).sum().backward()
    assert seen == ["1.1", "1.0", "1", "0.1", "0.0", "0", "net"]


def test_the_order_of_nested_pre_hooks(lib: Any) -> None:
    net = nested(lib)
    seen = note_names(net, full=False)
    net(leaf(lib, [[1]])).sum().backward()
    assert seen == ["pre net", "pre 1", "pre 1.1", "pre 1.0", "pre 0", "pre 0.1", "pre 0.0"]


def test_the_order_of_both_kinds_in_nested_modules(lib: Any) -> None:
    net = nested(lib)
    seen = note_names(net)
    net(leaf(lib, [[1]])).sum().backward()
    assert seen == [
        "pre net",
        *("pre 1", "pre 1.1", "1.1", "pre 1.0", "1.0", "1"),
        *("pre 0", "pre 0.1", "0.1", "pre 0.0", "0.0", "0"),
        "net",
    ]


def test_the_order_where_the_input_needs_no_grad(lib: Any) -> None:
    """Modules whose inputs need none fire with their outputs: the outer before the inner ones."""
    net = nested(lib)
    seen = note_names(net)
    with pytest.warns(UserWarning, match="input"):
        net(constant(lib, [[1]])).sum().backward()
    assert seen == [
        *("pre net", "net"),
        *("pre 1", "pre 1.1", "1.1", "pre 1.0", "1.0", "1"),
        *("pre 0", "0", "pre 0.1", "0.1", "pre 0.0", "0.0"),
    ]


def test_the_gradients_of_nested_modules(lib: Any) -> None:
    net = nested(lib)
    seen = {name: watch(each) for name, each in net.named_modules()}
    net(leaf(lib, [[1]])).sum().backward()
    assert seen == {
        "": [([[[36]]], [[[1]]])],
        "0": [([[[36]]], [[[6]]])],
        "0.0": [([[[36]]], [[[18]]])],
        "0.1": [([[[18]]], [[[6]]])],
        "1": [([[[6]]], [[[1]]])],
        "1.0": [([[[6]]], [[[3]]])],
        "1.1": [([[[3]]], [[[1]]])],
    }


def test_inner_hooks_work_for_outer_ones(lib: Any) -> None:
    net = nested(lib)
    replace(net[1][0], lambda grads: (grads[0] * 10,))
    replace(net[0][1], lambda grads: (grads[0] * 100,), PRE)
    seen = watch(net), watch(net[0])
    net(leaf(lib, [[1]])).sum().backward()
    assert seen == ([([[[36000]]], [[[1]]])], [([[[36000]]], [[[60]]])])


def test_modules_in_lists_and_dicts(lib: Any) -> None:
    class Net(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.listed = lib.nn.ModuleList([linear(lib, [[2]]), linear(lib, [[3]])])
            self.named = lib.nn.ModuleDict({"last": linear(lib, [[5]])})

        def forward(self, x: Any) -> Any:
            for each in self.listed:
                x = each(x)
            return self.named["last"](x)

    net = Net()
    seen = {
        name: watch(each) for name, each in net.named_modules() if name not in ("listed", "named")
    }
    net(leaf(lib, [[1]])).sum().backward()
    assert seen == {
        "": [([[[30]]], [[[1]]])],
        "listed.0": [([[[30]]], [[[15]]])],
        "listed.1": [([[[15]]], [[[5]]])],
        "named.last": [([[[5]]], [[[1]]])],
    }


def test_activations_have_hooks(lib: Any) -> None:
    found: Any = []
    for layer in (lib.nn.ReLU(), lib.nn.Sigmoid(), lib.nn.Tanh(), lib.nn.SiLU()):
        seen = watch(layer)
        layer(leaf(lib, 0.0)).backward()
        found.extend(seen)
    assert found == [([0], [1]), ([0.25], [1]), ([1], [1]), ([0.5], [1])]


def test_an_embedding_has_hooks(lib: Any) -> None:
    layer = lib.nn.Embedding(3, 2).double()
    seen = watch(layer)
    with pytest.warns(UserWarning, match="input"):
        layer(lib.tensor([2, 2])).sum().backward()
    assert seen == [([None], [[[1, 1], [1, 1]]])]
    assert layer.weight.grad.tolist() == [[0, 0], [0, 0], [2, 2]]


def test_a_loss_has_hooks(lib: Any) -> None:
    loss = lib.nn.MSELoss()
    seen = watch(loss)
    loss(leaf(lib, 1, 2), constant(lib, 0, 0)).backward()
    assert seen == [([[1, 2], [0, 0]], [1])]


# Higher derivatives.


def test_hooks_in_a_graph_of_the_gradients(lib: Any) -> None:
    """They fire with the first derivative; the second goes past the output."""
    doing = module(lib, lambda x: x * x * x)
    seen, before = watch(doing), watch_before(doing)
    x = leaf(lib, 1, 2)
    (first,) = lib.autograd.grad(doing(x).sum(), x, create_graph=True)
    (second,) = lib.autograd.grad(first.sum(), x, create_graph=True)
    (third,) = lib.autograd.grad(second.sum(), x)
    assert lists([first, second, third]) == [[3, 12], [6, 12], [6, 6]]
    assert seen == [([[3, 12]], [[1, 1]])]
    assert before == [[[1, 1]]]


def test_gradients_in_hooks_require_grad_in_such_a_graph(lib: Any) -> None:
    doing = module(lib, lambda x: x * x)
    found: Any = []
    doing.register_full_backward_hook(lambda _, i, o: found.extend([i[0], o[0]]))
    x = leaf(lib, 3.0)
    lib.autograd.grad(doing(x), x, create_graph=True)
    assert [each.requires_grad for each in found] == [True, False]
    assert lists(lib.autograd.grad(found[0], x)) == [2]


def test_the_result_of_a_hook_is_differentiated(lib: Any) -> None:
    doing = module(lib, lambda x: x * x * x)
    replace(doing, lambda grads: (grads[0] * grads[0],))
    x = leaf(lib, 1, 2)
    (first,) = lib.autograd.grad(doing(x).sum(), x, create_graph=True)
    (second,) = lib.autograd.grad(first.sum(), x)
    assert lists([first, second]) == [[9, 144], [36, 288]]


def test_the_result_of_a_pre_hook_is_differentiated(lib: Any) -> None:
    doing = module(lib, lambda x: x * x * x)
    replace(doing, lambda grads: (grads[0] * 10,), PRE)
    x = leaf(lib, 1, 2)
    (first,) = lib.autograd.grad(doing(x).sum(), x, create_graph=True)
    (second,) = lib.autograd.grad(first.sum(), x)
    assert lists([first, second]) == [[30, 120], [60, 120]]


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
def test_a_penalty_of_gradients(lib: Any) -> None:
    layer = linear(lib, [[2, 3]])
    seen = watch(layer)
    x = leaf(lib, [[1, 1]])
    y = (layer(x) ** 2).sum()
    y.backward(create_graph=True)
    assert seen == [([[[20, 30]]], [[[10]]])]
    lib.autograd.grad((x.grad**2).sum(), layer.weight)


# Beside hooks of tensors and nodes.


def test_the_order_of_hooks_of_modules_tensors_and_nodes(lib: Any) -> None:
    seen: Any = []
    note: Callable[[str], Any] = lambda name: lambda grad: seen.append((name, grad.item()))

    def forward(x: Any) -> Any:
        x.register_hook(note("received"))
        y = x * 2
        y.register_hook(note("returned"))
        return y

    doing = module(lib, forward)
    x = leaf(lib, 1.0)
    h = x * 1
    x.register_hook(note("leaf"))
    h.register_hook(note("input before"))
    doing.register_full_backward_pre_hook(
        lambda _, o: seen.append(("pre", o[0].item())) or (o[0] * 100,)
    )
    doing.register_full_backward_hook(
        lambda _, i, o: seen.append(("full", i[0].item(), o[0].item())) or (i[0] * 10,)
    )
    y = doing(h)
    h.register_hook(note("input after"))
    y.register_hook(note("output"))
    y.grad_fn.register_prehook(lambda o: seen.append(("node before", o[0].item())))
    y.grad_fn.register_hook(lambda i, o: seen.append(("node after", i[0].item(), o[0].item())))
    h.retain_grad()
    y.retain_grad()
    y.backward()
    assert seen == [
        ("output", 1),
        ("node before", 1),
        ("pre", 1),
        ("node after", 100, 1),
        ("returned", 100),
        ("received", 200),
        ("full", 200, 100),
        ("input before", 2000),
        ("input after", 2000),
        ("leaf", 2000),
    ]
    assert lists([x.grad, h.grad, y.grad]) == [2000, 2000, 1]


def test_a_hook_of_the_output_comes_before(lib: Any) -> None:
    doing = module(lib, lambda x: x * 2)
    seen, before = watch(doing), watch_before(doing)
    y = doing(leaf(lib, 1.0))
    y.register_hook(lambda grad: grad * 7)
    y.backward()
    assert before == [[7]]
    assert seen == [([14], [7])]


def test_a_hook_of_the_input_comes_after(lib: Any) -> None:
    doing = module(lib, lambda x: x * 2)
    seen = watch(doing)
    x = leaf(lib, 1.0)
    x.register_hook(lambda grad: grad * 7)
    doing(x).backward()
    assert seen == [([2], [1])]
    assert x.grad.item() == 14


def test_a_hook_after_accumulation_comes_last(lib: Any) -> None:
    doing = module(lib, lambda x: x * 2)
    seen: list[str] = []
    x = leaf(lib, 1.0)
    x.register_post_accumulate_grad_hook(lambda _: seen.append("accumulated"))
    doing.register_full_backward_hook(lambda *_: seen.append("full"))
    doing(x).backward()
    assert seen == ["full", "accumulated"]


def test_a_retained_gradient_of_the_output(lib: Any) -> None:
    doing = module(lib, lambda x: x * 2)
    seen = watch(doing)
    y = doing(leaf(lib, 1, 2))
    y.retain_grad()
    (y * y).sum().backward()
    assert y.grad.tolist() == [4, 8]
    assert seen == [([[8, 16]], [[4, 8]])]


def test_a_retained_gradient_of_the_input_is_the_one_replaced(lib: Any) -> None:
    doing = module(lib, lambda x: x * 2)
    replace(doing, lambda grads: (grads[0] * 10,))
    h = leaf(lib, 1, 2) * 1
    h.retain_grad()
    doing(h).sum().backward()
    assert h.grad.tolist() == [20, 20]


def test_hooks_of_saved_tensors_beside_hooks_of_modules(lib: Any) -> None:
    packed: Any = []
    doing = module(lib, lambda x: x * x)
    seen = watch(doing)
    with lib.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t * 1, lambda t: t):
        y = doing(leaf(lib, 3.0))
    y.backward()
    assert lists(packed) == [3, 3]
    assert seen == [([6], [1])]


def test_hooks_in_anomaly_mode(lib: Any) -> None:
    doing = module(lib, lambda x: x * 2)
    seen, before = watch(doing), watch_before(doing)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with lib.autograd.set_detect_anomaly(True):
            doing(leaf(lib, 1.0)).backward()
    assert seen == [([2], [1])]
    assert before == [[1]]


# Hooks that do more.


class MineError(Exception):
    pass


@BOTH
def test_an_error_of_a_hook_comes_out_of_backward(lib: Any, register: str) -> None:
    doing = module(lib, lambda x: x * 2)
    seen: list[str] = []

    def raising(*_: Any) -> None:
        seen.append("raising")
        raise MineError

    getattr(doing, register)(raising)
    getattr(doing, register)(lambda *_: seen.append("later"))
    x = leaf(lib, 1.0)
    y = doing(x)
    for _ in range(2):
        with pytest.raises(MineError):
            y.backward(retain_graph=True)
    assert seen == ["raising"] * 2
    assert x.grad is None
    assert lib.is_grad_enabled()


@BOTH
def test_a_backward_after_a_hook_raised(lib: Any, register: str) -> None:
    doing = module(lib, lambda x: x * 2)
    raising = [True]

    def hook(*_: Any) -> None:
        if raising.pop():
            raise MineError
        raising.append(False)

    getattr(doing, register)(hook)
    seen = watch(doing)
    x = leaf(lib, 1.0)
    y = doing(x)
    with pytest.raises(MineError):
        y.backward(retain_graph=True)
    raising.append(False)
    y.backward()
    assert seen == [([2], [1])]
    assert x.grad.item() == 2


@BOTH
def test_a_non_callable_raises_at_the_latest_in_backward(lib: Any, register: str) -> None:
    doing = module(lib, lambda x: x * 2)
    with raises(TypeError):
        getattr(doing, register)(3)
        doing(leaf(lib, 1.0)).backward()


@pytest.mark.parametrize("arguments", [0, 1, 2, 4])
def test_a_hook_takes_three_arguments(lib: Any, arguments: int) -> None:
    doing = module(lib, lambda x: x * 2)
    hooks: dict[int, Any] = {
        0: lambda: None,
        1: lambda a: None,
        2: lambda a, b: None,
        4: lambda a, b, c, d: None,
    }
    doing.register_full_backward_hook(hooks[arguments])
    with raises(TypeError):
        doing(leaf(lib, 1.0)).backward()


def test_a_hook_may_run_another_backward(lib: Any) -> None:
    doing = module(lib, lambda x: x * 2)
    w = leaf(lib, 3.0)

    def hook(_: Any, grad_input: Any, grad_output: Any) -> Any:
        with lib.enable_grad():
            (w * w).backward()
        return (grad_input[0] * w.grad,)

    doing.register_full_backward_hook(hook)
    x = leaf(lib, 1.0)
    doing(x).backward()
    assert x.grad.item() == 12


@BOTH
def test_a_hook_may_call_its_module(lib: Any, register: str) -> None:
    doing = module(lib, lambda x: x * 2)
    seen: list[Any] = []

    def hook(hooked: Any, *_: Any) -> None:
        seen.append("fired")
        if len(seen) < 3:
            with lib.enable_grad():
                inner = leaf(lib, 1.0)
                hooked(inner).backward()
                seen.append(inner.grad.item())

    getattr(doing, register)(hook)
    x = leaf(lib, 1.0)
    doing(x).backward()
    assert seen == ["fired", "fired", "fired", 2, 2]
    assert x.grad.item() == 2


def test_a_graph_keeps_its_module(lib: Any) -> None:
    doing = module(lib, lambda x: x * 2)
    seen: list[str] = []
    doing.register_full_backward_hook(lambda hooked, *_: seen.append(type(hooked).__name__))
    alive = weakref.ref(doing)
    y = doing(leaf(lib, 1.0))
    del doing
    gc.collect()
    assert alive() is not None
    y.backward()
    assert seen == ["Doing"]
    del y
    gc.collect()
    assert alive() is None


@BOTH
def test_a_module_does_not_keep_the_graph(lib: Any, register: str) -> None:
    class Witness:
        pass

    doing = module(lib, lambda x: x * 2)
    getattr(doing, register)(lambda *_: None)
    witness = Witness()
    alive = weakref.ref(witness)
    y = doing(leaf(lib, 1.0))
    y.grad_fn.metadata["witness"] = witness
    y.backward()
    del y, witness
    gc.collect()
    assert alive() is None


# Threads.


def test_threads_with_modules_of_their_own(lib: Any, switch_often: None) -> None:
    def train(factor: int) -> Any:
        doing = module(lib, lambda x: x * factor)
        seen, before = watch(doing), watch_before(doing)
        x = leaf(lib, 1.0)
        for _ in range(20):
            doing(x).backward()
        return seen, before, x.grad.item()

    found = results(together(*[partial(train, factor) for factor in range(1, 9)]))
    for factor, each in enumerate(found, 1):
        assert each == ([([factor], [1])] * 20, [[1]] * 20, 20 * factor)


def test_threads_that_share_a_module(lib: Any, switch_often: None) -> None:
    """Each call has its own hooks: one thread's values do not reach another."""
    doing = module(lib, lambda x, factor: x * factor)
    seen: list[Any] = []

    def hook(_: Any, grad_input: Any, grad_output: Any) -> Any:
        seen.append((threading.get_ident(), grad_input[0].item(), grad_output[0].item()))
        return (grad_input[0] * 2, None)

    doing.register_full_backward_hook(hook)
    doing.register_full_backward_pre_hook(lambda _, grads: (grads[0] * 10,))

    def train(factor: int) -> Any:
        for _ in range(20):
            x = leaf(lib, 1.0)
            doing(x, factor).backward()
            assert x.grad.item() == 20 * factor
        return threading.get_ident()

    for factor, ident in enumerate(results(together(*[partial(train, k) for k in range(8)]))):
        assert seen.count((ident, 10.0 * factor, 10.0)) == 20
    assert len(seen) == 160


def test_threads_that_share_a_net(lib: Any, switch_often: None) -> None:
    net = nested(lib)
    counts = {name: watch(each) for name, each in net.named_modules()}

    def train() -> Any:
        x = leaf(lib, [[1]])
        for _ in range(5):
            net(x).sum().backward()
        return x.grad.tolist()

    assert results(together(*[train] * 8)) == [[[180]]] * 8
    assert counts[""] == [([[[36]]], [[[1]]])] * 40
    assert counts["0.1"] == [([[[18]]], [[[6]]])] * 40
    assert net[0][0].weight.grad.tolist() == [[18 * 40]]


def test_backward_in_another_thread_than_forward(lib: Any) -> None:
    doing = module(lib, lambda x: x * 2)
    seen: list[int] = []
    doing.register_full_backward_hook(lambda *_: seen.append(threading.get_ident()))
    y = doing(leaf(lib, 1.0))
    (ident,) = results(together(lambda: y.backward() or threading.get_ident()))
    assert seen == [ident]
    assert ident != threading.get_ident()


def test_hooks_are_added_and_removed_while_threads_run(lib: Any, switch_often: None) -> None:
    """The permanent hook fires every time; adding and removing others raises nothing."""
    doing = module(lib, lambda x: x * 2)
    seen = watch(doing)
    done = threading.Event()

    def train() -> Any:
        x = leaf(lib, 1.0)
        for _ in range(30):
            doing(x).backward()
        return x.grad.item()

    def change() -> Any:
        while not done.is_set():
            handles = [getattr(doing, each)(lambda *_: None) for each in (FULL, PRE)]
            for each in handles:
                each.remove()

    changing = threading.Thread(target=change, daemon=True)
    changing.start()
    try:
        assert results(together(*[train] * 6)) == [60] * 6
    finally:
        done.set()
        changing.join(60)
    assert seen == [([2], [1])] * 180
