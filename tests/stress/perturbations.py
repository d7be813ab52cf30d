"""Conditions under which programs run: threads, collections, drives, forks, signals."""

import faulthandler
import gc
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from tests.stress.counters import Difference

_FORK_SECONDS = 40


@dataclass(frozen=True)
class Perturbation:
    """The conditions of one program.

    Attributes:
        threads: number of threads that run it at once.
        one_session: whether they share a session.
        switches_often: whether threads switch after each microsecond.
        collects_after: the collector's threshold, in objects; None for Python's own.
        delay: maximum of seconds by which reads and writes are late.
        failures: share of reads and writes that fail in a run of their own; 0 for no such run.
        interrupt_at: the point at which another run gets SIGINT; 0 for no such run.
        fork_at: the step before which the process forks; -1 for none.
        prefetch_nbytes: the window of prefetches.
    """

    threads: int
    one_session: bool
    switches_often: bool
    collects_after: int | None
    delay: float
    failures: float
    interrupt_at: int
    fork_at: int
    prefetch_nbytes: int

    @classmethod
    def random(cls, random: Random) -> "Perturbation":
        def at_times(share: float, value: float) -> float:
            return value if random.random() < share else 0

        return cls(
            threads=random.choices([1, 2, 3], [6, 2, 1])[0],
            one_session=random.random() < 0.6,
            switches_often=random.random() < 0.5,
            collects_after=random.randint(1, 10) if random.random() < 0.2 else None,
            delay=at_times(0.2, random.choice([1e-4, 1e-3])),
            failures=at_times(0.15, random.choice([0.02, 0.3, 1.0])),
            interrupt_at=int(at_times(0.3, random.randrange(1, random.choice([300, 3000, 20000])))),
            fork_at=random.randrange(20) if random.random() < 0.05 else -1,
            prefetch_nbytes=random.choice([1, 100, 5000, 1 << 20, 1 << 40]),
        )

    @contextmanager
    def interpreter(self) -> Iterator[None]:
        """Have Python switch threads, and collect garbage, as often as this says."""
        interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
        if self.switches_often:
            sys.setswitchinterval(1e-6)
        if self.collects_after is not None:
            gc.set_threshold(self.collects_after, 2, 2)
        try:
            yield
        finally:
            sys.setswitchinterval(interval)
            gc.set_threshold(*thresholds)


def in_threads(count: int, function: Callable[[int], None], own: bool = False) -> None:
    """Call a function with 0, 1, ... at once; raise the first error.

    Args:
        count: number of threads.
        function: to be called.
        own: whether the first call has a thread of its own, too; else this one makes it.
    """
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            function(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=[each]) for each in range(not own, count)]
    for each in threads:
        each.start()
    if not own:
        run(0)
    for each in threads:
        each.join()
    if errors:
        raise errors[0]


def fork(check: Callable[[], None]) -> None:
    """Fork, check in the child, and wait for its exit status of 0.

    Raises:
        Difference: the child failed, or did not end.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks with threads
        child = os.fork()
    if not child:
        status = 1
        try:
            # The watchdog of faulthandler is a thread, which the child does not have.
            faulthandler.register(signal.SIGALRM, chain=True)
            signal.alarm(_FORK_SECONDS)
            check()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    deadline = time.monotonic() + 2 * _FORK_SECONDS
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            if status:
                raise Difference(f"a forked child ended with {os.waitstatus_to_exitcode(status)}")
            return
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise Difference("a forked child did not end")
