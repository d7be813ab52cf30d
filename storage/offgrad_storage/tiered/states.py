"""The states of an array of a TieredStore, each with its own fields.

    new ─► copying in ─► in RAM ─► evicting ─► writing ─► lower ─► starting ─► prefetching
      └───────────────────────────────────────────────────►┘                       └─► ending ─►┘

A handle owns its array with its state: when it dies, memory and space below are free at once,
without any Python code that could be interrupted, and the store learns of it by a ``Watch``.

A failed put or write leads from evicting or writing back to RAM. In the *moving* states a thread
works with the lock released; until it is done it alone changes the state.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from offgrad_storage.base import Handle
from offgrad_storage.entry import Entry
from offgrad_storage.errors import StoreError

Array = NDArray[Any]


class TierState:
    """A state; what is not said here, a subclass sets.

    Attributes:
        name: for messages.
        is_moving: whether a thread is working on the array.
        is_counted: whether its bytes count in the budget of RAM.
        is_resident: whether ``array`` is in RAM, so that a get can copy it.
        is_leaving: whether it is resident, and on its way to a lower tier.
        is_evictable: whether it can be evicted if it is counted.
        array: the copy in RAM.
        lower: the handle in the lower tier.
        target: the array that a prefetch fills.
        failure: the error of its last write to a lower tier, until a put raises it; else None.
        next_tier: index of the lower tier to try first.
    """

    __slots__ = ()

    name: str
    is_moving = False
    is_counted = False
    is_resident = False
    is_leaving = False
    is_evictable = False
    array: Array | None = None
    lower: Handle | None = None
    target: Array | None = None
    failure: StoreError | None = None
    next_tier = 0

    @property
    def memory(self) -> Array | None:
        """The memory whose bytes count, if it is allocated."""
        return self.array if self.is_resident else None

    @property
    def is_captured(self) -> bool:
        """Whether the array passed to put may be changed or freed."""
        return True


class New(TierState):
    """Not stored yet."""

    __slots__ = ()
    name = "new"

    @property
    def is_captured(self) -> bool:
        """Whether the array passed to put may be changed or freed."""
        return False


class CopyingIn(New):
    """Memory is claimed in RAM, and a thread copies the array there."""

    __slots__ = ()
    name = "copying in"
    is_moving = is_counted = True


class InRam(TierState):
    """In RAM only."""

    __slots__ = ("array", "failure", "next_tier")
    name = "ram"
    is_counted = is_resident = is_evictable = True

    def __init__(self, array: Array, failure: StoreError | None = None, next_tier: int = 0) -> None:
        self.array: Array = array
        self.failure = failure
        self.next_tier = next_tier


class Evicting(InRam):
    """In RAM, while a thread puts it into a lower tier; the fields are those before."""

    __slots__ = ()
    name = "evicting"
    is_moving = is_leaving = True
    is_evictable = False


class Writing(TierState):
    """In RAM, and put into a lower tier: perhaps written already.

    Attributes:
        tier: index of the lower tier.
    """

    __slots__ = ("array", "lower", "tier")
    name = "writing"
    is_counted = is_resident = is_leaving = True

    def __init__(self, array: Array, lower: Handle, tier: int) -> None:
        self.array: Array = array
        self.lower: Handle = lower
        self.tier = tier


class Lower(TierState):
    """In a lower tier."""

    __slots__ = ("lower",)
    name = "lower"

    def __init__(self, lower: Handle) -> None:
        self.lower: Handle = lower

    @property
    def is_captured(self) -> bool:
        """Whether the array passed to put may be changed or freed."""
        return self.lower.captured


class Starting(Lower):
    """In a lower tier, while a thread starts to read it, into counted memory or the user's."""

    __slots__ = ("is_counted",)
    name = "starting"
    is_moving = True

    def __init__(self, lower: Handle, is_counted: bool) -> None:
        super().__init__(lower)
        self.is_counted = is_counted


class Prefetching(Lower):
    """In a lower tier, and being read into ``target``, which is counted or the user's."""

    __slots__ = ("is_counted", "target")
    name = "prefetching"
    is_evictable = True

    def __init__(self, lower: Handle, target: Array, is_counted: bool) -> None:
        super().__init__(lower)
        self.target: Array = target
        self.is_counted = is_counted

    @property
    def memory(self) -> Array | None:
        """The memory whose bytes count."""
        return self.target if self.is_counted else None


class Ending(Prefetching):
    """As ``Prefetching``, while a thread ends the read: by a get, or cancelling it."""

    __slots__ = ()
    name = "ending"
    is_moving = True
    is_evictable = False


class Dead(TierState):
    """Its put has failed, or the store is closed."""

    __slots__ = ()
    name = "dead"


NEW, COPYING_IN, DEAD = New(), CopyingIn(), Dead()

_NEXT: dict[type[TierState], tuple[type[TierState], ...]] = {
    New: (CopyingIn, Lower),
    CopyingIn: (InRam, Dead),
    InRam: (Evicting, Dead),
    Evicting: (Writing, InRam),
    Writing: (Lower, InRam, Dead),
    Lower: (Starting, Dead),
    Starting: (Prefetching, Lower),
    Prefetching: (Ending, Dead),
    Ending: (Lower, Prefetching),
    Dead: (),
}


class TierEntry(Entry):
    """One array of a TieredStore. Its handle, and a thread that moves it, keep it alive.

    Attributes:
        tier_state: its state; only ``RamTier`` changes it.
        requested: the array that the next get without ``out`` fills and returns, from a prefetch
            that started no read.
        watch: watches its death, once it is stored.
    """

    __slots__ = ("__weakref__", "requested", "tier_state", "watch")

    def __init__(self, serial: int, array: Array, attributes: Mapping[str, object]) -> None:
        super().__init__(serial, array, attributes)
        self.tier_state: TierState = NEW
        self.requested: Array | None = None
        self.watch: Watch | None = None

    def change(self, state: TierState) -> None:
        """Change the state.

        Raises:
            RuntimeError: there is no such transition.
        """
        before = self.tier_state
        if type(state) not in _NEXT[type(before)]:
            raise RuntimeError(
                f"TieredStore, {self}: it is {before.name}, so it cannot become {state.name}; "
                "this is an error of the store"
            )
        self.tier_state = state


class Watch(weakref.ref[TierEntry]):
    """Watches an array, with what is known and counted of it, to uncount when it is dead.

    Attributes:
        serial, nbytes: of the array.
        kind: class of its state.
        is_counted: whether its bytes count in the budget of RAM.
        memory: watches the memory of its bytes, if that is allocated.
    """

    __slots__ = ("is_counted", "kind", "memory", "nbytes", "serial")

    serial: int
    nbytes: int
    kind: type[TierState]
    is_counted: bool
    memory: weakref.ref[Any] | None
