"""Run calls in threads that start together."""

import threading
from collections.abc import Callable
from typing import Any


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Run calls in a thread each, started together; return results or exceptions, in order."""
    found: list[Any] = [None] * len(calls)
    barrier = threading.Barrier(len(calls))

    def run(index: int) -> None:
        barrier.wait(60)
        try:
            found[index] = calls[index]()
        except Exception as error:
            found[index] = error

    threads = [
        threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(calls))
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join(120)
    assert not any(each.is_alive() for each in threads), "a thread hangs"
    return found


def results(found: list[Any]) -> list[Any]:
    """Return `found`, or raise the first exception in it."""
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return found
