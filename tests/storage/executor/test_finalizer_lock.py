"""The lock with events deferred by finalizers."""

from __future__ import annotations

import threading

from offgrad_storage.executor.finalizer_lock import FinalizerLock


def test_events_are_handled_at_once_or_by_the_holder() -> None:
    handled: list[int] = []
    lock = FinalizerLock(handled.append)
    assert lock.defer(1)
    assert handled == [1]
    with lock:
        assert not lock.defer(2)  # the same thread, as in a garbage collection
        assert handled == [1]
    assert handled == [1, 2]


def test_an_event_deferred_while_handling_is_handled_too() -> None:
    handled: list[int] = []

    def on_event(event: int) -> None:
        handled.append(event)
        if event < 5:
            lock.defer(event + 1)

    lock = FinalizerLock(on_event)
    lock.defer(1)
    assert handled == [1, 2, 3, 4, 5]


def test_events_are_handled_after_an_error_in_the_body() -> None:
    handled: list[int] = []
    lock = FinalizerLock(handled.append)
    try:
        with lock:
            lock.defer(1)
            raise KeyError
    except KeyError:
        pass
    assert handled == [1]


def test_no_event_is_lost_between_threads() -> None:
    total = 0

    def on_event(event: int) -> None:
        nonlocal total
        total += event  # only right if one thread at a time handles events

    lock = FinalizerLock(on_event)

    def work() -> None:
        for number in range(3000):
            lock.defer(1)
            if number % 7 == 0:
                with lock:
                    lock.defer(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert total == 4 * (3000 + 429)


def test_wait_handles_events() -> None:
    handled: list[int] = []
    lock = FinalizerLock(handled.append)
    waiting = threading.Event()

    def work() -> None:
        with lock:
            waiting.set()
            lock.wait()
            assert handled == [1]

    thread = threading.Thread(target=work)
    thread.start()
    waiting.wait()
    with lock:  # free only once the thread waits
        lock.defer(1)
        lock.notify_all()
    thread.join()
    assert handled == [1]
