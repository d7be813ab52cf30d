"""SIGINT from another process at random moments of training; afterwards all works."""

import functools
import os
import subprocess
import sys
from collections import Counter
from random import Random
from typing import Any

from tests.interrupts import place
from tests.stress.counters import Baseline, Difference, require
from tests.stress.interrupted_sessions import CASES as CASES
from tests.stress.interrupted_sessions import (
    Training,
    check_interrupted,
    expected,
    session_of,
    stores,
)
from tests.stress.interrupts import dropped_exceptions

MAX_DELAY = 0.05
"""Seconds: a step takes less."""

_MAX_STEPS = 2000
"""Of a training loop: far more than fit into the delay."""

_SENDER = """
import os, signal, sys, time
for line in sys.stdin:
    time.sleep(float(line))
    os.kill(int(sys.argv[1]), signal.SIGINT)
    print("sent", flush=True)
"""


class _Sender:
    """A process that sends SIGINT to this one."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SENDER, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
        )

    def send(self, delay: float) -> None:
        """Send one signal after `delay` seconds; return before."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{delay}\n")

    def wait(self) -> None:
        """Wait until the signal was sent."""
        assert self._process.stdout is not None
        require(self._process.stdout.readline() == "sent\n", "the sender of signals ended")


@functools.cache
def _sender() -> _Sender:
    return _Sender()


def attempt(case: str, number: int, counts: Counter[str]) -> bool:
    """Interrupt training under a policy at a random moment.

    Raises:
        Difference: a session, a store or a counter is not as it should be.
    """
    delay = Random(f"{case} {number}").random() * MAX_DELAY
    right = expected(case)
    baseline = Baseline(str(stores().folder))
    with dropped_exceptions() as dropped:
        training = Training(case)
        under_test = session_of(case, training)
        where = _train_until_signal(training, under_test, delay, dropped)
        del training
        try:
            require(where or dropped["KeyboardInterrupt"], "the signal was lost")
            baseline.check_settings()
            check_interrupted(case, under_test, right)
            del under_test
            baseline.check(stores_closed=False)
        except Difference as error:
            raise Difference(f"SIGINT at {where}: {error}") from error
    counts["signals"] += 1
    counts["dropped by Python in a finalizer"] += dropped.pop("KeyboardInterrupt", 0)
    require(not dropped, lambda: f"SIGINT at {where}: dropped by Python: {dict(dropped)}")
    return True


def _train_until_signal(
    training: Training, session: Any, delay: float, dropped: Counter[str]
) -> str:
    """Train until SIGINT comes; return the place where it was raised, empty if it was dropped."""
    sender, where = _sender(), ""
    try:
        sender.send(delay)
        for _ in range(_MAX_STEPS):
            training.step(session)
            if dropped["KeyboardInterrupt"]:
                break
    except KeyboardInterrupt as error:
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_next is not None:
            traceback = traceback.tb_next
        where = place(None if traceback is None else traceback.tb_frame)
    sender.wait()
    return where
