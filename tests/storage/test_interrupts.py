"""Masked sections and locks: no SIGINT splits them, and none is lost."""

import os
import signal
import sys
import threading
from collections.abc import Iterator

import pytest
from offgrad_storage import interrupts
from offgrad_storage.executor import waiting
from offgrad_storage.executor.waiting import Waiters
from offgrad_storage.interrupts import MaskedLock, interruptible, masked

from tests.interrupts import interrupt_everywhere

MODULES = (interrupts, waiting, sys.modules[__name__])


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert interrupts._state.depth == 0
    assert not interrupts._state.enclosing
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_sigint_waits_for_the_end_of_the_block() -> None:
    done = False
    with pytest.raises(KeyboardInterrupt), masked:  # noqa: PT012 (the block is the test)
        interrupt()
        with masked:
            interrupt()
        done = True
    assert done


def test_sigint_in_an_interruptible_block_is_raised_at_once() -> None:
    after = False
    with pytest.raises(KeyboardInterrupt), masked:  # noqa: PT012 (the block is the test)
        with interruptible:
            interrupt()
        after = True
    assert not after


def test_a_pending_sigint_is_raised_by_an_interruptible_block() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt), masked:  # noqa: PT012 (the block is the test)
        interrupt()
        steps.append("masked")
        with interruptible:
            steps.append("interruptible")
    assert steps == ["masked"]


def test_a_masked_block_inside_an_interruptible_one_delays_sigint_to_its_end() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt), masked, interruptible:  # noqa: PT012 (the block is the test)
        with masked:
            interrupt()
            steps.append("inner")
        steps.append("outer")
    assert steps == ["inner"]


def test_a_second_sigint_does_not_interrupt_the_clean_up() -> None:
    cleaned = False
    with pytest.raises(KeyboardInterrupt), masked:  # noqa: PT012 (the block is the test)
        try:
            with interruptible:
                interrupt()
        finally:
            interrupt()
            cleaned = True
    assert cleaned


def test_a_handler_that_does_not_raise_is_called_once_for_each_delivery() -> None:
    calls: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: calls.append(number))
    with masked:
        interrupt()
        interrupt()
        assert calls == []
        with interruptible:
            assert calls == [signal.SIGINT]
            interrupt()
            assert calls == [signal.SIGINT] * 2
    assert calls == [signal.SIGINT] * 2
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_an_ignored_sigint_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with masked:
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        interrupt()
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_an_error_in_the_block_restores_the_handler() -> None:
    with pytest.raises(ZeroDivisionError), masked, interruptible:
        _ = 1 / 0


def test_other_threads_mask_nothing() -> None:
    seen = []

    def look() -> None:
        with masked, interruptible:
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


def test_a_thread_that_waits_for_a_lock_reads_no_half_left_block() -> None:
    """The mask is the main thread's, which leaves a nested block in two steps."""
    lock, errors = MaskedLock(), []
    lock._lock.acquire()
    began = threading.Event()

    class Leaving(list[bool]):
        """The enclosing blocks; the last one is popped, and the depth not yet lower."""

        def pop(self, *_: object) -> bool:
            popped = super().pop()
            thread.start()
            began.wait()
            thread.join(0.2)  # it waits for the lock meanwhile
            return popped

    def take() -> None:
        began.set()
        try:
            with lock:
                pass
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=take)
    state = interrupts._state
    with masked:
        state.enclosing = Leaving(state.enclosing)
        with masked:
            pass
        state.enclosing = list(state.enclosing)
    lock._lock.release()
    thread.join()
    assert errors == []


def test_sigint_at_every_opcode_of_nested_blocks() -> None:
    counts = {"begun": 0, "ended": 0}

    def action() -> None:
        with masked:
            counts["begun"] += 1
            try:
                with interruptible, masked:
                    pass
            finally:
                counts["ended"] += 1

    def check() -> None:
        assert counts["begun"] == counts["ended"]
        assert interrupts._state.depth == 0

    assert interrupt_everywhere(MODULES, action, check, kind="opcodes") > 50


@pytest.mark.parametrize("reentrant", [False, True])
def test_sigint_at_every_opcode_leaves_the_lock_free(reentrant: bool) -> None:
    lock = MaskedLock(reentrant=reentrant)

    def action() -> None:
        with lock:
            if reentrant:
                with lock:
                    pass

    def check() -> None:
        assert not lock.is_owned
        assert lock.acquire(blocking=False)
        lock.release()

    assert interrupt_everywhere(MODULES, action, check, kind="opcodes") > 50


def test_sigint_at_every_opcode_of_a_wait_leaves_no_waiter_and_the_lock_free() -> None:
    lock = threading.Lock()
    waiters = Waiters(lock.release, lock.acquire)

    def action() -> None:
        with masked, lock:
            waiters.notify_all()
            waiters.wait(0)

    def check() -> None:
        assert not waiters
        assert not lock.locked()

    assert interrupt_everywhere(MODULES, action, check, kind="opcodes") > 50


def test_waiting_for_a_lock_is_interruptible() -> None:
    lock = MaskedLock()
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            done.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait(60)
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.1, lambda: signal.pthread_kill(main, signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt), lock:
            pass
    finally:
        done.set()
        holder.join()
        timer.join()
    assert lock.acquire(blocking=False)
    lock.release()


def test_waiting_for_a_lock_inside_a_masked_block_is_not_interruptible() -> None:
    lock = MaskedLock()
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            done.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait(60)
    timer = threading.Timer(0.2, done.set)
    timer.start()
    cleaned_up = False
    with pytest.raises(KeyboardInterrupt), masked:  # noqa: PT012 (the block is the test)
        try:
            with interruptible:
                interrupt()
        finally:
            interrupt()
            with lock:
                cleaned_up = True
    assert cleaned_up
    holder.join()
    timer.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_lock_of_another_thread_is_free_in_a_forked_child() -> None:
    lock, own = MaskedLock(), MaskedLock(reentrant=True)
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            done.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait(60)
    with own:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with own:  # held by this thread, and still so
                    pass
                status = 0 if own.is_owned and lock.acquire(blocking=False) else 2
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
    done.set()
    holder.join()
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_by_another_thread_inside_a_masked_block_has_the_programs_handler() -> None:
    statuses = []

    def fork() -> None:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                restored = signal.getsignal(signal.SIGINT) is signal.default_int_handler
                try:
                    with masked:
                        interrupt()
                except KeyboardInterrupt:
                    status = 0 if restored else 2
            finally:
                os._exit(status)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    with masked:
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
    assert statuses == [0]
