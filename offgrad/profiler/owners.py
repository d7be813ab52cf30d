"""The owners of tensor memory: the objects for which the counter counts it."""

from typing import Any

from offgrad_storage.memory.buffer_pool import lease_of

from offgrad.autograd.saved_tensor import SavedTensor
from offgrad.memory import Storage
from offgrad.session.saved_array import PackedTensor
from offgrad.session.states import Evicting, InMemory


def owner_of(storage: Storage) -> int | None:
    """Return the id of the object for which the counter counts the memory; None if it is out.

    Memory in which a page comes or goes is that of its storage, too.
    """
    root: Any
    if storage.is_paged:
        page: Any = storage.page  # type: ignore[attr-defined]
        places = (getattr(page, name, None) for name in ("_array", "leaving", "buffer"))
        root = next((each for each in places if each is not None), None)
        if root is None:
            return None
    else:
        root = storage.root
    lease = lease_of(root)
    return id(storage) if lease is None else id(lease)


def kept_owner(saved: SavedTensor) -> int | None:
    """Return the owner of memory that is kept for a saved tensor, by itself or by a budget."""
    storage = saved.kept_storage()
    if storage is not None:
        return owner_of(storage)
    packed = saved._packed
    if isinstance(packed, PackedTensor) and isinstance(packed.saved.state, InMemory | Evicting):
        found = packed.saved.find_in_memory()
        return None if found is None else owner_of(found[0])
    return None
