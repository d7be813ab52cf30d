"""Ctrl-C at any instant leaves nothing observed."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from offgrad_storage.executor.observers import observers as store_observers

import offgrad
from offgrad import memory
from offgrad.autograd import engine
from offgrad.autograd.op import Op
from offgrad.nn.hooks import call_stack
from offgrad.nn.hooks.registry import HookMethods
from offgrad.optim import hooks
from offgrad.profiler import (
    memory_profile,
    profile,
    profile_memory,
    profiles,
    recording,
    sampler,
    tape,
)
from offgrad.session import session
from tests.interrupts import interrupt_everywhere

MODULES = [memory_profile, profiles, recording, sampler, tape]


@pytest.mark.slow
@pytest.mark.parametrize("record", [profile_memory, profile, lambda: profile(interval=None)])
def test_an_interrupted_profile_has_ended(
    record: Callable[[], AbstractContextManager[Any]],
) -> None:
    plain = Op.__dict__["_apply"]
    x = offgrad.ones(3, requires_grad=True)

    def action() -> None:
        with record():
            x.sin().sum().backward()

    def check() -> None:
        assert Op.__dict__["_apply"] is plain
        assert not engine.observers
        assert not call_stack.observers
        assert not store_observers
        assert not session.observers
        assert not hooks._before_all_steps
        assert not hooks._after_all_steps
        assert not memory.allocator.counter.observers
        assert HookMethods._call_hooks is None
        assert isinstance(memory.Storage.__dict__["role"], str)
        assert not any("sampler" in each.name for each in threading.enumerate())

    action()
    assert interrupt_everywhere(MODULES, action, check) >= 20
