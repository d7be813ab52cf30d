"""The owners of tensor memory: the objects for which the counter counts it."""

from typing import Any

from offgrad_storage.memory.buffer_pool import lease_of

from offgrad.autograd.saved_tensor import SavedTensor
from offgrad.autograd.tensor_base import TensorBase
from offgrad.memory import Storage
from offgrad.session.saved_array import PackedTensor
from offgrad.session.states import Evicting, InMemory


class HoldsMemory:
    """Base class of packed objects that hold memory for a saved tensor."""

    __slots__ = ()

    def held_memory(self) -> tuple[Any, Storage | None]:
        """Return an array over the memory, and its storage; None each if there is none now."""
        raise NotImplementedError


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
    """Return the owner of memory that is kept for a saved tensor: by itself, by a budget, by a
    recorder of saves, or by a pack hook that returned a tensor.
    """
    storage = saved.kept_storage()
    if storage is not None:
        return owner_of(storage)
    packed = saved._packed
    if isinstance(packed, PackedTensor):
        if isinstance(packed.saved.state, (InMemory, Evicting)):
            found = packed.saved.find_in_memory()
            return None if found is None else owner_of(found[0])
    elif isinstance(packed, TensorBase):
        return owner_of(packed._storage)
    elif isinstance(packed, HoldsMemory):
        root, storage = packed.held_memory()
        lease = lease_of(root)
        return id(lease) if lease is not None else id(storage) if storage is not None else None
    return None
