"""Helpers of the tests of stores."""

from __future__ import annotations

import gc
import os
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import pytest
from numpy.typing import NDArray

from offgrad_storage.backend import Backend
from offgrad_storage.backend_store import BackendStore
from offgrad_storage.base import AbstractArrayStore, Allocate
from offgrad_storage.tiered.store import TieredStore

Array = NDArray[Any]

_RECORD = np.dtype([("id", "<i2"), ("weight", ">f8"), ("name", "S3"), ("xyz", "f4", (3,))])
DTYPES = [*"?bBhHiIlLqQefdgFDG", ">i4", ">f8", "<M8[ns]", "m8[s]", "S5", "U3", "V7", _RECORD]
"""All kinds of dtypes of fixed size; bfloat16 has a separate test, which needs ml_dtypes."""


class MakeStore(Protocol):
    """Makes a new store; ``allocate`` allocates arrays that are read back."""

    def __call__(self, *, allocate: Allocate = ...) -> AbstractArrayStore:
        """A store of the kind under test."""


def sample(dtype: Any, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Random bytes as an array, but such that every item is valid: NaNs and odd bits included."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape))
    random = np.random.default_rng(seed)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(bool)
    if dtype.kind == "U":
        return random.integers(0, 1000, shape).astype(dtype)
    if dtype.char in "gG":  # ten of sixteen bytes are the value: anything else has no meaning
        return random.standard_normal(shape).astype(dtype)
    data = random.integers(0, 256, count * dtype.itemsize, np.uint8)
    return data.view(dtype).reshape(shape) if count else np.empty(shape, dtype)


def assert_same(found: Array, expected: Array) -> None:
    """Bit for bit the same values, and the same shape and dtype."""
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    assert found.tobytes() == expected.tobytes()


def eventually(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait until ``condition`` holds, up to ``seconds``: threads may be late."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        gc.collect()
        time.sleep(0.002)


def run_in_fork(work: Callable[[], object]) -> int:
    """Do ``work`` in a forked child; return its exit code: 0 unless it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks with threads
        child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def backends_of(store: AbstractArrayStore) -> list[Backend]:
    """The backends of a store and of the stores below it."""
    if isinstance(store, TieredStore):
        return [backend for each in store.below for backend in backends_of(each)]
    return [store._executor.backend] if isinstance(store, BackendStore) else []


def check_sums(store: AbstractArrayStore) -> None:
    """The figures of a store, and of those below it, agree with the states of its arrays."""
    if isinstance(store, (BackendStore, TieredStore)):
        store._check()
    if isinstance(store, TieredStore):
        for each in store.below:
            check_sums(each)


class StoreFixtures:
    """Fixtures of the tests; override ``make_store``."""

    @pytest.fixture
    def make_store(self) -> MakeStore:
        """To override: a callable that makes a new store."""
        raise NotImplementedError("override the fixture make_store")

    @pytest.fixture
    def store(self, make_store: MakeStore) -> Iterator[AbstractArrayStore]:
        """A new store, closed afterwards."""
        with make_store() as store:
            yield store
