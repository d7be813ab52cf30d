"""SIGINT at each point of a session's code in a training step; afterwards sessions work.

By default at a part of the points.
"""

import os
from collections.abc import Callable
from typing import Any

import pytest

import offgrad
from offgrad import memory
from offgrad.autograd import saved_tensor
from offgrad.policies import Budget, Cast, Last, Offload, Recompute
from offgrad.session import (
    cached_storage,
    dedup,
    deferred_writes,
    ledger_rows,
    memory_budget,
    passes,
    placement,
    prefetcher,
    saved_array,
    session,
)
from tests.interrupts import interrupt_everywhere
from tests.session.graphs import Bits, bits, normal
from tests.session.helpers import alive, wait_until
from tests.session.steps import forward

POLICIES: dict[str, Any] = {
    "keep": "keep",
    "pool": Offload("pool", min_nbytes=0),
    "disk": Offload("disk", min_nbytes=0),
    "zarr": Offload("zarr", min_nbytes=0),
    "budget": Budget(150_000),
    "budget 0": Budget(0, "pool"),
    "last": Last(1, Offload("disk", min_nbytes=0)),
    "recompute": [Recompute(64, min_nbytes=0), Offload("disk", min_nbytes=0)],
    "recompute in a budget": [Recompute(64, min_nbytes=0), Budget(150_000)],
    "cast": Cast("bfloat16", Offload("disk", min_nbytes=0)),
}

MODULES = (
    cached_storage, deferred_writes, dedup, ledger_rows, memory_budget, passes, placement,
    prefetcher, saved_array, session,
)  # fmt: skip


def step(under_test: Any) -> Bits:
    """Train; one input is changed in place after its save, one is dropped."""
    x = normal(1, 128, 128)
    changed, dropped = (x * 2).detach(), (x * 3).detach()
    with under_test:
        loss = forward(x) + (changed * x).sum() + (dropped * x).sum()
        if str(under_test.policy) != "keep":  # else backward refuses, rightly
            changed.mul_(0)
        del dropped
        y = x.t().sin()
        (y * y).sum().backward()
    loss.backward()
    return bits(loss, x.grad)


EVERY = 1 if os.environ.get("OFFGRAD_STRESS") else 41


def held_nbytes(budget: Any) -> int:
    with budget.lock:
        budget.reap()
        return int(budget.held_nbytes)


def check_idle(under_test: Any) -> None:
    """Assert that a session without graphs holds nothing."""
    assert under_test.lock.owner is None
    assert not under_test._passes.live()
    assert not under_test._blocks.are_running
    assert not sum(under_test.held_by_purpose().values())
    # A store may still be writing an array that is dead.
    wait_until(lambda: not any(map(held_nbytes, under_test._budgets)), "a budget holds")
    assert saved_tensor.state.hooks == ()


def interrupt(policy: str, folder: str, every: int) -> int:
    def new() -> Any:
        return offgrad.offload(POLICIES[policy], directory=folder, prefetch_nbytes=150_000)

    right = step(new())
    under_test = new()
    base = alive()

    def check() -> None:
        check_idle(under_test)
        for each in (under_test, new()):
            assert step(each) == right
            check_idle(each)
        wait_until(lambda: memory.allocated() <= base or alive() <= base, "memory is held")

    action: Callable[[], object] = lambda: step(under_test)
    return interrupt_everywhere(MODULES, action, check, every)


@pytest.mark.parametrize("policy", POLICIES)
def test_sigint_at_points_of_a_step(policy: str, named_stores: str) -> None:
    """OFFGRAD_STRESS=1 tries all points."""
    assert interrupt(policy, named_stores, EVERY) > 10
