"""SIGINT at every point of each operation of each store; afterwards the store works."""

import functools
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zarr
from numpy.typing import NDArray
from offgrad_storage import (
    AbstractArrayStore,
    BufferPool,
    Handle,
    TieredStore,
    ZarrStore,
)

from tests.interrupts import Interrupt
from tests.stress.counters import (
    Baseline,
    Difference,
    check_figures,
    check_idle,
    require,
    stores_below,
)
from tests.stress.interrupts import LIBRARY, dropped_exceptions
from tests.stress.stores import KEPT, STORES

Array = NDArray[Any]
LARGE, SMALL = (40 << 10), 700
"""Numbers of float64: arrays that go alone, and arrays that go into packs."""


def _array(seed: int, size: int) -> Array:
    array = np.random.default_rng(seed).standard_normal(size)
    array[::3] = 0  # so that every codec has work to do
    return array


class Setting:
    """A store, and arrays that are in it when the interrupted operation begins."""

    def __init__(self, store: AbstractArrayStore, flush: bool) -> None:
        self.store = store
        self.arrays = [_array(1, LARGE), _array(2, LARGE), _array(3, SMALL), _array(4, SMALL)]
        self.handles: list[Handle | None] = [store.put(each) for each in self.arrays]
        self.out = np.empty(LARGE)
        self.new = [_array(5, LARGE), _array(6, SMALL)]
        self.made: list[Handle] = []
        if flush:
            store.flush()

    @property
    def large(self) -> Handle:
        handle = self.handles[0]
        assert handle is not None
        return handle

    @property
    def small(self) -> Handle:
        handle = self.handles[2]
        assert handle is not None
        return handle

    def put(self, array: Array) -> None:
        self.made.append(self.store.put(array))

    def drop(self, *indices: int) -> None:
        for index in indices:
            self.handles[index] = None

    def prefetch_both(self) -> None:
        self.large.prefetch()
        self.small.prefetch()


class Operation(NamedTuple):
    """One operation of a store.

    Attributes:
        run: the part that is interrupted.
        prepare: what comes before.
        flush: whether the arrays in the store are written before.
    """

    run: Callable[[Setting], object]
    prepare: Callable[[Setting], object] | None = None
    flush: bool = True


def _put_many(setting: Setting) -> None:
    for _ in range(60):
        setting.put(setting.new[1])


def _evict(setting: Setting) -> None:
    for _ in range(3):
        setting.put(setting.new[0])


def _publish(setting: Setting) -> None:
    if isinstance(setting.store, ZarrStore):
        setting.store.publish()


def _plan(setting: Setting) -> None:
    setting.store.plan([each for each in setting.handles[::-1] if each is not None])


OPERATIONS: dict[str, Operation] = {
    "put": Operation(lambda s: s.put(s.new[0])),
    "put of a small array": Operation(lambda s: s.put(s.new[1])),
    "puts that seal packs": Operation(_put_many),
    "puts that wait or evict": Operation(_evict, flush=False),
    "get": Operation(lambda s: s.large.get()),
    "get of a small array": Operation(lambda s: s.small.get()),
    "get of an array being written": Operation(lambda s: s.large.get(), flush=False),
    "get(out=)": Operation(lambda s: s.large.get(s.out)),
    "get after prefetch": Operation(lambda s: s.large.get(), lambda s: s.large.prefetch()),
    "get of a small array after prefetch": Operation(
        lambda s: s.small.get(), lambda s: s.small.prefetch()
    ),
    "get(out=) after prefetch(out)": Operation(
        lambda s: s.large.get(s.out), lambda s: s.large.prefetch(s.out)
    ),
    "prefetch": Operation(lambda s: s.large.prefetch()),
    "prefetch of a small array": Operation(lambda s: s.small.prefetch()),
    "prefetch(out)": Operation(lambda s: s.large.prefetch(s.out)),
    "prefetch of an array being written": Operation(lambda s: s.large.prefetch(), flush=False),
    "second prefetch": Operation(lambda s: s.large.prefetch(s.out), lambda s: s.large.prefetch()),
    "cancel_prefetch": Operation(
        lambda s: s.store.cancel_prefetch(s.large), lambda s: s.large.prefetch()
    ),
    "cancel_prefetch of a small array": Operation(
        lambda s: s.store.cancel_prefetch(s.small), lambda s: s.small.prefetch()
    ),
    "wait_captured": Operation(lambda s: s.large.wait_captured(), flush=False),
    "deletion of a handle": Operation(lambda s: s.drop(0)),
    "deletion of a handle being written": Operation(lambda s: s.drop(0), flush=False),
    "deletion of small handles": Operation(lambda s: s.drop(2, 3)),
    "deletion after prefetch": Operation(lambda s: s.drop(0), lambda s: s.large.prefetch()),
    "plan": Operation(_plan),
    "publish": Operation(_publish, flush=False),
    "flush": Operation(lambda s: s.store.flush(), flush=False),
    "stats": Operation(lambda s: s.store.stats()),
    "close": Operation(lambda s: s.store.close()),
    "close during writes": Operation(lambda s: s.store.close(), flush=False),
    "close during prefetches": Operation(lambda s: s.store.close(), lambda s: s.prefetch_both()),
}

CASES = tuple(f"{store}; {operation}" for store in STORES for operation in OPERATIONS)


def attempt(case: str, number: int, counts: Counter[str]) -> bool:
    """Interrupt one operation of one store at its point `number`; return whether there is one.

    Raises:
        Difference: the store, a new one, or a counter is not as it should be.
    """
    kind, _, name = case.partition("; ")
    operation = OPERATIONS[name]
    with tempfile.TemporaryDirectory() as folder, dropped_exceptions() as dropped:
        interrupt = _interrupt(kind, operation, number, Path(folder))
    if not interrupt.where:
        return False
    counts["signals at points"] += 1
    counts["dropped by Python in a finalizer"] += interrupt.is_dropped
    require(not dropped, lambda: f"{interrupt.where}: dropped by Python: {dict(dropped)}")
    return True


def _interrupt(kind: str, operation: Operation, number: int, folder: Path) -> Interrupt:
    pool = BufferPool()
    baseline = Baseline(str(folder))
    store = STORES[kind](folder, pool.empty)
    setting = Setting(store, operation.flush)
    if operation.prepare is not None:
        operation.prepare(setting)
    interrupt = Interrupt(number, LIBRARY)
    interrupt.run(functools.partial(operation.run, setting))
    try:
        if operation.run is not OPERATIONS["close"].run and "close" not in _name_of(operation):
            _check_works(setting, kind)
        stored = setting.arrays
        del setting
        _check_ends(store, kind, closes="close" in _name_of(operation))
        if kind in KEPT:
            _check_kept(store, stored)
        del store
        baseline.check()
        require(not pool.in_use_nbytes, lambda: f"{pool.in_use_nbytes} bytes of reads are left")
        if kind not in KEPT:
            left = list(folder.iterdir())
            require(not left, lambda: f"files are left: {left}")
        with STORES[kind](folder, pool.empty) as fresh:
            _check_round_trip(fresh)
    except Difference as error:
        raise Difference(f"SIGINT at {interrupt.where}: {error}") from error
    return interrupt


def _name_of(operation: Operation) -> str:
    return next(name for name, each in OPERATIONS.items() if each is operation)


def _check_works(setting: Setting, kind: str) -> None:
    """Raise `Difference` unless the store gives back the arrays in it, and takes others."""
    check_figures(setting.store)
    for handle, array in zip(setting.handles, setting.arrays, strict=True):
        if handle is not None:
            _check_same(handle.get(), array)
            _check_same(handle.get(np.empty_like(array)), array)
    for handle in setting.made:
        expected = next(each for each in setting.new if each.shape == handle.shape)
        _check_same(handle.get(), expected)
    live = len([each for each in setting.handles if each is not None]) + len(setting.made)
    found = setting.store.stats().live_handles
    # A put that did not return leaves nothing.
    require(found == live, lambda: f"{found} handles are counted, {live} live")
    _check_round_trip(setting.store)


def _check_round_trip(store: AbstractArrayStore) -> None:
    arrays = [_array(seed, size) for seed in range(7, 10) for size in (LARGE, SMALL)]
    handles = [store.put(each) for each in arrays]
    handles[0].prefetch()
    handles[1].prefetch()
    store.cancel_prefetch(handles[0])
    for handle, array in zip(handles, arrays, strict=True):
        _check_same(handle.get(), array)
    store.flush()
    for handle, array in zip(handles[::-1], arrays[::-1], strict=True):
        handle.prefetch()
        _check_same(handle.get(np.empty_like(array)), array)


def _check_same(found: Array, expected: Array) -> None:
    require(found.tobytes() == expected.tobytes(), "a get gave other bits than were put")


def _check_ends(store: AbstractArrayStore, kind: str, closes: bool) -> None:
    if not closes:
        check_idle(store, keeps=kind in KEPT)
        for each in stores_below(store)[1:]:
            check_idle(each)
    if isinstance(store, TieredStore) and not closes:
        require(not store.stats().stored_nbytes, "a tiered store without handles holds RAM")
    store.close()
    store.close()


def _check_kept(store: AbstractArrayStore, stored: list[Array]) -> None:
    """Raise `Difference` unless other programs find the arrays in the folder of a closed store."""
    assert isinstance(store, ZarrStore)
    group = zarr.open_group(store.path, mode="r")
    slots = [each for _, array in group.arrays() for each in np.asarray(array[:])]
    for array in stored:
        kept = any(each.tobytes() == array.tobytes() for each in slots)
        require(kept, lambda: f"an array {array.shape} is not in the folder")  # noqa: B023
