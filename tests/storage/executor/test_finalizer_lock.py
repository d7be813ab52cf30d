"""The lock that finalizers can talk to."""

from __future__ import annotations

import threading

from offgrad_storage.executor.finalizer_lock import FinalizerLock


def test_notes_are_read_at_once_or_by_the_holder() -> None:
    read: list[int] = []
    lock = FinalizerLock(read.append)
    assert lock.defer(1)
    assert read == [1]
    with lock:
        assert not lock.defer(2)  # the same thread, as in a garbage collection
        assert read == [1]
    assert read == [1, 2]


def test_a_note_posted_while_reading_is_read_too() -> None:
    read: list[int] = []

    def on_event(event: int) -> None:
        read.append(event)
        if event < 5:
            lock.defer(event + 1)

    lock = FinalizerLock(on_event)
    lock.defer(1)
    assert read == [1, 2, 3, 4, 5]


def test_notes_are_read_after_an_error_in_the_body() -> None:
    read: list[int] = []
    lock = FinalizerLock(read.append)
    try:
        with lock:
            lock.defer(1)
            raise KeyError
    except KeyError:
        pass
    assert read == [1]


def test_no_note_is_lost_between_threads() -> None:
    total = 0

    def on_event(event: int) -> None:
        nonlocal total
        total += event  # only right while one thread at a time reads

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


def test_wait_reads_notes() -> None:
    read: list[int] = []
    lock = FinalizerLock(read.append)
    waiting = threading.Event()

    def work() -> None:
        with lock:
            waiting.set()
            lock.wait()
            assert read == [1]

    thread = threading.Thread(target=work)
    thread.start()
    waiting.wait()
    with lock:  # free only once the thread waits
        lock.defer(1)
        lock.notify_all()
    thread.join()
    assert read == [1]
