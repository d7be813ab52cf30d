"""Ctrl-C in a training step leaves modes, hooks and calls as they were."""

import contextlib
import itertools
import os
from collections.abc import Callable
from typing import Any

import offgrad_storage
import pytest
from offgrad_storage import interrupts

import offgrad
from offgrad import nn
from offgrad.autograd import Function, anomaly, engine, grad_mode, once_differentiable, saved_tensor
from offgrad.autograd.save_hooks import PairHooks
from offgrad.autograd.saved_tensor import pop_hooks, push_hooks
from offgrad.nn.hooks.call_stack import calls
from offgrad.nn.hooks.registry import HookMethods, global_hooks
from offgrad.ops._random import replay
from offgrad.utils.checkpoint import checkpoint
from tests.interrupts import Code, Interrupt, interrupt_everywhere

EVERY = 1 if os.environ.get("OFFGRAD_STRESS") else 23
"""Of the points tried; all take minutes."""


def settings() -> Any:
    """Return all that a step sets for the thread and must restore."""
    modes, saving, state = grad_mode.state, saved_tensor.state, interrupts._state
    return {
        "modes": (modes.grad_mode, modes.inference, modes.grad_enabled),
        "hooks": (saving.hooks, saving.disabled, saving.checkpointed, dict(saved_tensor.targets)),
        "calls": calls.innermost,
        "trackers": (global_hooks.trackers, HookMethods._call_hooks),
        "passes": engine.state.passes,
        "observers": list(engine.observers),
        "anomaly": (anomaly.state.enabled, anomaly._running.node),
        "draws": (replay._state.recordings, replay._state.replay),
        "mask": (state.depth, list(state.enclosing), state.is_pending),
    }


class Scale(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * 3

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        assert len(ctx.saved_tensors) == 1
        return grads[0] * 3


def training_step() -> Callable[[], Any]:
    """Layers, a Function, views and in-place changes, an optimizer with a closure."""
    offgrad.manual_seed(1)
    layer = nn.Linear(2, 2)
    turned = nn.Parameter(offgrad.ones(2, 2).T)
    optimizer = offgrad.optim.SGD([*layer.parameters(), turned], lr=0.1, momentum=0.9)

    def loss() -> Any:
        optimizer.zero_grad()
        h = layer(offgrad.ones(1, 2)) @ turned
        h[:, :1].mul_(2)
        result = Scale.apply(h.t_()).sum()
        result.backward()
        return result

    def step() -> Any:
        value = optimizer.step(loss).item()
        return value, [each.tolist() for each in (*layer.parameters(), turned)]

    return step


def step_with_hooks() -> Callable[[], Any]:
    """Module hooks, tensor hooks, saved-tensor hooks, a nested pass, a recorded pass."""
    net = nn.Sequential(nn.Tanh())
    for module in (net, net[0]):
        module.register_full_backward_hook(lambda module, grad_in, grad_out: None)
        module.register_full_backward_pre_hook(lambda module, grad_out: None)
        module.register_forward_hook(lambda module, args, output: None)
    x = offgrad.ones(2, requires_grad=True)

    def nested(grad: Any) -> None:
        y = x.detach().requires_grad_()
        grad_mode.call(True, lambda: (y * 2).sum().backward())

    def step() -> Any:
        y = x * 1
        y.register_hook(nested)
        saved = net(y)
        (first,) = offgrad.autograd.grad(saved.sum(), x, create_graph=True)
        assert first is not None
        first.sum().backward()
        assert x.grad is not None
        return x.grad.tolist()

    return step


def step_with_checkpoint() -> Callable[[], Any]:
    """Checkpoints that draw random numbers."""
    x = offgrad.ones(2, requires_grad=True)

    def function(x: Any) -> Any:
        return nn.functional.dropout(x.exp(), 0.5)

    def step() -> Any:
        offgrad.manual_seed(1)
        checkpoint(function, x, use_reentrant=False).sum().backward()
        assert x.grad is not None
        return x.grad.tolist()

    return step


def calls_with_hooks() -> Callable[[], Any]:
    """A module whose calls push saved-tensor hooks and pop them at their end, as policies do."""
    net = nn.Sequential(nn.Tanh(), nn.Tanh())
    x = offgrad.ones(2, requires_grad=True)

    def push(module: Any, args: Any) -> None:
        hooks = PairHooks(lambda tensor: tensor, lambda tensor: tensor)
        assert calls.innermost is not None
        calls.innermost.on_exit(lambda: pop_hooks(hooks))
        push_hooks(hooks)

    for module in (net, net[0]):
        module.register_forward_pre_hook(push)

    def step() -> Any:
        net(x).sum().backward()
        assert x.grad is not None
        return x.grad.tolist()

    return step


STEPS = {
    each.__name__: each
    for each in (training_step, step_with_hooks, step_with_checkpoint, calls_with_hooks)
}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", STEPS)
def test_every_instant(name: str) -> None:
    make_step = STEPS[name]
    expected = make_step()()
    before = settings()
    runs = itertools.count(1)
    step = make_step()

    def check() -> None:
        nonlocal step
        assert settings() == before
        step = make_step()
        if not next(runs) % 7:
            assert make_step()() == expected

    modules = (offgrad, offgrad_storage, contextlib)
    assert interrupt_everywhere(modules, lambda: step(), check, EVERY) > 10


@pytest.mark.parametrize(
    "block",
    [
        offgrad.no_grad,
        offgrad.inference_mode,
        lambda: offgrad.offload("pool"),
        lambda: offgrad.offload({"1": "pool"}, model=nn.Sequential(nn.Tanh(), nn.Tanh())),
    ],
    ids=["no_grad", "inference_mode", "session", "session by module"],
)
def test_only_the_first_instruction_of_an_exit_leaves_a_block_open(
    block: Callable[[], Any], sigint_raises: None
) -> None:
    before, code, left_open = settings(), Code(offgrad, offgrad_storage), []
    for point in itertools.count(1):
        manager = block()

        def action(manager: Any = manager) -> None:
            with manager:
                pass

        interrupt = Interrupt(point, code)
        interrupt.run(action)
        if not interrupt.where:
            break
        if settings() != before:
            left_open.append(interrupt.where.split()[1])
            manager.__exit__(None, None, None)
        assert settings() == before, interrupt.where
    assert left_open == [f"{type(manager).__exit__.__qualname__}+2"]
