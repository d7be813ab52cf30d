"""The stores of a session under which a step is estimated."""

from typing import Any

import offgrad_storage
from offgrad_storage import AbstractArrayStore

from offgrad.policies import Store
from offgrad.policies.names import STORES, store_and_codec
from offgrad.prediction.estimate_clock import Clock, Drive
from offgrad.prediction.estimate_drive import CountingDrive
from offgrad.prediction.estimate_pool import CountingPool, CountingStore
from offgrad.session.named_stores import MAX_PACK_NBYTES


class CountingStores:
    """A session's stores, each replaced by one that counts.

    Attributes:
        opened: by name.

    Args:
        clock: of the step.
        bandwidth: of the drive under all stores that are not in memory, in bytes a second.
    """

    def __init__(self, clock: Clock, bandwidth: float) -> None:
        self.drive = Drive(clock, bandwidth)
        self.opened: dict[Any, CountingStore] = {}

    def of(self, placement: Store, max_pack_nbytes: int = MAX_PACK_NBYTES) -> AbstractArrayStore:
        """Return the store that counts what that of `placement` would do."""
        key = (placement.store, placement.codec, max_pack_nbytes)
        found = self.opened.get(key)
        if found is None:
            found = self.opened[key] = self._open(placement, max_pack_nbytes)
        return found

    def figures(self) -> dict[str, tuple[int, int]]:
        """Return the bytes written and read so far, by the name of the store."""
        found: dict[str, tuple[int, int]] = {}
        for each in self.opened.values():
            written, read = found.get(each.name, (0, 0))
            found[each.name] = written + each.written_nbytes, read + each.read_nbytes
        return found

    def notes(self) -> list[str]:
        """Return what the figures cannot know."""
        return [
            f"{each.name}: bytes after encoding depend on values; counted as if not encoded"
            for each in self.opened.values()
            if each.depends_on_values
        ]

    def _open(self, placement: Store, max_pack_nbytes: int) -> CountingStore:
        store = placement.store
        if isinstance(store, str):
            name, codec_name = store_and_codec(store, placement.codec)
            codec = None if codec_name is None else offgrad_storage.codec(codec_name)
            title = name if codec_name is None else f"{name}:{codec_name}"
            if STORES[name].is_in_memory:
                return CountingPool(title, codec)
            return CountingDrive(title, codec, self.drive, name == "zarr", max_pack_nbytes)
        executor = getattr(store, "_executor", None)
        codec = None if executor is None else executor._encoder.codec
        if executor is None or not store.reads_ahead:  # it writes before `put` returns
            if isinstance(store, offgrad_storage.PoolStore):
                return CountingPool(repr(store), codec)
            return CountingStore(repr(store), codec)
        packs = executor._packs.open
        max_pack_nbytes = packs._max_nbytes if packs.below else 0
        return CountingDrive(repr(store), codec, self.drive, False, max_pack_nbytes)
