"""``torch.futures``: results that another thread sets."""

import threading as _threading
from collections.abc import Callable as _Callable
from typing import Any as _Any

from offgrad._missing import missing as _missing

__all__ = ["Future", "collect_all", "wait_all"]


class Future:
    """A result or an exception that is set once, and that threads wait for.

    Args:
        devices: accepted.
    """

    def __init__(self, *, devices: _Any = None) -> None:
        self._lock = _threading.Lock()
        self._ended = _threading.Event()
        self._callbacks: list[_Callable[[Future], _Any]] = []
        self._value: _Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Return whether a result or an exception has been set."""
        return self._ended.is_set()

    def wait(self) -> _Any:
        """Wait for the result and return it, or raise the exception."""
        self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._value

    def value(self) -> _Any:
        """Return the result, which must have been set.

        Raises:
            RuntimeError: it has not.
        """
        if not self.done():
            raise RuntimeError("the result of the Future has not been set; wait() for it")
        return self.wait()

    def set_result(self, result: _Any) -> None:
        """Set the result.

        Raises:
            RuntimeError: it has been set already.
        """
        self._end(result, None)

    def set_exception(self, result: BaseException) -> None:
        """Set the exception that `wait` raises."""
        self._end(None, result)

    def _end(self, value: _Any, error: BaseException | None) -> None:
        with self._lock:
            if self.done():
                raise RuntimeError("a Future can be marked completed only once")
            self._value, self._error = value, error
            self._ended.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def add_done_callback(self, callback: "_Callable[[Future], _Any]") -> None:
        """Call ``callback(self)`` when the result has been set, at once if it has."""
        with self._lock:
            if not self.done():
                self._callbacks.append(callback)
                return
        callback(self)

    def then(self, callback: "_Callable[[Future], _Any]") -> "Future":
        """Return the Future of ``callback(self)``, which is called when the result has been set."""
        following = Future()

        def run(future: Future) -> None:
            try:
                following.set_result(callback(future))
            except Exception as error:
                following.set_exception(error)

        self.add_done_callback(run)
        return following


def collect_all(futures: list[Future]) -> Future:
    """Return a Future whose result are the futures, when all have ended."""
    result = Future()
    left = [len(futures)]
    lock = _threading.Lock()

    def count(_: Future) -> None:
        with lock:
            left[0] -= 1
            is_last = not left[0]
        if is_last:
            result.set_result(futures)

    if not futures:
        result.set_result(futures)
    for each in futures:
        each.add_done_callback(count)
    return result


def wait_all(futures: list[Future]) -> list[_Any]:
    """Return the results of all, or raise the first exception."""
    return [each.wait() for each in futures]


__getattr__ = _missing("offgrad.futures")
