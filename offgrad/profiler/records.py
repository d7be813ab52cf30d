"""What is known of one piece of tensor memory."""

from types import CodeType
from typing import Any

from offgrad.profiler.categories import IN_FLIGHT, INPUT, LASTING, PREFETCHED, SAVED, TEMPORARY


class Record:
    """One piece of tensor memory, from its allocation until it is freed.

    Attributes:
        nbytes: its size.
        base: its category, but for what follows.
        saves: the ids of the saved tensors that keep it for backward.
        is_dead: whether it is freed.
        flights: how many stores have it, and have not captured it.
        category: as of the last event.
        shown: as of the last change that was added up.
        keeper: the module that was found to save it, while it is shown as saved for backward.
        op, slot, module: of the operation that made it, or saved it first.
        shape, dtype: of the first tensor over it; None if it had none.
        site: code and number of the line that made it.
        birth: the change that added it, until it is accounted for; see `Account`.
    """

    __slots__ = (
        "base", "birth", "category", "dtype", "flights", "is_dead", "keeper", "module", "nbytes",
        "op", "owner", "saves", "shape", "shown", "site", "slot",
    )  # fmt: skip

    def __init__(self, nbytes: int, owner: int, base: int) -> None:
        self.nbytes = nbytes
        self.owner = owner
        self.base = self.category = self.shown = base
        self.saves: set[int] | None = None
        self.flights = 0
        self.is_dead = False
        self.op = self.slot = self.module = self.keeper = ""
        self.shape: tuple[int, ...] | None = None
        self.dtype: Any = None
        self.site: tuple[CodeType, int] | None = None
        self.birth: list[Any] | None = None

    def find_category(self) -> int:
        """Return the category that applies now."""
        base = self.base
        if base in LASTING:
            return base
        if self.flights:
            return IN_FLIGHT
        if base in (IN_FLIGHT, PREFETCHED, INPUT):
            return base
        return SAVED if self.saves else base

    @property
    def is_plain(self) -> bool:
        """Whether nothing has told what it is for."""
        return self.base == TEMPORARY and not self.saves and not self.flights
