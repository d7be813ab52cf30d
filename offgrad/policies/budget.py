"""Budget and Last: tensors stay in memory while there is room; the others go to a store."""

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
    Wrapper,
    nested_policy,
)
from offgrad.policies.names import as_nbytes


@dataclass(frozen=True, repr=False)
class Budget(Policy):
    """Bounds the memory held for backward; tensors with the furthest next use are evicted first.

    The budget counts all saved tensors but parameters, which stay in memory anyway: memory that is
    held, being written, or prefetched, even if the program references it as well. A tensor larger
    than the whole budget goes to the store at once; inputs that the program references may be
    written, too. A tensor that the store cannot take stays in memory, and the operation whose
    tensor needs that room raises the store's error.

    Stores on disk collect small arrays in packs, which take of the same room: stores opened by name
    make packs of at most a sixteenth of the budget, and none for budgets below 1 MiB. The packs of
    a store object count as well, but a new one may exceed the budget by its size for a moment; a
    store with ``max_pack_nbytes=0`` has none.

    Attributes:
        nbytes: the bound. Bytes, or text such as ``"512MiB"``.
        spill: the store to evict to, as in `Store`. It must be lossless: else gradients would
            depend on which tensors were evicted.

    Raises:
        ValueError: if the text of the size or the name of the store is unknown, the size is
            negative, or the store rounds.
        TypeError: if the size is neither an int nor text, or the store neither a store nor a name.

    Example:
        >>> with offgrad.offload(Budget("1MiB", spill="disk")) as session:
        ...     loss = offgrad.randn(512, 512, requires_grad=True).exp().sin().sum()
        >>> loss.backward()
    """

    nbytes: int | str
    spill: str | AbstractArrayStore = "disk"

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", as_nbytes(self.nbytes))
        store = Store(self.spill)
        if not store.lossless:
            raise ValueError(
                f"a budget's store must give back the same bits, but {store} rounds: gradients "
                "would depend on which tensors were evicted; name a lossless codec, or none"
            )
        object.__setattr__(self, "spill", store.store if store.codec is None else str(store))

    def place(self, context: SaveContext) -> Placement | None:
        if context.is_parameter:
            return None
        return Spill(Store(self.spill), nbytes=int(self.nbytes))

    @property
    def recomputes(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"{format_nbytes(int(self.nbytes))}, the rest to {Store(self.spill)}"


@dataclass(frozen=True, repr=False)
class Last(Wrapper):
    """Keeps the last tensors in memory that another policy would send to a store.

    Backward uses them first, before a store could give them back.

    Attributes:
        count: how many tensors stay; those that share memory count as one.
        then: the other policy; in any form of `as_policy` but a mapping.

    Raises:
        ValueError: if `count` is negative.
        TypeError: if it is no int, or `then` no policy, or one by module.
    """

    count: int
    then: Any = "disk"

    def __post_init__(self) -> None:
        if not isinstance(self.count, int) or isinstance(self.count, bool):
            raise TypeError(f"Last takes a number of tensors, got {type(self.count).__name__}")
        if self.count < 0:
            raise ValueError(f"Last takes a number of tensors from 0, got {self.count}")
        object.__setattr__(self, "then", nested_policy(self.then))

    def place(self, context: SaveContext) -> Placement | None:
        placement: Placement | None = self.then.place(context)
        if isinstance(placement, Store):
            return Spill(placement, last=self.count)
        return placement

    def __str__(self) -> str:
        return f"the last {self.count} stay, others: {self.then}"
