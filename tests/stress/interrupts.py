"""The code that stress interrupts, and the count of the exceptions that Python drops."""

import contextlib
import functools
import gc
import queue
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

import offgrad_storage
from offgrad_storage.memory import counter

import offgrad
from tests.interrupts import Code

LIBRARY = Code(
    offgrad,
    offgrad_storage,
    but=[counter],
    called=(contextlib, functools, queue, threading, weakref),
)
"""With the functions of Python's library that the stores and sessions call."""


@contextlib.contextmanager
def dropped_exceptions() -> Iterator[Counter[str]]:
    """Count, by name, exceptions that Python drops: those of finalizers and of threads.

    Python prints "Exception ignored in", and continues.
    """
    dropped: Counter[str] = Counter()

    def note(unraisable: Any) -> None:
        name = unraisable.exc_type.__name__
        where = "" if name == "KeyboardInterrupt" else f": {unraisable.exc_value}"
        dropped[f"{name}{where}"] += 1

    hooks = sys.unraisablehook, threading.excepthook
    sys.unraisablehook = threading.excepthook = note
    try:
        yield dropped
    finally:
        gc.collect()
        sys.unraisablehook, threading.excepthook = hooks
