"""Budget and Last: what stays in memory while there is room, and goes to a store then."""

from dataclasses import dataclass
from typing import Any

from offgrad_storage import AbstractArrayStore

from offgrad.memory import format_nbytes
from offgrad.policies.base import (
    Placement,
    Policy,
    SaveContext,
    Spill,
    Store,
)
from offgrad.policies.combined import lossless, part, recomputes
from offgrad.policies.names import as_nbytes


@dataclass(frozen=True)
class Budget(Policy):
    """At most so many bytes of memory are held for backward; what is used last makes way.

    All that is saved takes of the budget, but parameters, which are there anyway: memory that is
    held, being written, or read ahead, also where somebody else holds it as well. A tensor larger
    than all of it goes to the store at once, and so may what the program holds, too. What the store
    cannot take stays in memory: the op whose tensor needs that room raises why.

    Stores on disk gather arrays below 1 MiB into packs of up to 4 MiB. Their memory is the store's,
    not of tensors, and neither a budget nor `memory.limit` counts it: a pack being filled, those
    being written (as `inflight_nbytes` of the store allows), and up to 64 MiB read ahead. A store
    with ``pack_below_nbytes=0`` has none.

    Attributes:
        nbytes: the bound. Bytes, or text such as ``"512MiB"``.
        spill: the store of what makes way, as in `Store`. Without a codec that loses: else what
            backward gets would depend on what had to make way.

    Raises:
        ValueError: if the size or the store is none, or the store rounds.
        TypeError: likewise.
    """

    nbytes: int | str
    spill: str | AbstractArrayStore = "disk"

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", as_nbytes(self.nbytes))
        store = Store(self.spill)
        if not store.lossless:
            raise ValueError(
                f"a budget's store must give back the same bits, but {store} rounds: what backward "
                "gets would depend on what had to make way"
            )
        object.__setattr__(self, "spill", store.store if store.codec is None else str(store))

    def place(self, context: SaveContext) -> Placement | None:
        """Return `Spill` for what is no parameter."""
        if context.is_parameter:
            return None
        return Spill(Store(self.spill), nbytes=as_nbytes(self.nbytes))

    @property
    def recomputes(self) -> bool:
        """False."""
        return False

    def __str__(self) -> str:
        return f"{format_nbytes(as_nbytes(self.nbytes))}, the rest to {Store(self.spill)}"


@dataclass(frozen=True)
class Last(Policy):
    """What another policy sends to a store stays in memory while it is of the last saved.

    Backward uses that first, before what is in the store can be back.

    Attributes:
        count: how many tensors stay; those that share memory count as one.
        then: the other policy; whatever `as_policy` takes but mappings.

    Raises:
        ValueError: if `count` is negative.
        TypeError: if it is no int, or `then` no policy, or one by module.
    """

    count: int
    then: Any = "disk"

    def __post_init__(self) -> None:
        if not isinstance(self.count, int) or isinstance(self.count, bool):
            raise TypeError(f"how many stay is an int, got {type(self.count).__name__}")
        if self.count < 0:
            raise ValueError(f"how many stay is a number from 0, got {self.count}")
        object.__setattr__(self, "then", part(self.then))

    def place(self, context: SaveContext) -> Placement | None:
        """Return what `then` returns, with a `Spill` for a store."""
        placement: Placement | None = self.then.place(context)
        if isinstance(placement, Store):
            return Spill(placement, last=self.count)
        return placement

    @property
    def lossless(self) -> bool:
        """As `then`."""
        return lossless(self.then)

    @property
    def recomputes(self) -> bool:
        """As `then`."""
        return recomputes(self.then)

    def __str__(self) -> str:
        return f"the last {self.count} stay, others: {self.then}"
