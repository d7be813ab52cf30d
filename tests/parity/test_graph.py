"""The graph: recording, leaves, lifetimes."""

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from tests.parity.conftest import constant, leaf, lists, raises


class Witness:
    """Something a weak reference can watch."""


# Recording.


def test_a_result_has_a_grad_fn_and_a_leaf_has_none(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * x
    assert x.grad_fn is None
    assert x.is_leaf
    assert y.grad_fn is not None
    assert not y.is_leaf
    assert y.requires_grad
    assert isinstance(y.grad_fn, lib.autograd.graph.Node)


def test_an_operation_is_recorded_only_if_an_input_requires_grad(lib: Any) -> None:
    x, c = leaf(lib, 1, 2), constant(lib, 3, 4)
    plain = c * c
    assert not plain.requires_grad
    assert plain.grad_fn is None
    assert plain.is_leaf
    assert (c * x).requires_grad
    assert (x * c).requires_grad


NAMES: dict[str, Callable[[Any, Any], Any]] = {
    "AddBackward0": lambda lib, x: x + x,
    "SubBackward0": lambda lib, x: x - x,
    "MulBackward0": lambda lib, x: x * x,
    "DivBackward0": lambda lib, x: x / x,
    "NegBackward0": lambda lib, x: -x,
    "PowBackward0": lambda lib, x: x**2,
    "ExpBackward0": lambda lib, x: x.exp(),
    "LogBackward0": lambda lib, x: x.log(),
    "SqrtBackward0": lambda lib, x: x.sqrt(),
    "SinBackward0": lambda lib, x: x.sin(),
    "TanhBackward0": lambda lib, x: x.tanh(),
    "SigmoidBackward0": lambda lib, x: x.sigmoid(),
    "ReluBackward0": lambda lib, x: x.relu(),
    "SumBackward0": lambda lib, x: x.sum(),
    "MeanBackward0": lambda lib, x: x.mean(),
    "CloneBackward0": lambda lib, x: x.clone(),
    "ViewBackward0": lambda lib, x: x.view(4),
    "TransposeBackward0": lambda lib, x: x.transpose(0, 1),
    "TBackward0": lambda lib, x: x.t(),
    "MmBackward0": lambda lib, x: x @ x,
    "SelectBackward0": lambda lib, x: x[0],
    "SliceBackward0": lambda lib, x: x[1:],
    "UnbindBackward0": lambda lib, x: x.unbind()[0],
    "CatBackward0": lambda lib, x: lib.cat([x, x]),
    "StackBackward0": lambda lib, x: lib.stack([x, x]),
    "WhereBackward0": lambda lib, x: lib.where(x > 1, x, -x),
    "MaxBackward0": lambda lib, x: x.max(0)[0],
    "LogSoftmaxBackward0": lambda lib, x: x.log_softmax(1),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_node_is_named_after_its_operation(lib: Any, name: str) -> None:
    node = NAMES[name](lib, leaf(lib, [[1, 2], [3, 4]])).grad_fn
    assert node.name() == name
    assert name in repr(node)


def test_the_class_of_a_node_has_its_name(lib: Any) -> None:
    x = leaf(lib, [[1, 2], [3, 4]])
    assert [type(call(lib, x).grad_fn).__name__ for call in NAMES.values()] == [*NAMES]


def test_next_functions_lead_to_the_leaves(lib: Any) -> None:
    x, c = leaf(lib, 1, 2), constant(lib, 3, 4)
    h = x * c
    y = h + x
    (first, first_nr), (second, second_nr) = y.grad_fn.next_functions
    assert first is h.grad_fn
    assert type(second).__name__ == "AccumulateGrad"
    assert (first_nr, second_nr) == (0, 0)
    assert isinstance(y.grad_fn.next_functions, tuple)
    (to_x, _), (to_c, _) = h.grad_fn.next_functions
    assert to_x is second
    assert to_c is None


def test_next_functions_tell_which_output(lib: Any) -> None:
    first, second = leaf(lib, 1, 2).unbind()
    assert first.output_nr == 0
    assert second.output_nr == 1
    assert first.grad_fn is second.grad_fn
    ((_, nr),) = second.exp().grad_fn.next_functions
    assert nr == 1


def test_a_leaf_stands_in_the_graph_as_accumulate_grad(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x.exp()
    ((node, _),) = y.grad_fn.next_functions
    assert node.variable is x
    assert node.next_functions == ()
    assert isinstance(node, lib.autograd.graph.Node)


def test_a_leaf_has_one_node_for_all_its_uses(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y, z = x.exp(), x.sin()
    assert y.grad_fn.next_functions[0][0] is z.grad_fn.next_functions[0][0]


def test_nodes_can_be_compared_and_be_keys(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y, z = x.exp(), x.exp()
    assert y.grad_fn is y.grad_fn
    assert y.grad_fn == y.grad_fn
    assert y.grad_fn != z.grad_fn
    assert hash(y.grad_fn) == hash(y.grad_fn)
    seen = {y.grad_fn: "y", z.grad_fn: "z"}
    assert seen[y.grad_fn] == "y"
    assert seen[z.grad_fn] == "z"
    assert (-y).grad_fn.next_functions[0][0] in seen


def test_a_whole_graph_can_be_walked(lib: Any) -> None:
    x, w = leaf(lib, [[1, 2], [3, 4]]), leaf(lib, [[1, 0], [0, 1]])
    loss = ((x @ w).tanh() * x).sum()
    names, queue, seen = [], [loss.grad_fn], set()
    while queue:
        node = queue.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        leafs = node.next_functions == ()
        names.append("AccumulateGrad" if leafs else node.name())
        queue += [following for following, _ in node.next_functions]
    assert names == [
        "SumBackward0",
        "MulBackward0",
        "TanhBackward0",
        "AccumulateGrad",
        "MmBackward0",
        "AccumulateGrad",
    ]


def test_results_that_have_no_gradient_are_not_recorded(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    for result in (x > 1, x == x, x.argmax(), x.long(), lib.isnan(x), x.max(0)[1]):
        assert not result.requires_grad
        assert result.grad_fn is None
        assert result.is_leaf


def test_grad_fn_and_is_leaf_cannot_be_set(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * x
    with raises(AttributeError):
        y.grad_fn = None
    with raises(AttributeError):
        y.is_leaf = True


# The graph is recreated from scratch at every iteration.


@pytest.mark.parametrize(("start", "times"), [(1.0, 4), (3.0, 2), (20.0, 0)])
def test_control_flow_is_differentiated_as_it_ran(lib: Any, start: float, times: int) -> None:
    x = leaf(lib, start)
    y = x * 1
    ran = 0
    while y.item() < 10:
        y = y * 2
        ran += 1
    y.backward()
    assert ran == times
    assert x.grad.item() == 2**times


def test_every_iteration_has_a_graph_of_its_own(lib: Any) -> None:
    x = leaf(lib, 2.0)
    for step in range(1, 4):
        y = x**step
        y.backward()
    assert x.grad.item() == 1 + 2 * 2 + 3 * 4


# Leaves.


def test_leaves(lib: Any) -> None:
    x, c = leaf(lib, 1, 2), constant(lib, 1, 2)
    with lib.no_grad():
        unrecorded = x * 2
    x.sum().backward()
    for each in (x, c, c * 2, unrecorded, x.detach(), (x * 2).detach(), x.grad):
        assert each.is_leaf
    for each in (x * 2, x.clone(), x[0], x.view(2, 1)):
        assert not each.is_leaf


def test_a_constant_changed_by_something_recorded_is_no_leaf_any_more(lib: Any) -> None:
    x, c = leaf(lib, 3, 4), constant(lib, 1, 2)
    c.mul_(x)
    assert c.requires_grad
    assert not c.is_leaf
    assert c.grad_fn.name() == "MulBackward0"
    c.sum().backward()
    assert x.grad.tolist() == [1, 2]


# requires_grad.


def test_requires_grad_is_off_unless_asked_for(lib: Any) -> None:
    assert not lib.ones(2).requires_grad
    assert not lib.tensor([1.0]).requires_grad
    assert lib.ones(2, requires_grad=True).requires_grad
    assert lib.nn.Parameter(lib.ones(2)).requires_grad
    assert not lib.nn.Parameter(lib.ones(2), requires_grad=False).requires_grad


def test_requires_grad_returns_its_tensor(lib: Any) -> None:
    x = constant(lib, 1, 2)
    assert x.requires_grad_() is x
    assert x.requires_grad
    assert x.requires_grad_(False) is x
    assert not x.requires_grad
    x.requires_grad = True
    assert x.requires_grad
    x.requires_grad = False
    assert not x.requires_grad


def test_a_result_must_require_grad(lib: Any) -> None:
    y = leaf(lib, 1, 2) * 2
    assert y.requires_grad_() is y
    with raises(RuntimeError):
        y.requires_grad_(False)
    with raises(RuntimeError):
        y.requires_grad = False
    assert y.requires_grad
    assert y.grad_fn is not None


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "bool"])
def test_only_floating_and_complex_tensors_can_require_grad(lib: Any, dtype: str) -> None:
    x = lib.ones(2, dtype=getattr(lib, dtype))
    with raises(RuntimeError):
        x.requires_grad_()
    with raises(RuntimeError):
        x.requires_grad = True
    with raises(RuntimeError):
        lib.ones(2, dtype=getattr(lib, dtype), requires_grad=True)
    with raises(RuntimeError):
        lib.tensor([1], dtype=getattr(lib, dtype), requires_grad=True)
    assert not x.requires_grad
    x.requires_grad_(False)
    assert lib.ones(2, dtype=lib.complex128).requires_grad_().requires_grad


def test_requires_grad_must_be_a_bool(lib: Any) -> None:
    x = constant(lib, 1, 2)
    with raises(RuntimeError):
        x.requires_grad = 1
    assert not x.requires_grad


def test_requires_grad_set_later_does_not_change_the_graph(lib: Any) -> None:
    x, w = leaf(lib, 1, 2), constant(lib, 3, 4)
    y = x * w
    w.requires_grad_()
    y.sum().backward()
    assert w.grad is None
    assert x.grad.tolist() == [3, 4]


def test_a_leaf_that_no_longer_requires_grad_gets_none(lib: Any) -> None:
    x, w = leaf(lib, 1, 2), leaf(lib, 3, 4)
    y = x * w
    w.requires_grad_(False)
    y.sum().backward()
    assert w.grad is None
    assert x.grad.tolist() == [3, 4]


def test_a_frozen_part_of_a_model_gets_no_gradients(lib: Any) -> None:
    nn = lib.nn
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    assert all(each.requires_grad for each in model.parameters())
    before = model[0].weight.grad
    assert model[0].requires_grad_(False) is model[0]
    assert [each.requires_grad for each in model.parameters()] == [False, False, True, True]
    model(lib.ones(4, 2)).sum().backward()
    assert before is None
    assert [each.grad is not None for each in model.parameters()] == [False, False, True, True]
    assert not model[0](lib.ones(4, 2)).requires_grad


def test_a_frozen_part_in_the_middle_lets_gradients_through(lib: Any) -> None:
    nn = lib.nn
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    model[1].requires_grad_(False)
    model(lib.ones(4, 2)).sum().backward()
    assert [each.grad is not None for each in model.parameters()] == [True, True, False, False]


def test_a_model_thaws(lib: Any) -> None:
    model = lib.nn.Linear(2, 3).requires_grad_(False)
    model.requires_grad_()
    model(lib.ones(1, 2)).sum().backward()
    assert model.weight.grad.shape == (3, 2)


def test_evaluation_mode_does_not_stop_gradients(lib: Any) -> None:
    model = lib.nn.Sequential(lib.nn.Linear(2, 3), lib.nn.Dropout(0.5))
    model.eval()
    y = model(lib.ones(1, 2))
    assert y.requires_grad
    y.sum().backward()
    assert model[0].weight.grad.tolist() == [[1, 1]] * 3


# detach.


def test_detach_shares_memory_and_cuts_the_graph(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * 2
    d = y.detach()
    assert not d.requires_grad
    assert d.grad_fn is None
    assert d.is_leaf
    assert d.data_ptr() == y.data_ptr()
    assert y.requires_grad
    (y * d).sum().backward()
    assert x.grad.tolist() == [4, 8]


def test_a_change_of_a_detached_tensor_is_a_change_of_the_tensor(lib: Any) -> None:
    y = leaf(lib, 1, 2) * 2
    before = y._version
    y.detach().add_(1)
    assert y._version == before + 1
    assert y.tolist() == [3, 5]


def test_a_change_of_a_detached_tensor_is_noticed_in_backward(lib: Any) -> None:
    y = leaf(lib, 1, 2) * 2
    z = y * y
    y.detach().zero_()
    with raises(RuntimeError):
        z.sum().backward()


def test_detach_of_a_leaf_can_require_grad_for_itself(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    d = x.detach().requires_grad_()
    (d * 3).sum().backward()
    assert x.grad is None
    assert d.grad.tolist() == [3, 3]


def test_detach_in_place_makes_a_leaf(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * 2
    assert y.detach_() is y
    assert y.is_leaf
    assert y.grad_fn is None
    assert not y.requires_grad
    assert not (y * 2).requires_grad


def test_detach_in_place_does_not_change_earlier_results(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * 2
    z = y * 3
    y.detach_()
    z.sum().backward()
    assert x.grad.tolist() == [6, 6]


def test_a_view_cannot_be_detached_in_place(lib: Any) -> None:
    y = leaf(lib, 1, 2) * 2
    view = y[:1]
    with raises(RuntimeError):
        view.detach_()
    assert view.requires_grad


# grad.


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_only_leaves_that_require_grad_get_gradients(lib: Any) -> None:
    x, c = leaf(lib, 1, 2), constant(lib, 3, 4)
    y = x * c
    assert lists([x.grad, c.grad, y.grad]) == [None, None, None]
    y.sum().backward()
    assert lists([x.grad, c.grad, y.grad]) == [[3, 4], None, None]


def test_grad_does_not_require_grad(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    (x * x).sum().backward()
    assert not x.grad.requires_grad
    assert x.grad.grad_fn is None
    assert x.grad.dtype == x.dtype
    assert x.grad.shape == x.shape


def test_gradients_accumulate_in_place(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    (x * 2).sum().backward()
    held = x.grad
    (x * 3).sum().backward()
    assert x.grad is held
    assert held.tolist() == [5, 5]


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
def test_gradients_with_a_graph_do_not_accumulate_in_place(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    (x * x).sum().backward(create_graph=True)
    held = x.grad
    (x * x).sum().backward(create_graph=True)
    assert x.grad is not held
    assert held.tolist() == [2, 4]
    assert x.grad.tolist() == [4, 8]
    assert x.grad.requires_grad
    x.grad = None


def test_grad_can_be_set_and_cleared(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    mine = constant(lib, 10, 20)
    x.grad = mine
    assert x.grad is mine
    (x * 3).sum().backward()
    assert mine.tolist() == [13, 23]
    assert x.grad is mine
    x.grad = None
    assert lists([x.grad]) == [None]
    (x * 3).sum().backward()
    assert lists([x.grad]) == [[3, 3]]
    del x.grad
    assert x.grad is None


def test_grad_of_a_constant_can_be_set(lib: Any) -> None:
    c = constant(lib, 1, 2)
    c.grad = constant(lib, 3, 4)
    assert c.grad.tolist() == [3, 4]


def test_invalid_grads(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    with raises(RuntimeError):
        x.grad = constant(lib, 1, 2, 3)
    with raises(RuntimeError):
        x.grad = constant(lib, 1, 2, dtype=lib.float32)
    with raises(RuntimeError):
        x.grad = x
    with raises(TypeError):
        x.grad = 3.0
    with raises(TypeError):
        x.grad = [1.0, 2.0]
    assert x.grad is None


def test_the_next_backward_adds_to_a_grad_changed_in_place(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    (x * 2).sum().backward()
    x.grad.zero_()
    (x * 3).sum().backward()
    assert x.grad.tolist() == [3, 3]


# retain_grad.


def test_retain_grad_keeps_the_gradient_of_a_result(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * 2
    assert not y.retains_grad
    assert y.retain_grad() is None
    assert y.retains_grad
    (y * y).sum().backward()
    assert y.grad.tolist() == [4, 8]
    assert x.grad.tolist() == [8, 16]


def test_retain_grad_of_a_leaf_does_nothing(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    x.retain_grad()
    assert not x.retains_grad
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2, 2]


def test_retain_grad_twice_is_once(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * 2
    y.retain_grad()
    y.retain_grad()
    (y * 3).sum().backward()
    assert y.grad.tolist() == [3, 3]


def test_retain_grad_wants_a_tensor_that_requires_grad(lib: Any) -> None:
    with raises(RuntimeError):
        constant(lib, 1, 2).retain_grad()
    assert not constant(lib, 1).retains_grad


def test_retained_gradients_accumulate(lib: Any) -> None:
    y = leaf(lib, 1, 2) * 2
    y.retain_grad()
    z = (y * 3).sum()
    z.backward(retain_graph=True)
    z.backward()
    assert y.grad.tolist() == [6, 6]


def test_a_retained_gradient_is_not_the_leafs(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x + 0
    y.retain_grad()
    y.sum().backward()
    y.grad.mul_(5)
    assert x.grad.tolist() == [1, 1]


def test_retain_grad_follows_the_tensor_through_in_place_changes(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * 2
    y.retain_grad()
    y.mul_(3)
    assert y.retains_grad
    (y * 5).sum().backward()
    assert y.grad.tolist() == [5, 5]
    assert x.grad.tolist() == [30, 30]


def test_retain_grad_after_an_in_place_change(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * 2
    y.mul_(3)
    y.retain_grad()
    (y * 5).sum().backward()
    assert y.grad.tolist() == [5, 5]


def test_retain_grad_of_one_output_of_several(lib: Any) -> None:
    first, second = leaf(lib, 1, 2).unbind()
    second.retain_grad()
    (first * 2 + second * 3).backward()
    assert second.grad.item() == 3
    assert not first.retains_grad


def test_a_result_out_of_the_way_retains_nothing(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y, z = x * 2, x * 3
    y.retain_grad()
    z.sum().backward()
    assert y.grad is None


# Copies.


def test_a_deep_copy_of_a_leaf_is_a_leaf(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    (x * 3).sum().backward()
    other = copy.deepcopy(x)
    assert other is not x
    assert other.is_leaf
    assert other.requires_grad
    assert other.tolist() == [1, 2]
    assert other.grad.tolist() == [3, 3]
    assert other.grad is not x.grad
    (other * 2).sum().backward()
    assert x.grad.tolist() == [3, 3]
    assert other.grad.tolist() == [5, 5]
    with lib.no_grad():
        other.zero_()
    assert x.tolist() == [1, 2]


def test_a_result_cannot_be_copied_deeply(lib: Any) -> None:
    y = leaf(lib, 1, 2) * 2
    with raises(RuntimeError):
        copy.deepcopy(y)
    assert copy.deepcopy(y.detach()).tolist() == [2, 4]


def test_a_deep_copy_keeps_sharing(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    first, second = copy.deepcopy([x, x])
    assert first is second


def test_a_deep_copy_of_a_model(lib: Any) -> None:
    model = lib.nn.Linear(2, 3)
    model(lib.ones(1, 2)).sum().backward()
    other = copy.deepcopy(model)
    other.requires_grad_(False)
    assert model.weight.requires_grad
    assert other.weight.tolist() == model.weight.tolist()
    assert other.weight.data_ptr() != model.weight.data_ptr()
    assert isinstance(other.weight, lib.nn.Parameter)


def test_clone_is_in_the_graph(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x.clone()
    y.mul_(2)
    y.sum().backward()
    assert x.grad.tolist() == [2, 2]
    assert x.tolist() == [1, 2]


# Lifetimes.


def watched(tensor: Any) -> weakref.ref[Witness]:
    """Return a weak reference to something that lives as long as a tensor's grad_fn."""
    witness = Witness()
    tensor.grad_fn.metadata["witness"] = witness
    return weakref.ref(witness)


GRAPHS: dict[str, Callable[[Any, Any], Any]] = {
    "saves nothing": lambda lib, x: x + 1,
    "saves inputs": lambda lib, x: x * x,
    "saves the output": lambda lib, x: x.exp(),
    "several operations": lambda lib, x: (x.exp() * x.tanh()).sum(),
    "an output and its view": lambda lib, x: x.exp()[:1],
    "in place": lambda lib, x: x.sin().mul_(x).add_(1),
    "retains": lambda lib, x: retaining(x.exp()),
}


def retaining(y: Any) -> Any:
    y.retain_grad()
    return y


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_graph_is_freed_with_its_last_result_without_a_backward(lib: Any, graph: str) -> None:
    x = leaf(lib, 1, 2)
    gc.collect()
    gc.disable()
    try:
        y = GRAPHS[graph](lib, x)
        witness = watched(y)
        assert witness() is not None
        del y
        assert witness() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_graph_is_freed_after_a_backward(lib: Any, graph: str) -> None:
    x = leaf(lib, 1, 2)
    gc.collect()
    gc.disable()
    try:
        y = GRAPHS[graph](lib, x)
        witness = watched(y)
        y.sum().backward(retain_graph=True)
        del y
        assert witness() is None
    finally:
        gc.enable()


def test_a_graph_lives_as_long_as_a_later_result(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x.exp()
    witness = watched(y)
    z = y * 2
    del y
    gc.collect()
    assert witness() is not None
    del z
    assert witness() is None


def test_hooks_die_with_the_graph(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x.exp()
    witness = Witness()
    seen = weakref.ref(witness)
    y.register_hook(lambda grad, kept=witness: None)
    y.grad_fn.register_hook(lambda *_, kept=witness: None)
    y.grad_fn.register_prehook(lambda *_, kept=witness: None)
    del witness
    assert seen() is not None
    del y
    assert seen() is None


def test_the_graph_does_not_outlive_its_inputs(lib: Any) -> None:
    """An intermediate nothing saved is gone once its last name is."""
    x = leaf(lib, 1, 2)
    h = x + 1
    seen = weakref.ref(h)
    y = h + 1
    del h
    assert seen() is None
    y.sum().backward()
    assert x.grad.tolist() == [1, 1]


DEEP = 100_000


@pytest.mark.slow
def test_a_deep_graph_runs_and_is_freed(lib: Any) -> None:
    x = leaf(lib, 1.0)
    y = x
    for _ in range(DEEP):
        y = y + 1
    y.backward()
    assert x.grad.item() == 1
    del y


@pytest.mark.slow
def test_a_deep_graph_that_saves_is_freed_without_a_backward(lib: Any) -> None:
    x = leaf(lib, 1.0)
    y = x
    for _ in range(DEEP):
        y = y * x
    witness = watched(y)
    del y
    assert witness() is None


@pytest.mark.slow
def test_a_deep_graph_is_released_node_by_node(lib: Any) -> None:
    x = leaf(lib, 1.0)
    y = x
    for _ in range(DEEP // 5):
        y = y * x
    y.backward()
    assert x.grad.item() == DEEP // 5 + 1
    with raises(RuntimeError):
        y.backward()


def test_a_deep_graph_of_in_place_operations(lib: Any) -> None:
    x = leaf(lib, 1.0)
    y = x * 1
    for _ in range(DEEP // 5):
        y.add_(x)
    y.backward()
    assert x.grad.item() == DEEP // 5 + 1


def test_a_deep_graph_of_views(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * 1
    for _ in range(DEEP // 10):
        y = y.view(2)
    y.sum().backward()
    assert x.grad.tolist() == [1, 1]


@pytest.mark.slow
def test_a_deep_graph_twice_differentiated(lib: Any) -> None:
    x = leaf(lib, 1.0)
    y = x
    deep = DEEP // 20
    for _ in range(deep - 1):
        y = y * x
    (first,) = lib.autograd.grad(y, x, create_graph=True)
    (second,) = lib.autograd.grad(first, x)
    assert first.item() == deep
    assert second.item() == deep * (deep - 1)
