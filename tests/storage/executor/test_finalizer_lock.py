"""The lock that finalizers can talk to."""

from __future__ import annotations

import threading

from offgrad_storage.executor.finalizer_lock import Letterbox


def test_notes_are_read_at_once_or_by_the_holder() -> None:
    read: list[int] = []
    box = Letterbox(read.append)
    assert box.post(1)
    assert read == [1]
    with box:
        assert not box.post(2)  # the same thread, as in a garbage collection
        assert read == [1]
    assert read == [1, 2]


def test_a_note_posted_while_reading_is_read_too() -> None:
    read: list[int] = []

    def on_note(note: int) -> None:
        read.append(note)
        if note < 5:
            box.post(note + 1)

    box = Letterbox(on_note)
    box.post(1)
    assert read == [1, 2, 3, 4, 5]


def test_notes_are_read_after_an_error_in_the_body() -> None:
    read: list[int] = []
    box = Letterbox(read.append)
    try:
        with box:
            box.post(1)
            raise KeyError
    except KeyError:
        pass
    assert read == [1]


def test_no_note_is_lost_between_threads() -> None:
    total = 0

    def on_note(note: int) -> None:
        nonlocal total
        total += note  # only right while one thread at a time reads

    box = Letterbox(on_note)

    def work() -> None:
        for number in range(3000):
            box.post(1)
            if number % 7 == 0:
                with box:
                    box.post(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert total == 4 * (3000 + 429)


def test_wait_reads_notes() -> None:
    read: list[int] = []
    box = Letterbox(read.append)
    waiting = threading.Event()

    def work() -> None:
        with box:
            waiting.set()
            box.wait()
            assert read == [1]

    thread = threading.Thread(target=work)
    thread.start()
    waiting.wait()
    with box:  # free only once the thread waits
        box.post(1)
        box.notify_all()
    thread.join()
    assert read == [1]
