"""SIGINT at every point of a training step under each policy; afterwards sessions work."""

import functools
from collections import Counter
from contextlib import nullcontext
from random import Random
from typing import Any

import offgrad
from offgrad import memory, nn, optim
from offgrad.nn import functional as F
from offgrad.utils.checkpoint import checkpoint
from tests.interrupts import Interrupt
from tests.session.graphs import Bits, bits, data
from tests.stress.counters import Baseline, Difference, check_idle, held_locks, require, soon
from tests.stress.interrupts import LIBRARY, dropped_exceptions
from tests.stress.policies import LOSSY, POLICIES, Stores, session, stores_of_process
from tests.stress.stores import STORES

SIZE = 128
"""Rows and columns: activations are of 64 KiB, for which tensor memory is pooled."""


class Model(nn.Module):
    """Modules by name, a checkpoint, views, dropout and changes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(SIZE, SIZE)
        self.blocks = nn.Sequential(nn.GELU(), nn.LayerNorm(SIZE), nn.Linear(SIZE, SIZE))

    def forward(self, x: Any) -> Any:
        y = F.dropout(self.first(x), 0.1)
        y = self.blocks(y.t().tanh())
        y.mul_(0.5)
        z = checkpoint(lambda each: each.sin() * each, y, use_reentrant=False)
        return (z[::2] * y[1::2].sigmoid()).square().mean()


class Training:
    """One step of a new model; the same bits each time.

    Args:
        case: the name of the policy. Under one that stores every input, an input is changed in
            place, so that its write is waited for; else its write is deferred until it is dropped.
    """

    def __init__(self, case: str = "") -> None:
        self._spoils = case in _SPOILING
        self._limited = case == LIMITED
        offgrad.manual_seed(3)
        self.model = Model()
        self.optimizer = optim.AdamW(self.model.parameters(), lr=0.1)
        self.x = data(1, SIZE, SIZE)

    def step(self, session: Any) -> Bits:
        if self._limited:
            with memory.limit(memory.allocated() + _LIMIT):
                return self._step(session)
        return self._step(session)

    def _step(self, session: Any) -> Bits:
        with session:
            x = self.x * 1
            loss = self.model(x)
            if self._spoils:
                x.zero_()  # its writes are pending, or deferred
            del x
        loss.backward()
        found = bits(loss, *(each.grad for each in self.model.parameters()))
        self.optimizer.step()
        self.optimizer.zero_grad()
        return found + bits(*self.model.parameters())


LIMITED = "disk within a limit"
"""Under this limit of tensor memory, a step waits for writes and drops prefetches."""

_LIMIT = 450 << 10

CASES = (*POLICIES, *LOSSY, LIMITED)

_SPOILING = {*STORES, "budget", "last", "disk by name", LIMITED}
"""Policies that store every input; they give back its value at the save."""

_BY_MODEL = {"by module", "in one module"}
"""Policies whose sessions know one model."""


@functools.cache
def stores() -> Stores:
    # They live as long as the process, as those that policies name.
    return stores_of_process()


@functools.cache
def expected(case: str) -> Bits:
    """Return the bits of a step under a policy; of a lossless one those without a session."""
    training = Training()
    if case in LOSSY:
        return training.step(session_of(case, training))
    return training.step(nullcontext())


def session_of(case: str, training: Training) -> Any:
    policy = "disk" if case == LIMITED else case
    return session(policy, stores(), Random(0), training.model, prefetch_nbytes=150_000)


def attempt(case: str, number: int, counts: Counter[str]) -> bool:
    """Interrupt a step under a policy at its point `number`; return whether there is one.

    Raises:
        Difference: a session, a store or a counter is not as it should be.
    """
    right = expected(case)
    baseline = Baseline(str(stores().folder))
    with dropped_exceptions() as dropped:
        training = Training(case)
        under_test = session_of(case, training)
        interrupt = Interrupt(number, LIBRARY)
        interrupt.run(functools.partial(training.step, under_test))
        if not interrupt.where:
            return False
        try:
            del training
            baseline.check_settings()
            check_interrupted(case, under_test, right)
            del under_test
            baseline.check(stores_closed=False)
        except Difference as error:
            raise Difference(f"SIGINT at {interrupt.where}: {error}") from error
    counts["signals at points"] += 1
    counts["dropped by Python in a finalizer"] += interrupt.is_dropped
    require(not dropped, lambda: f"SIGINT at {interrupt.where}: dropped by Python: {dict(dropped)}")
    return True


def check_interrupted(case: str, interrupted: Any, right: Bits) -> None:
    if case not in _BY_MODEL:
        require(
            Training(case).step(interrupted) == right,
            "the session gives other bits afterwards",
        )
    training = Training(case)
    require(training.step(session_of(case, training)) == right, "a new session gives other bits")
    del training
    stores().trim_kept()
    check_session(interrupted)
    for name, store in stores().items():
        check_idle(store, keeps=stores().keeps(name))


def check_session(session: Any) -> None:
    """Raise `Difference` unless a session without graphs counts nothing, and holds no lock."""

    def left() -> dict[str, Any]:
        running = session._passes._running
        with session.lock:  # an idle session ends its writes when it is next used
            for budget in session._budgets:
                budget.reap()
        counts = {
            "bytes read ahead": sum(session.held_by_purpose().values()),
            "backward passes that are over": len([1 for each in running if each()]),
            "bytes of budgets": session._budgets.held_nbytes,
            "locks held": held_locks([session]),
        }
        return {name: count for name, count in counts.items() if count}

    soon(lambda: not left(), lambda: f"the session counts {left()}")
