"""Work grows in proportion to the number of uses, saves, views, hooks, modules and parameters.

It is counted in executed lines, so that the machine's speed does not matter.
"""

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import offgrad
from offgrad import nn
from offgrad.autograd import graph
from offgrad.policies import Offload
from offgrad.utils.checkpoint import checkpoint

FEW, MANY = 60, 240
CASES: dict[str, Callable[[int], Any]] = {}


def case(function: Callable[[int], Any]) -> Callable[[int], Any]:
    CASES[function.__name__] = function
    return function


def leaves(count: int) -> list[Any]:
    return [offgrad.ones(1, requires_grad=True) for _ in range(count)]


@case
def uses_of_one_leaf(count: int) -> None:
    x = offgrad.ones(4, requires_grad=True)
    offgrad.stack([(x * x).sum() for _ in range(count)]).sum().backward()


@case
def a_chain(count: int) -> None:
    y = x = offgrad.ones(4, requires_grad=True)
    for _ in range(count):
        y = y * x
    y.sum().backward()


@case
def passes_that_accumulate(count: int) -> None:
    x = offgrad.ones(4, requires_grad=True)
    for _ in range(count):
        (x * 2).sum().backward()


@case
def views(count: int) -> None:
    x = offgrad.ones(count, 2, requires_grad=True) * 1
    offgrad.stack([x[index] for index in range(count)]).sum().backward()


@case
def views_changed_in_place(count: int) -> None:
    x = offgrad.ones(count, 2, requires_grad=True) * 1
    for index in range(count):
        x[index].mul_(2)
    x.sum().backward()


@case
def changes_of_a_base_and_reads_of_its_view(count: int) -> None:
    x = offgrad.ones(4, requires_grad=True) * 1
    view = x[:2]
    for _ in range(count):
        x.add_(1)
        assert view.grad_fn is not None
    view.sum().backward()


@case
def outputs_of_one_node(count: int) -> None:
    rows = offgrad.ones(count, 2, requires_grad=True).unbind()
    for row in rows:
        row.retain_grad()
    assert all(row.retains_grad for row in rows)
    offgrad.stack(rows).sum().backward()


@case
def one_tensor_as_all_inputs(count: int) -> None:
    offgrad.cat([offgrad.ones(2, requires_grad=True)] * count).sum().backward()


@case
def inputs_and_targets(count: int) -> None:
    xs = leaves(count)
    ys = [x * 2 for x in xs]
    offgrad.autograd.grad(offgrad.cat(ys).sum(), xs + ys, retain_graph=True)
    offgrad.cat(ys).sum().backward(inputs=xs + ys)


@case
def arguments_of_a_function(count: int) -> None:
    class Double(offgrad.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            ctx.save_for_backward(*args)
            return tuple([each * 2 for each in args])

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            assert len(ctx.saved_tensors) == count
            return tuple([each * 2 for each in grads])

    offgrad.cat(Double.apply(*leaves(count))).sum().backward()


@case
def hooks_of_a_tensor(count: int) -> None:
    x = offgrad.ones(4, requires_grad=True)
    y = x * 1
    handles = [y.register_hook(lambda grad: None) for _ in range(count)]
    handles += [x.register_post_accumulate_grad_hook(lambda tensor: None) for _ in range(count)]
    assert y.grad_fn is not None
    handles += [y.grad_fn.register_hook(lambda *grads: None) for _ in range(count)]
    handles += [y.grad_fn.register_prehook(lambda *grads: None) for _ in range(count)]
    y.sum().backward()
    for handle in handles:
        handle.remove()


@case
def tensors_of_a_multi_grad_hook(count: int) -> None:
    xs = leaves(count)
    seen: list[int] = []
    graph.register_multi_grad_hook(xs, lambda grads: seen.append(len(grads)))
    offgrad.cat(xs).sum().backward()
    assert seen == [count]


@case
def hooks_of_a_module(count: int) -> None:
    module = nn.ReLU()
    handles = [module.register_forward_hook(lambda *args: None) for _ in range(count)]
    handles += [module.register_full_backward_hook(lambda *args: None) for _ in range(count)]
    module(offgrad.ones(4, requires_grad=True) * 1).sum().backward()
    for handle in handles:
        handle.remove()


@case
def modules_of_a_container(count: int) -> None:
    modules = nn.Sequential(*[nn.Linear(1, 1) for _ in range(count)])
    for index in range(count):
        modules[index].register_full_backward_hook(lambda *args: None)
    modules(offgrad.ones(1, requires_grad=True) * 1).sum().backward()
    modules.load_state_dict(modules.state_dict())
    assert len(list(modules.modules())) == count + 1
    more = nn.ModuleList()
    for module in modules:
        more.append(module)


@case
def parameters(count: int) -> None:
    module = nn.Module()
    for index in range(count):
        setattr(module, f"p{index}", nn.Parameter(offgrad.ones(1)))
    module.load_state_dict(module.state_dict())
    optimizer = offgrad.optim.AdamW([{"params": each} for each in module.parameters()])
    for each in module.double().parameters():
        each.grad = offgrad.ones(1, dtype=offgrad.float64)
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad(set_to_none=False)


@case
def saves_of_one_storage_that_may_change(count: int) -> None:
    """Each save is a pending write of the storage."""
    constant = offgrad.ones(4)
    x = offgrad.ones(4, requires_grad=True)
    with graph.allow_mutation_on_saved_tensors():
        losses = [(x * constant).sum() for _ in range(count)]
        constant.add_(1)
        offgrad.stack(losses).sum().backward()


@case
def saves_through_hooks(count: int) -> None:
    x = offgrad.ones(4, requires_grad=True)
    with graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        losses = [(x * x).sum() for _ in range(count)]
    offgrad.stack(losses).sum().backward()


@case
def saves_in_a_checkpoint(count: int) -> None:
    x = offgrad.ones(4, requires_grad=True)
    checkpoint(
        lambda x: offgrad.stack([(x * x * x).sum() for _ in range(count)]).sum(),
        x,
        use_reentrant=False,
    ).backward()


@case
def saves_of_a_constant_in_a_session(count: int) -> None:
    x, constant = offgrad.ones(4, requires_grad=True), offgrad.ones(4)
    with offgrad.offload(Offload("pool", min_nbytes=0)):
        losses = [(x * constant).sum() for _ in range(count)]
    offgrad.stack(losses).sum().backward()


@case
def saves_of_one_activation_in_a_session(count: int) -> None:
    x = offgrad.ones(4, requires_grad=True) * 1
    with offgrad.offload(Offload("pool", min_nbytes=0)):
        losses = [(x * x).sum() for _ in range(count)]
    offgrad.stack(losses).sum().backward()


@case
def activations_in_a_session(count: int) -> None:
    y = offgrad.ones(4, requires_grad=True) * 1
    with offgrad.offload(Offload("pool", min_nbytes=0)):
        for _ in range(count):
            y = y.exp().tanh()
    y.sum().backward()


def lines_run(function: Callable[[int], Any], count: int) -> int:
    """Return the number of lines that ``function(count)`` executes in this thread."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    previous = sys.gettrace()
    gc.collect()
    gc.disable()
    sys.settrace(trace)
    try:
        function(count)
    finally:
        sys.settrace(previous)
        gc.enable()
    return lines


@pytest.mark.parametrize("name", CASES)
def test_four_times_as_many_take_four_times_the_work(name: str) -> None:
    CASES[name](3)  # fills caches
    few, many = lines_run(CASES[name], FEW), lines_run(CASES[name], MANY)
    assert many / few < 4.4
