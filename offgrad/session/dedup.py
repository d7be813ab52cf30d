"""Dedup: what was saved of each memory, so that it is stored once."""

from typing import Any, TypeAlias
from weakref import WeakKeyDictionary, ref

from offgrad.memory import Storage
from offgrad.session.saved_array import Entry

Key: TypeAlias = tuple[Any, ...]
"""First byte, dtype, and number of bytes, or shape and strides where these have gaps."""

_FEW = 64


class Saves:
    """What was saved of one storage at one version: a range of bytes each, stored or kept."""

    __slots__ = ("_most", "_whole", "entries", "version")

    def __init__(self, version: int) -> None:
        self.version = version
        self.entries: dict[Key, ref[Entry] | None] = {}
        self._whole: ref[Entry] | None = None
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

    def put(self, key: Key, entry: Entry, *, is_whole: bool) -> None:
        """Note what is stored of a range, which perhaps is all of the storage."""
        self.entries[key] = ref(entry)
        if is_whole and entry.lossless:
            self._whole = self.entries[key]

    def covering(self, nbytes: int) -> Entry | None:
        """Return the entry of all of the storage, for a part of so many bytes; None if none is.

        For less than a quarter, a copy of its own is cheaper than to have all of it back. Of what
        takes of a bound there is none: that has to hold for the part alone.
        """
        whole = None if self._whole is None else self._whole()
        if whole is None or whole.residents is not None or 4 * nbytes < whole.nbytes:
            return None
        return whole


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
