"""Dedup: the saved ranges of each storage, so that the same bytes are stored once."""

from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary, ref

from offgrad.memory import Storage
from offgrad.policies import Placement, Spill
from offgrad.session.saved_array import Layout, SavedArray, StorageRange

Key: TypeAlias = tuple[Any, ...]
"""First byte, dtype, and number of bytes, or shape and strides where these have gaps."""

_MIN_TO_PRUNE = 64


class Match(NamedTuple):
    """The result of a lookup of a range that is being saved.

    Attributes:
        saved: an array that holds its bytes; None if there is none yet.
        layout: how the tensor lies over that array, or over a copy of its own elements.
        is_known: whether these bytes were saved before, stored or kept.
        key: the key of a new array, for `SavedRanges.put`.
    """

    saved: SavedArray | None
    layout: Layout
    is_known: bool
    key: Key


class SavedRanges:
    """The saved ranges of one storage at one version, each stored or kept."""

    __slots__ = ("_max_ranges", "_ranges", "_whole", "version")

    def __init__(self, version: int) -> None:
        self.version = version
        self._ranges: dict[Key, ref[SavedArray] | None] = {}
        self._whole: ref[SavedArray] | None = None
        self._max_ranges = _MIN_TO_PRUNE

    def find(self, part: StorageRange, placement: Placement, *, lossless: bool) -> Match:
        """Look `part` up, and note that it was saved.

        Args:
            part: a range of this storage.
            placement: the policy's answer.
            lossless: whether it gives back the same bits; if not, only saves with an equal
                placement share the array.
        """
        key: Key = (part.begin, part.data.dtype, _extent(part))
        if part.storage.external:  # it may have changed since an earlier save
            self._ranges.setdefault(key, None)
            return Match(None, part.layout, False, key)
        covering = None if isinstance(placement, Spill) else self._covering(part.data.nbytes)
        is_known = covering is not None or key in self._ranges
        self._ranges.setdefault(key, None)
        if not lossless:
            key = (*key, placement)
        known = self._ranges.get(key)
        saved = None if known is None else known()
        layout = part.layout
        if saved is None and covering is not None and lossless:
            saved, layout = covering, part.layout_in_storage
        return Match(saved, layout, is_known, key)

    def put(self, key: Key, saved: SavedArray, part: StorageRange) -> None:
        """Note the array that holds the bytes of `part`."""
        self._ranges[key] = ref(saved)
        if saved.lossless and part.is_dense and part.data.nbytes == part.storage.root.nbytes:
            self._whole = self._ranges[key]

    def prune(self) -> None:
        """Forget ranges that are not stored once there are many, as batches of one tensor are."""
        if len(self._ranges) >= self._max_ranges:
            for key, saved in list(self._ranges.items()):
                if saved is None or saved() is None:
                    del self._ranges[key]
            self._max_ranges = max(_MIN_TO_PRUNE, 2 * len(self._ranges))

    def _covering(self, nbytes: int) -> SavedArray | None:
        """Return the array of the whole storage, for a slice of `nbytes`; None if there is none.

        Slices below a quarter are stored separately: reading the whole array would cost more.
        Budgeted arrays never cover slices, since the budget must hold for the slice itself.
        """
        whole = None if self._whole is None else self._whole()
        if whole is None or whole.budget is not None or 4 * nbytes < whole.nbytes:
            return None
        return whole


def _extent(part: StorageRange) -> Any:
    data = part.data
    return data.nbytes if part.is_dense else (data.shape, data.strides)


class DedupIndex:
    """The saved ranges of each living storage at its present version."""

    def __init__(self) -> None:
        self._by_storage: WeakKeyDictionary[Storage, SavedRanges] = WeakKeyDictionary()

    def ranges_of(self, storage: Storage) -> SavedRanges:
        """Return the ranges saved since the last change of `storage`."""
        ranges = self._by_storage.get(storage)
        if ranges is None or ranges.version != storage.version:
            ranges = self._by_storage[storage] = SavedRanges(storage.version)
        ranges.prune()
        return ranges
