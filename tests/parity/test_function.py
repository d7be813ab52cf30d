"""User-defined Functions on both libraries: forward, ctx and saved tensors."""

import gc
from typing import Any
from weakref import ref

import pytest

from tests.parity.conftest import constant, leaf, lists
from tests.parity.functions import cube, differs, double, log_and, make

# forward: its styles, arguments and results


def test_both_styles(lib: Any) -> None:
    seen: list[Any] = []

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        seen.append((inputs[0] is x, inputs[1], output.requires_grad, output.grad_fn))
        ctx.save_for_backward(inputs[0])
        ctx.scale = inputs[1]

    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad * 2 * x * ctx.scale, None

    def forward(ctx: Any, x: Any, scale: Any) -> Any:
        setup(ctx, (x, scale), x)
        return x * x * scale

    x = leaf(lib, 2, 3)
    for function in (
        make(lib, forward, backward),
        make(lib, lambda x, scale: x * x * scale, backward, setup),
    ):
        y = function.apply(x, 5)
        assert y.tolist() == [20, 45]
        assert lib.autograd.grad(y.sum(), x)[0].tolist() == [20, 30]
    assert seen[1] == (True, 5, False, None)


def test_setup_context_gets_a_tuple_of_outputs(lib: Any) -> None:
    seen: list[Any] = []
    function = make(
        lib,
        lambda x: (x * 2, 7, x * 3),
        lambda ctx, *grads: grads[0] * 2 + grads[2] * 3,
        lambda ctx, inputs, output: seen.append((type(output), len(output), output[1])),
    )
    x = leaf(lib, [1])
    a, seven, b = function.apply(x)
    (a + b).sum().backward()
    assert seen == [(tuple, 3, 7)]
    assert seven == 7
    assert x.grad.tolist() == [5]


def test_keyword_arguments_reach_forward(lib: Any) -> None:
    function = make(lib, lambda ctx, x, scale=2: x * scale, lambda ctx, grad: grad * 3)
    y = function.apply(leaf(lib, [1]), scale=3)
    assert y.tolist() == [3]
    assert y.requires_grad


def test_setup_context_gets_defaults_and_keywords(lib: Any) -> None:
    seen: list[Any] = []
    function = make(
        lib,
        lambda x, scale=2: x * scale,
        lambda ctx, grad: (grad * 2, None),
        lambda ctx, inputs, output: seen.append(inputs[1:]),
    )
    x = leaf(lib, [1])
    function.apply(x).backward()
    assert function.apply(x, scale=5).tolist() == [5]
    assert seen == [(2,), (5,)]
    assert x.grad.tolist() == [2]


@pytest.mark.parametrize("value", [None, 3, "text", [1], {}, (), [[]]])
def test_a_non_tensor_is_returned_as_it_is(lib: Any, value: Any) -> None:
    assert make(lib, lambda ctx, x: value).apply(leaf(lib, [1])) is value if value != () else True
    result = make(lib, lambda ctx, x: (x * 2, value)).apply(leaf(lib, [1]))
    assert result[0].requires_grad
    assert result[1] is value


def test_outputs_are_numbered_with_non_tensors(lib: Any) -> None:
    seen: list[Any] = []
    function = make(
        lib,
        lambda ctx, x: (x * 3, None, "text", x * 4),
        lambda ctx, *grads: log_and(grads[0] * 3, seen, lists(grads)),
    )
    x = leaf(lib, [1])
    a, _, _, b = function.apply(x)
    assert (a.output_nr, b.output_nr) == (0, 3)
    a.sum().backward()
    assert seen == [[[1], None, None, [0]]]
    assert x.grad.tolist() == [3]


def test_tensors_in_lists_are_not_followed(lib: Any) -> None:
    x = leaf(lib, [1])
    assert not make(lib, lambda ctx, values: values[0] * 2).apply([x]).requires_grad
    results = make(lib, lambda ctx, x: [x * 2, x]).apply(x)
    assert isinstance(results, list)
    assert not results[0].requires_grad


def test_without_arguments(lib: Any) -> None:
    assert not make(lib, lambda ctx: constant(lib, [1])).apply().requires_grad


def test_without_tensors_that_require_grad(lib: Any) -> None:
    seen: list[Any] = []
    function = make(lib, lambda ctx, x: log_and(x * 2, seen, ctx.needs_input_grad))
    assert not function.apply(constant(lib, [1])).requires_grad
    assert function.apply(lib.tensor([1])).grad_fn is None
    assert seen == [(False,), (False,)]


def test_forward_sees_the_arguments_themselves(lib: Any) -> None:
    x = leaf(lib, [1])
    seen: list[Any] = []
    function = make(lib, lambda ctx, y: log_and(y * 1, seen, (y is x, y.requires_grad)))
    function.apply(x)
    assert seen == [(True, True)]


def test_attributes_of_outputs(lib: Any) -> None:
    function = make(lib, lambda ctx, x: (x * 1, x * 2), lambda ctx, g, h: g + 2 * h)
    a, b = function.apply(leaf(lib, [1]))
    assert a.grad_fn is b.grad_fn
    assert not a.is_leaf
    assert (a.output_nr, b.output_nr) == (0, 1)
    assert (a._version, a._is_view()) == (0, False)
    assert isinstance(a.grad_fn, lib.autograd.graph.Node)


def test_subclasses(lib: Any) -> None:
    base = cube(lib)

    class Scaled(base):  # type: ignore[misc, valid-type]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return base.forward(ctx, x) * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return base.backward(ctx, grad) * 2

    x = leaf(lib, [2])
    y = Scaled.apply(x)
    y.backward()
    assert (y.tolist(), x.grad.tolist()) == ([16], [24])
    assert y.grad_fn.name() == "ScaledBackward"


def test_methods_need_not_be_static(lib: Any) -> None:
    class Triple(lib.autograd.Function):  # type: ignore[misc]
        def forward(ctx: Any, x: Any) -> Any:
            return x * 3

        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 3

    x = leaf(lib, [1])
    Triple.apply(x).backward()
    assert x.grad.tolist() == [3]


def test_parameters_and_complex_numbers_and_nothing(lib: Any) -> None:
    parameter = lib.nn.Parameter(lib.ones(2))
    assert not isinstance(double(lib).apply(parameter), lib.nn.Parameter)
    z = lib.tensor([1 + 2j], requires_grad=True)
    make(lib, lambda ctx, z: z * z, lambda ctx, grad: grad * 2).apply(z).real.sum().backward()
    assert z.grad.tolist() == [2 + 0j]
    none = lib.zeros(0, 3, requires_grad=True)
    cube(lib).apply(none).sum().backward()
    assert tuple(none.grad.shape) == (0, 3)


# Saved tensors


def test_saved_values(lib: Any) -> None:
    seen: list[Any] = []

    def forward(ctx: Any, x: Any, c: Any) -> Any:
        y, between = x * 1, x * 2
        ctx.save_for_backward(x, c, y, between, None, x)
        return y

    def backward(ctx: Any, grad: Any) -> Any:
        x_, c_, y_, between, none, again = ctx.saved_tensors
        seen.append((x_ is x, c_ is c, y_ is y, none, again is x))
        seen.append((between.tolist(), between.requires_grad, between.grad_fn))
        seen.append((y_.requires_grad, y_.is_leaf, y_.grad_fn is y.grad_fn))
        return grad, None

    x, c = leaf(lib, [1]), constant(lib, [2])
    y = make(lib, forward, backward).apply(x, c)
    y.sum().backward()
    assert seen[0] == (True, True, False, None, True)
    assert seen[1] == ([2], False, None)
    assert seen[2] == (True, False, True)


def test_saved_tensors_have_their_history(lib: Any) -> None:
    seen: list[Any] = []

    def backward(ctx: Any, grad: Any) -> Any:
        (y_,) = ctx.saved_tensors
        seen.append((y_ is y, y_.grad_fn is y.grad_fn))
        return grad * 2 * y_

    def forward(ctx: Any, y: Any) -> Any:
        ctx.save_for_backward(y)
        return y * y

    x = leaf(lib, [3])
    y = x * 1
    make(lib, forward, backward).apply(y).backward()
    assert seen == [(True, True)]
    assert x.grad.tolist() == [6]


def test_the_last_save_counts(lib: Any) -> None:
    seen: list[Any] = []

    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        ctx.save_for_backward(x * 2, x * 3)
        return x * 1

    function = make(lib, forward, lambda ctx, grad: log_and(grad, seen, lists(ctx.saved_tensors)))
    function.apply(leaf(lib, [1])).backward()
    assert seen == [[[2], [3]]]


@pytest.mark.parametrize("value", [3, "text", [1.0]])
def test_only_tensors_are_saved(lib: Any, value: Any) -> None:
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x, value)
        return x * 1

    with pytest.raises(TypeError):
        make(lib, forward).apply(leaf(lib, [1]))


def test_nothing_saved(lib: Any) -> None:
    seen: list[Any] = []
    function = make(
        lib, lambda ctx, x: x * 1, lambda ctx, grad: log_and(grad, seen, ctx.saved_tensors)
    )
    function.apply(leaf(lib, [1])).backward()
    assert seen == [()]
    x = leaf(lib, [1])
    y = double(lib).apply(x)
    y.backward()
    y.backward()  # There is nothing that could have been freed.
    assert x.grad.tolist() == [4]


def test_only_none_saved(lib: Any) -> None:
    seen: list[Any] = []

    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(None)
        return x * 1

    function = make(lib, forward, lambda ctx, grad: log_and(grad, seen, ctx.saved_tensors))
    function.apply(leaf(lib, [1])).backward()
    assert seen == [(None,)]


def test_saved_tensors_are_freed_by_backward(lib: Any) -> None:
    x = leaf(lib, [2])
    y = cube(lib).apply(x)
    assert lists(y.grad_fn.saved_tensors) == [[2]]
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.tolist() == [24]
    with pytest.raises(RuntimeError):
        y.backward()
    with pytest.raises(RuntimeError):
        y.grad_fn.saved_tensors


def test_saved_tensors_are_held_until_backward(lib: Any) -> None:
    def forward(ctx: Any, x: Any, c: Any) -> Any:
        ctx.save_for_backward(x, c)
        return x * c

    def backward(ctx: Any, grad: Any) -> Any:
        return grad * ctx.saved_tensors[1], None

    c = constant(lib, [1])
    y = make(lib, forward, backward).apply(leaf(lib, [1]), c)
    held = ref(c)
    del c
    assert held() is not None
    y.backward()
    gc.collect()
    assert held() is None


def test_hooks_on_one_saved_tensor(lib: Any) -> None:
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x, None, x * 3)
        return x * x

    y = make(lib, forward, lambda ctx, grad: grad * 2 * ctx.saved_tensors[0]).apply(leaf(lib, [2]))
    raw = y.grad_fn._raw_saved_tensors
    assert len(raw) == 3
    log: list[str] = []
    raw[0].register_hooks(
        lambda tensor: log_and(tensor.detach().clone(), log, "pack"),
        lambda tensor: log_and(tensor * 10, log, "unpack"),
    )
    assert lists(y.grad_fn.saved_tensors) == [[20], None, [6]]
    assert log == ["pack", "unpack"]


def test_saved_tensors_pass_through_hooks(lib: Any) -> None:
    log: list[Any] = []
    with lib.autograd.graph.saved_tensors_hooks(
        lambda tensor: log_and(tensor.detach() * 10, log, ("pack", tensor.tolist())),
        lambda tensor: log_and(tensor, log, ("unpack", tensor.tolist())),
    ):
        x = leaf(lib, 2, 3)
        y = cube(lib).apply(x)
    y.sum().backward()
    assert log == [("pack", [2, 3]), ("unpack", [20, 30])]
    assert x.grad.tolist() == [1200, 2700]


@pytest.mark.parametrize("which", ["input", "output", "between", "view"])
def test_changes_of_saved_tensors_are_noticed(lib: Any, which: str) -> None:
    made: dict[str, Any] = {}

    def forward(ctx: Any, x: Any) -> Any:
        made["between"], made["view"] = x * x, x[:1]
        made["output"] = made["between"] * x
        ctx.save_for_backward({**made, "input": x}[which])
        return made["output"]

    def backward(ctx: Any, grad: Any) -> Any:
        return grad * ctx.saved_tensors[0]

    x = leaf(lib, 2, 3)
    made["input"] = x * 1
    y = make(lib, forward, backward).apply(made["input"])
    changed = {**made, "output": y}[which]
    with lib.no_grad():
        changed.mul_(2)
    with pytest.raises(RuntimeError, match=r"in.?place"):
        y.sum().backward()


def test_a_saved_output_gives_second_derivatives(lib: Any) -> None:
    def forward(ctx: Any, x: Any) -> Any:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    x = leaf(lib, 0, 1)
    y = make(lib, forward, lambda ctx, grad: grad * ctx.saved_tensors[0]).apply(x)
    (first,) = lib.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = lib.autograd.grad(first.sum(), x)
    assert first.tolist() == second.tolist() == y.tolist()


def test_a_saved_intermediate_is_a_constant(lib: Any) -> None:
    def forward(ctx: Any, x: Any) -> Any:
        between = x * x
        ctx.save_for_backward(between)
        return between * x

    x = leaf(lib, [2])
    y = make(lib, forward, lambda ctx, grad: grad * 3 * ctx.saved_tensors[0]).apply(x)
    (first,) = lib.autograd.grad(y, x, create_graph=True)
    assert (first.tolist(), first.requires_grad) == ([12], False)


def test_the_same_argument_twice(lib: Any) -> None:
    def forward(ctx: Any, a: Any, b: Any) -> Any:
        ctx.save_for_backward(a, b)
        return a * b

    def backward(ctx: Any, grad: Any) -> Any:
        a, b = ctx.saved_tensors
        return grad * b, grad * a

    x = leaf(lib, [3])
    make(lib, forward, backward).apply(x, x).backward()
    assert x.grad.tolist() == [6]


# ctx: attributes, needs_input_grad, differentiable outputs


def test_attributes_of_ctx(lib: Any) -> None:
    def forward(ctx: Any, x: Any) -> Any:
        ctx.scale = 3
        ctx.inputs = x
        return x * ctx.scale

    x = leaf(lib, [2])
    y = make(lib, forward, lambda ctx, grad: grad * ctx.scale * ctx.inputs).apply(x)
    assert y.grad_fn.scale == 3
    assert not hasattr(y.grad_fn, "other")
    y.backward()
    assert x.grad.tolist() == [6]


def test_attributes_that_were_not_set(lib: Any) -> None:
    y = make(lib, lambda ctx, x: x * 1, lambda ctx, grad: ctx.scale).apply(leaf(lib, [2]))
    with pytest.raises(AttributeError, match="scale"):
        y.backward()


@differs("attributes set on grad_fn are not seen through ctx")
def test_attributes_set_on_the_node_reach_ctx(lib: Any) -> None:
    x = leaf(lib, [1])
    y = make(lib, lambda ctx, x: x * 1, lambda ctx, grad: grad * ctx.scale).apply(x)
    y.grad_fn.scale = 4
    y.backward()
    assert x.grad.tolist() == [4]


@differs("ctx and its node are two objects")
def test_ctx_is_the_node(lib: Any) -> None:
    kept: list[Any] = []
    y = make(lib, lambda ctx, x: log_and(x * 1, kept, ctx)).apply(leaf(lib, [1]))
    assert kept[0] is y.grad_fn


def test_ctx_is_one_object_and_one_for_each_call(lib: Any) -> None:
    kept: list[Any] = []
    function = make(
        lib,
        lambda ctx, x: log_and(x * 1, kept, ctx),
        lambda ctx, grad: log_and(grad, kept, ctx),
    )
    x = leaf(lib, [1])
    first, second = function.apply(x), function.apply(x)
    first.backward()
    assert kept[0] is kept[2]
    assert kept[0] is not kept[1]
    assert first.grad_fn is not second.grad_fn


def test_ctx_has_the_attributes_of_its_node(lib: Any) -> None:
    seen: list[Any] = []

    def forward(ctx: Any, x: Any) -> Any:
        ctx.metadata["forward"] = 1
        return x * 1

    def backward(ctx: Any, grad: Any) -> Any:
        seen.append((ctx.name(), len(ctx.next_functions), dict(ctx.metadata)))
        return grad

    y = make(lib, forward, backward).apply(leaf(lib, [1]))
    y.grad_fn.metadata["later"] = 2
    y.backward()
    assert seen == [("CustomBackward", 1, {"forward": 1, "later": 2})]
    assert y.grad_fn.metadata == {"forward": 1, "later": 2}


def test_needs_input_grad(lib: Any) -> None:
    seen: list[Any] = []

    def forward(ctx: Any, *inputs: Any) -> Any:
        return log_and(inputs[0] * 1, seen, ctx.needs_input_grad)

    def backward(ctx: Any, grad: Any) -> Any:
        return log_and((grad, None, None, None, None), seen, ctx.needs_input_grad)

    function = make(lib, forward, backward)
    x, c = leaf(lib, [1]), constant(lib, [1])
    y = function.apply(x, c, 3, None, lib.tensor([1]))
    y.backward()
    with lib.no_grad():
        function.apply(x, c)
    assert seen == [(True,) + (False,) * 4] * 2 + [(True, False)]
    assert y.grad_fn.needs_input_grad == (True,) + (False,) * 4


def test_needs_input_grad_is_of_forward_and_not_of_one_backward(lib: Any) -> None:
    seen: list[Any] = []
    function = make(
        lib,
        lambda a, b: a * b,
        lambda ctx, grad: log_and((grad * 2, grad * 3), seen, ctx.needs_input_grad),
        lambda ctx, inputs, output: seen.append(ctx.needs_input_grad),
    )
    a, b = leaf(lib, [1]), leaf(lib, [2])
    y = function.apply(a, b)
    assert lists(lib.autograd.grad(y, b, retain_graph=True)) == [[3]]
    y.backward(inputs=[a])
    assert (a.grad.tolist(), b.grad) == ([2], None)
    assert seen == [(True, True)] * 3


def test_mark_non_differentiable(lib: Any) -> None:
    seen: list[Any] = []

    def forward(ctx: Any, x: Any) -> Any:
        a, b = x * 2, x * 3
        ctx.mark_non_differentiable(b)
        return a, b

    def backward(ctx: Any, *grads: Any) -> Any:
        return log_and(grads[0] * 2, seen, lists(grads))

    x = leaf(lib, 1, 2)
    a, b = make(lib, forward, backward).apply(x)
    assert (b.requires_grad, b.grad_fn, b.is_leaf) == (False, None, True)
    (a + b).sum().backward()
    assert seen == [[[1, 1], [0, 0]]]
    assert x.grad.tolist() == [2, 2]


def test_mark_non_differentiable_in_other_ways(lib: Any) -> None:
    def all_outputs(ctx: Any, x: Any) -> Any:
        y = x * 3
        ctx.mark_non_differentiable(y)
        return y

    def no_output(ctx: Any, x: Any) -> Any:
        ctx.mark_non_differentiable(x * 3)
        return x * 2

    def last_call(ctx: Any, x: Any) -> Any:
        a, b = x * 2, x * 3
        ctx.mark_non_differentiable(a)
        ctx.mark_non_differentiable(b)
        return a, b

    def its_input(ctx: Any, x: Any) -> Any:
        ctx.mark_non_differentiable(x)
        return x, x * 2

    x = leaf(lib, [1])
    y = make(lib, all_outputs).apply(x)
    assert (y.requires_grad, y.grad_fn) == (False, None)
    assert make(lib, no_output).apply(x).requires_grad
    assert [each.requires_grad for each in make(lib, last_call).apply(x)] == [True, False]
    for given in (x, x * 1):
        a, b = make(lib, its_input).apply(given)
        assert (a is given, a.requires_grad, b.requires_grad) == (False, False, True)
        assert given.requires_grad


def test_integers_are_not_differentiable(lib: Any) -> None:
    seen: list[Any] = []
    function = make(
        lib,
        lambda ctx, x: (x * 2, x.long()),
        lambda ctx, *grads: log_and(grads[0] * 2, seen, [(g.dtype, g.tolist()) for g in grads]),
    )
    a, b = function.apply(leaf(lib, 1, 2))
    a.sum().backward()
    assert not b.requires_grad
    assert seen == [[(lib.float64, [1, 1]), (lib.int64, [0, 0])]]
    assert make(lib, lambda ctx, x: x.long()).apply(leaf(lib, [1])).grad_fn is None


@pytest.mark.parametrize("value", [True, False, None])
def test_set_materialize_grads(lib: Any, value: bool | None) -> None:
    seen: list[Any] = []

    def forward(ctx: Any, x: Any) -> Any:
        if value is not None:
            ctx.set_materialize_grads(value)
        return x * 2, x.reshape(1, -1) * 3, x.float()

    def backward(ctx: Any, *grads: Any) -> None:
        seen.append(
            [
                None if each is None else (tuple(each.shape), each.dtype, each.tolist())
                for each in grads
            ]
        )

    x = leaf(lib, 1, 2)
    make(lib, forward, backward).apply(x)[1].sum().backward()
    given: Any = ((1, 2), lib.float64, [[1, 1]])
    missing: list[Any] = [((2,), lib.float64, [0, 0]), ((2,), lib.float32, [0, 0])]
    assert seen == [[None, given, None] if value is False else [missing[0], given, missing[1]]]
    assert x.grad is None


@pytest.mark.parametrize("materialize", [True, False])
def test_nodes_run_where_no_gradient_arrives(lib: Any, materialize: bool) -> None:
    seen: list[Any] = []

    def forward(ctx: Any, x: Any) -> Any:
        ctx.set_materialize_grads(materialize)
        return x * 1

    first = make(lib, forward, lambda ctx, grad: log_and(grad, seen, grad is None))
    second = make(lib, lambda ctx, x: x * 1, lambda ctx, grad: None)
    x = leaf(lib, 1, 2)
    second.apply(first.apply(x)).sum().backward()
    second.apply(first.apply(x) * 2).sum().backward()  # A built-in operation hands it on.
    assert seen == [not materialize] * 2
    assert x.grad is None if not materialize else x.grad.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("mark_dirty", RuntimeError),
        ("mark_non_differentiable", RuntimeError),
        ("set_materialize_grads", TypeError),
    ],
)
def test_arguments_of_ctx_methods(lib: Any, method: str, error: type[Exception]) -> None:
    def forward(ctx: Any, x: Any) -> Any:
        getattr(ctx, method)(3)
        return x * 1

    with pytest.raises(error):
        make(lib, forward).apply(leaf(lib, [1]))


def test_save_for_forward(lib: Any) -> None:
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_forward(x)
        return x * 2

    assert make(lib, forward).apply(leaf(lib, [1])).tolist() == [2]
