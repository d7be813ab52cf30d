"""The states of a saved array, and the transitions between them.

```
(new) ─► InMemory ◄─► Evicting ─► Stored        within a budget
      ─► Deferred ─► Stored                     in memory that the program references
      ─► Stored
      ─► Recomputed
```
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from offgrad_storage import AbstractArrayStore, Handle

if TYPE_CHECKING:
    from offgrad.session.cached_storage import CachedStorage
    from offgrad.session.deferred_writes import SharedStorage
    from offgrad.session.recompute import Recomputation
    from offgrad.session.saved_array import Array


class InMemory(NamedTuple):
    """A budget holds the array in `cached`."""

    cached: "CachedStorage"


class Deferred(NamedTuple):
    """The array is not written while the program references its memory.

    Attributes:
        shared: the memory.
        data: the array's part of it, its elements in memory order.
        begin: the first byte of that part; None if its bytes have gaps.
        store: where to write.
        attributes: facts for the store.
    """

    shared: "SharedStorage"
    data: "Array"
    begin: int | None
    store: AbstractArrayStore
    attributes: Mapping[str, object]


class Stored:
    """The array is in a store; its write may be pending.

    Attributes:
        handle: of the array; the stored array goes with the last saved tensor.
        buffer: the memory that a prefetch is filling.
    """

    __slots__ = ("buffer", "handle")

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.buffer: Array | None = None


class Evicting(NamedTuple):
    """A budget has the array written, and holds it in `cached` until it is.

    Attributes:
        cached: the memory.
        stored: the next state; None until the store has taken the array.
    """

    cached: "CachedStorage"
    stored: Stored | None


class Recomputed(NamedTuple):
    """The array is computed again on each use."""

    recomputation: "Recomputation"


State: TypeAlias = InMemory | Deferred | Evicting | Stored | Recomputed | None

NEXT: dict[type[object], tuple[type[object], ...]] = {
    type(None): (InMemory, Deferred, Stored, Recomputed),
    InMemory: (Evicting,),
    Evicting: (Evicting, Stored, InMemory),
    Deferred: (Deferred, Stored),
    Stored: (),
    Recomputed: (),
}
"""The states that may follow each state."""
