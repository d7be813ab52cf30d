"""Helpers of the session tests: store everything, wait, measure."""

import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import offgrad
from offgrad import memory
from offgrad.policies import Offload
from offgrad.session import named_stores as stores
from tests.session.backends import SECONDS

MIB = 1 << 20


def everything(store: Any, **options: Any) -> offgrad.session.OffloadSession:
    """Return a session that stores every tensor but parameters, of any size."""
    return offgrad.offload(Offload(store, min_nbytes=0), **options)


def unary_chain(x: Any, count: int) -> Any:
    """Return a sum whose graph saves `count` results and nothing else."""
    for _ in range(count):
        x = x.tanh()
    return x.sum()


def wait_until(condition: Callable[[], bool], message: str) -> None:
    """Wait until the I/O threads have made `condition` true; fail with `message`."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, message
        time.sleep(0.002)


def settle(store: Any) -> None:
    """Wait for all writes."""
    wait_until(lambda: not store.stats().inflight_nbytes, "writes are pending")


def alive() -> int:
    """Return the bytes of tensors that are not garbage."""
    gc.collect()
    return memory.allocated()


def open_stores(folder: str) -> list[Any]:
    """Return the stores opened by name in `folder`, and the pool."""
    return [store for (name, where, _), store in stores._stores.items() if where in (folder, None)]


def in_threads(*functions: Callable[[], None]) -> None:
    """Run all `functions` at once; raise the first error."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(functions))

    def run(function: Callable[[], None]) -> None:
        try:
            start.wait()
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(each,)) for each in functions]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    if errors:
        raise errors[0]
