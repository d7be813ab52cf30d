"""The holders of tensor memory, and the remedy that fits them, for an `OutOfMemoryError`."""

import operator
from collections import Counter
from collections.abc import Iterator

from offgrad.memory.allocator import counter
from offgrad.memory.storage import (
    LASTING_ROLES,
    OTHER_TENSORS,
    Saver,
    Storage,
    large_storages,
    savers,
)
from offgrad.memory.units import format_nbytes

SAVED = "saved for backward"
_REST = "buffers in use, pending writes and small tensors"
_MAX_SAVERS = 3
# A purpose with a smaller part of the memory gets no remedy of its own.
_MIN_PART = 0.2


def memory_by_holder() -> dict[str, int]:
    """Return the held bytes by purpose, largest first.

    Tensors saved for backward are listed by the node and slot that saved them.
    """
    held: Counter[str] = Counter()
    for purpose, saver, nbytes in _holders():
        held[purpose if saver is None else f"{SAVED} by {saver.origin()}"] += nbytes
    return {purpose: nbytes for purpose, nbytes in held.most_common() if nbytes}


def saved_by_module() -> dict[str, int]:
    """Return the bytes kept for backward by the module that saved them first.

    Only tensors of at least `POOL_THRESHOLD` bytes count, parameters excluded. Module names are
    known while a session or a profile is active; else the name is ``""``.
    """
    held: Counter[str] = Counter()
    for saver, storage in _first_savers().values():
        held[saver.module] += storage.resident_nbytes
    return dict(held.most_common())


def describe(requested: int) -> str:
    """Return sentences on the holders of tensor memory, and on the remedies that fit them.

    Args:
        requested: bytes asked for.
    """
    by_purpose: Counter[str] = Counter()
    by_saver: Counter[str] = Counter()
    kept_by_policy = 0
    for purpose, saver, nbytes in _holders():
        by_purpose[purpose] += nbytes
        if saver is not None:
            by_saver[saver.origin()] += nbytes
            kept_by_policy += nbytes * saver.kept_by_policy
    parts = []
    for purpose, nbytes in by_purpose.most_common():
        if not nbytes:  # pages that are in their store
            continue
        largest = by_saver.most_common(_MAX_SAVERS) if purpose == SAVED else ()
        savers_of = ", ".join(f"{format_nbytes(n)} by {origin}" for origin, n in largest)
        parts.append(
            f"{format_nbytes(nbytes)} {purpose}" + (f" (most: {savers_of})" if savers_of else "")
        )
    is_kept_by_policy = 2 * kept_by_policy > by_purpose[SAVED]
    remedies = " ".join(_remedies(by_purpose, requested, is_kept_by_policy))
    return f"Held: {', '.join(parts) or 'nothing'}. {remedies}"


def _holders() -> Iterator[tuple[str, Saver | None, int]]:
    """Yield purpose, saver if it is saved for backward, and bytes of all tensor memory."""
    saved = _first_savers()
    total = 0
    for storage in large_storages:
        if storage.original is not None and storage.original() is not None:
            continue  # the same memory
        saver, _ = saved.get(storage.uid, (None, None))
        nbytes = storage.resident_nbytes
        total += nbytes
        yield storage.purpose if saver is None else SAVED, saver, nbytes
    for reclaimable in counter.reclaimables:
        for purpose, nbytes in reclaimable.held_by_purpose().items():
            if nbytes:
                total += nbytes
                yield purpose, None, nbytes
    rest = counter.allocated - total
    if rest > 0:
        yield _REST, None, rest


def _first_savers() -> dict[int, tuple[Saver, Storage]]:
    """Return by uid each storage that is in memory only for backward, with its first saver."""
    saved: dict[int, tuple[Saver, Storage]] = {}
    for saver in savers:
        storage = saver.kept_storage()
        if storage is not None and storage.role not in LASTING_ROLES:
            saved.setdefault(storage.uid, (saver, storage))
    return saved


def _remedies(by_purpose: "Counter[str]", requested: int, is_kept_by_policy: bool) -> Iterator[str]:
    """Yield a sentence for each group of purposes that holds a large part, largest first."""
    if counter.limit is not None and requested > counter.limit:
        yield "This one request exceeds the limit: make the batch smaller."
        return
    groups: Counter[str] = Counter()
    for purpose, nbytes in by_purpose.items():
        groups[_GROUPS.get(purpose, purpose)] += nbytes
    known = says_smaller = False
    for group, nbytes in groups.most_common():
        if nbytes < _MIN_PART * groups.total():
            break
        if group == SAVED:
            known = says_smaller = True
            yield _KEPT_BY_POLICY if is_kept_by_policy else _KEPT_WITHOUT_SESSION
        elif group == _LASTING:
            known = True
            yield _paging_remedy() or _lasting_remedy(by_purpose)
        elif group in _REMEDIES:
            known = True
            yield _DROP if group == OTHER_TENSORS and says_smaller else _REMEDIES[group]
    if not known:
        yield "Make the batch smaller."
        yield from filter(None, [_paging_remedy()])


def _paging_remedy() -> str:
    """Return what those advise who page tensors and hold most; nothing if there are none."""
    remedies = [getattr(each, "remedy", None) for each in counter.reclaimables]
    advice: list[tuple[int, str]] = [each(counter.limit) for each in remedies if each is not None]
    return max(filter(operator.itemgetter(1), advice), default=(0, ""))[1]


def _lasting_remedy(by_purpose: "Counter[str]") -> str:
    state, weights = by_purpose["optimizer state"], by_purpose["parameters"]
    fewer = ", or an optimizer with less state, such as SGD" if state >= weights > 0 else ""
    return (
        "offgrad.offload() moves only tensors saved for backward. Page parameters, gradients and "
        "optimizer state by offgrad.offload_model(model, 'disk'), or use a smaller model or a "
        f"smaller dtype{fewer}."
    )


_LASTING = "lasting"
_GROUPS = dict.fromkeys((*LASTING_ROLES, "pages read ahead", "pages being written"), _LASTING)
_KEPT_WITHOUT_SESSION = (
    "Run the forward pass under offgrad.offload('disk'), which moves tensors saved for backward "
    "out of memory, or make the batch smaller."
)
_KEPT_BY_POLICY = (
    "The policy of the session keeps the tensors saved for backward in memory: choose one that "
    "stores them, such as offgrad.offload('disk'), or make the batch smaller."
)
_DROP = (
    "Drop tensors that the program no longer needs; without backward, compute under "
    "offgrad.no_grad()."
)
_REMEDIES = {
    "copies in the pool store": (
        "A pool store is memory, too: use offgrad.offload('disk') or offgrad.offload('zarr')."
    ),
    "prefetched for backward": "Read less ahead: offgrad.offload(..., prefetch_nbytes='4MiB').",
    OTHER_TENSORS: f"Make the batch smaller. {_DROP}",
}

counter.describe = describe
