"""Hooks of optimizers, with the arguments and in the order that PyTorch calls them."""

import copy
from typing import Any

import pytest

import offgrad
from offgrad.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)


def make() -> Any:
    param = offgrad.ones(1, requires_grad=True)
    param.grad = offgrad.ones(1)
    return offgrad.optim.SGD([param], lr=0.25)


def test_order_and_arguments_of_step_hooks() -> None:
    optimizer, calls = make(), []

    def note(name: str) -> Any:
        def hook(*arguments: Any) -> None:
            assert arguments == (optimizer, (optimizer,), {"closure": None})
            calls.append((name, optimizer.param_groups[0]["params"][0].item()))

        return hook

    handles = [
        optimizer.register_step_pre_hook(note("pre")),
        optimizer.register_step_post_hook(note("post")),
        register_optimizer_step_pre_hook(note("all pre")),
        register_optimizer_step_post_hook(note("all post")),
    ]
    optimizer.step(closure=None)
    assert calls == [("all pre", 1), ("pre", 1), ("post", 0.75), ("all post", 0.75)]
    for handle in handles:
        handle.remove()
    optimizer.step()
    assert len(calls) == 4


def test_a_hook_before_the_step_may_replace_the_arguments() -> None:
    optimizer = make()
    closure = lambda: 7
    with optimizer.register_step_pre_hook(lambda self, args, kwargs: ((self, closure), {})):
        assert optimizer.step() == 7
    with (
        optimizer.register_step_pre_hook(lambda *_: 3),
        pytest.raises(RuntimeError, match="must return None, or new arguments"),
    ):
        optimizer.step()


def test_hooks_of_state_dicts() -> None:
    optimizer, calls = make(), []
    optimizer.register_state_dict_pre_hook(lambda it: calls.append(it))
    optimizer.register_state_dict_post_hook(lambda it, state: {**state, "more": 1})
    optimizer.register_state_dict_post_hook(lambda it, state: calls.append(state), prepend=True)
    state = optimizer.state_dict()
    assert state["more"] == 1
    assert calls[0] is optimizer
    assert "more" not in calls[1]

    def other_rate(it: Any, state: Any) -> Any:
        return {**state, "param_groups": [{**state["param_groups"][0], "lr": 9.0}]}

    optimizer.register_load_state_dict_pre_hook(other_rate)
    optimizer.register_load_state_dict_post_hook(lambda it: calls.append(it.param_groups[0]["lr"]))
    optimizer.load_state_dict(state)
    assert calls[2] == 9
    assert state["param_groups"][0]["lr"] == 0.25


def test_hooks_stay_behind_in_copies_and_subclasses_call_them() -> None:
    calls = []

    class Halving(offgrad.optim.Optimizer):
        """A whole step of its own, as in PyTorch."""

        def __init__(self, params: Any) -> None:
            super().__init__(params, {"factor": 0.5})

        @offgrad.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for param in group["params"]:
                    self.state[param]["seen"] = self.state[param].get("seen", 0) + 1
                    param.mul_(group["factor"])

    optimizer = Halving([offgrad.ones(1, requires_grad=True)])
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    optimizer.step()
    copied = copy.deepcopy(optimizer)
    copied.step()
    assert len(calls) == 1
    param = copied.param_groups[0]["params"][0]
    assert param.item() == 0.25
    assert copied.state[param] == {"seen": 2}


def test_an_optimizer_that_wraps_another_may_skip_init() -> None:
    calls = []

    class Wrapper(offgrad.optim.Optimizer):
        def __init__(self, optimizer: Any) -> None:
            self.optimizer = optimizer
            self.param_groups, self.state = optimizer.param_groups, optimizer.state

        def step(self, closure: Any = None) -> None:
            self.optimizer.step(closure)

    param = offgrad.ones(1, requires_grad=True)
    param.grad = offgrad.ones(1)
    optimizer = Wrapper(offgrad.optim.SGD([param], lr=0.5))
    optimizer.step()
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    optimizer.step()
    optimizer.zero_grad()
    assert (param.item(), calls) == (0.0, [1])
    assert param.grad is None
