"""What holds the memory that a meter counts, by category."""

from collections import Counter
from typing import Any

from offgrad.memory.meta import MetaMemory, memory_of
from offgrad.memory.meter import ArrayMeter
from offgrad.memory.storage import Storage, savers
from offgrad.prediction.estimate_pages import EstimatedPages
from offgrad.prediction.estimate_pool import IN_FLIGHT, PREFETCHED, SAVED

PARAMETERS, GRADIENTS, STATE = "parameters", "gradients", "optimizer state"
INPUTS, TEMPORARY = "inputs", "temporary"
CATEGORIES = (
    PARAMETERS, GRADIENTS, STATE, SAVED, PREFETCHED, IN_FLIGHT, INPUTS, TEMPORARY,
)  # fmt: skip
_BY_ROLE = {
    "parameters": PARAMETERS,
    "buffers": PARAMETERS,
    "gradients": GRADIENTS,
    "optimizer state": STATE,
    "saved for backward, to be written": SAVED,
    INPUTS: INPUTS,
}


def contents(
    meter: ArrayMeter, pages: EstimatedPages, session: Any
) -> tuple[dict[str, int], Counter[str]]:
    """Return the counted bytes by category; and those saved for backward by what saved them.

    Args:
        meter: that counts.
        pages: what is counted apart.
        session: whose budgets hold memory, or None.
    """
    storages: dict[int, Storage] = {}
    for storage in meter.storages:
        owner = memory_of(storage.root)
        is_by_memory = owner is not None and owner.is_counted
        storages.setdefault(id(owner if is_by_memory else storage), storage)
    saved_by = _saved(session)
    sums: dict[str, int] = dict.fromkeys(CATEGORIES, 0)
    origins: Counter[str] = Counter()
    for reference, nbytes in meter.counter.living():
        holder = reference()
        holding = storages.get(id(holder))
        category = _category(holder, holding, saved_by)
        sums[category] += nbytes
        if category == SAVED:
            uid = -1 if holding is None else holding.uid
            origins[saved_by.get(uid, "copies in memory")] += nbytes
    for role, nbytes in pages.by_role().items():
        sums[_BY_ROLE.get(role, TEMPORARY)] += nbytes
    return sums, origins


def _category(holder: Any, storage: Storage | None, saved_by: dict[int, str]) -> str:
    role = "" if storage is None else storage.role
    if role in _BY_ROLE:
        return _BY_ROLE[role]
    if isinstance(holder, MetaMemory) and holder.role:
        return holder.role
    if storage is not None and storage.uid in saved_by:
        return SAVED
    return TEMPORARY


def _saved(session: Any) -> dict[int, str]:
    """Return what saved each storage that is in memory for backward, by the storage's uid."""
    found: dict[int, str] = {}
    for saver in savers:
        storage = saver.kept_storage()
        if storage is not None:
            found.setdefault(storage.uid, saver.origin())
    for budget in () if session is None else session._budgets:
        for room in budget._rooms.values():
            cached = room.cached()
            if cached is not None:
                for each in (*cached.arrays, *cached.evicted):
                    row = each.attributes
                    found.setdefault(cached.storage.uid, f"{row['op']}.{row['slot']}")
    return found
