"""Dedup: what was saved of each memory, so that it is stored once."""

from typing import Any, TypeAlias
from weakref import WeakKeyDictionary, ref

from offgrad.memory import Storage
from offgrad.policies.entry import Entry

Key: TypeAlias = tuple[Any, ...]
"""First byte, dtype, and number of bytes, or shape and strides where these have gaps."""

_FEW = 64


class Saves:
    """What was saved of one storage at one version: a range of bytes each, stored or kept."""

    __slots__ = ("_most", "entries", "version")

    def __init__(self, version: int) -> None:
        self.version = version
        self.entries: dict[Key, ref[Entry] | None] = {}
        self._most = _FEW

    def forget(self) -> None:
        """Once they are many, forget those that are not stored: batches are parts of one tensor."""
        if len(self.entries) >= self._most:
            for key, entry in list(self.entries.items()):
                if entry is None or entry() is None:
                    del self.entries[key]
            self._most = max(_FEW, 2 * len(self.entries))

    def get(self, key: Key) -> Entry | None:
        """Return what is stored of the range, None if nothing is."""
        known = self.entries.get(key)
        return None if known is None else known()


class SavesByStorage:
    """What was saved of each storage that lives, as it is now."""

    def __init__(self) -> None:
        self._saves: WeakKeyDictionary[Storage, Saves] = WeakKeyDictionary()

    def of(self, storage: Storage) -> Saves:
        """Return what was saved since the last change."""
        saves = self._saves.get(storage)
        if saves is None or saves.version != storage.version:
            saves = self._saves[storage] = Saves(storage.version)
        saves.forget()
        return saves
