"""ArrayMeter: the exact bytes that a thread's meta arrays would take, with their lifetimes.

Inside `metered`, meta arrays have the owners that real ones have: `memory.empty` counts memory of
at least `POOL_THRESHOLD` bytes until its last view dies, a `Storage` counts other memory. So code
that runs on meta arrays counts what it would count on real ones.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from offgrad_storage import MemoryCounter

from offgrad.memory.allocator import POOL_THRESHOLD
from offgrad.memory.meta import MetaArray, memory_of, meta_empty, meters, shapes_only
from offgrad.memory.registry import WeakRegistry
from offgrad.memory.storage import Storage


class ArrayMeter:
    """Counts the memory that the meta arrays of a thread would take.

    Attributes:
        counter: the bytes, and their peak.
        storages: the living storages.
        on_compute: called with the name of each kernel that would have run, and its arrays.
        open_store: returns the store that takes arrays instead of that of a placement.
        make_twin: returns a tensor on the meta device for one on the CPU.
    """

    def __init__(self) -> None:
        self.counter = MemoryCounter()
        self.storages: WeakRegistry[Storage] = WeakRegistry()
        self.on_compute: Callable[[str, Any], None] | None = None
        self.make_twin: Callable[[Any], Any] = _refuse
        self.open_store: Callable[[Any, int], Any] = _refuse

    def empty(self, shape: Any, dtype: Any) -> MetaArray:
        """Return a meta array for tensor data, and count it until its last view dies."""
        array = meta_empty(shape, dtype)
        if array.nbytes >= POOL_THRESHOLD:
            memory = memory_of(array)
            if memory is not None:
                memory.is_counted = True
                self.counter.add(memory, array.nbytes)
        return array

    def hold(self, storage: Storage) -> None:
        """Count a new storage, unless its memory is counted."""
        root = storage.root
        nbytes = root.nbytes
        self.storages.add(storage)
        if not nbytes:
            return
        if nbytes >= POOL_THRESHOLD:
            memory = memory_of(root)
            if memory is not None and memory.is_counted:
                return
        self.counter.add(storage, nbytes)

    def move(self, storage: Storage, successor: Storage) -> None:
        """Count the bytes of a storage until its successor has died, too."""
        self.storages.add(successor)
        self.counter.move(storage, successor)

    def twin(self, tensor: Any) -> Any:
        """Return what stands for a tensor of the CPU, on the meta device."""
        return self.make_twin(tensor)

    def store_of(self, placement: Any, max_pack_nbytes: int) -> Any:
        """Return the store that takes the arrays of this thread instead of that of `placement`."""
        return self.open_store(placement, max_pack_nbytes)

    def computed(self, name: str, arrays: Any) -> None:
        """Note that a kernel, or a function of NumPy's, would have run on `arrays`."""
        if self.on_compute is not None:
            self.on_compute(name, arrays)


def _refuse(*_: Any) -> Any:
    raise RuntimeError("Tensor on device cpu is not on the expected device meta!")


@contextmanager
def metered(meter: ArrayMeter) -> Iterator[None]:
    """Make all tensor memory of this thread meta arrays that `meter` counts."""
    thread = threading.get_ident()
    previous = meters.get(thread)
    with shapes_only():
        meters[thread] = meter
        try:
            yield
        finally:
            if previous is None:
                del meters[thread]
            else:
                meters[thread] = previous
