"""A slow drive: each read and write takes the time it would take at a given rate, one at a time."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from offgrad_storage.files.direct_file import DirectFile

_METHODS = ("write_at", "write_run", "read_at", "read_run")


@contextmanager
def throttled(rate: float) -> Iterator[None]:
    """Let the files of stores in this process transfer `rate` bytes per second at most."""
    channel = threading.Lock()
    before = {name: getattr(DirectFile, name) for name in _METHODS}
    for name, method in before.items():
        setattr(DirectFile, name, _slowed(method, rate, channel))
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(DirectFile, name, method)


def _slowed(method: Callable[..., Any], rate: float, channel: threading.Lock) -> Callable[..., Any]:
    def slowed(file: Any, data: Any, *arguments: Any) -> Any:
        nbytes = sum(each.nbytes for each in data) if isinstance(data, list) else data.nbytes
        with channel:
            began = time.perf_counter()
            result = method(file, data, *arguments)
            time.sleep(max(0.0, nbytes / rate - (time.perf_counter() - began)))
            return result

    return slowed
