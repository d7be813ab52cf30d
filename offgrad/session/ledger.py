"""The ledger: the bytes saved, kept, stored, read and recomputed, and the time waited."""

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

from offgrad._display import Part, as_html, as_rich, as_text
from offgrad.memory import format_nbytes
from offgrad.session.ledger_table import PAGED, SAVED, Column, grids

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(slots=True)
class Figures:
    """The counts of one row, or of a whole session. Names of bytes end in ``nbytes``.

    Attributes:
        saves: tensors saved for backward.
        logical_nbytes: bytes of all saves.
        unique_nbytes: bytes of all saves, where memory that is saved several times counts once.
        kept_nbytes: the part of the logical bytes that the policy kept in memory.
        writes: arrays put into stores.
        encoded_nbytes: bytes of the written arrays as the stores' codecs encode them; without a
            codec, bytes of the arrays. Arrays freed before their write do not count. A lower limit,
            as `stored_nbytes` and `written_nbytes`: the size is known once the array is written,
            and gone when it is freed. It is looked up at later saves and unpacks of the same row,
            before each backward pass, and when the ledger is read; an array that is written and
            freed between two of these is missing. `writes` is exact.
        stored_nbytes: bytes that the written arrays take in the stores: the encoded bytes, rounded
            up to the blocks of the store.
        written_nbytes: the part of the stored bytes in stores other than a PoolStore.
        reads: arrays got from stores.
        read_nbytes: bytes of these.
        recomputes: recomputed arrays.
        recomputed_nbytes: bytes of these.
        unpacks: saved arrays given back.
        hits: unpacks that found the array in memory, or prefetched, even if the read was not done.
            Arrays that the program references anyway are neither kept nor written; their unpacks
            are hits.
        write_waits: saves that waited for a store for 0.1 ms or longer.
        read_waits: unpacks that waited for a store for 0.1 ms or longer.
        write_stall_seconds: time that saves spent in stores and on making room.
        read_stall_seconds: time that unpacks spent in stores.
    """

    saves: int = 0
    logical_nbytes: int = 0
    unique_nbytes: int = 0
    kept_nbytes: int = 0
    writes: int = 0
    encoded_nbytes: int = 0
    stored_nbytes: int = 0
    written_nbytes: int = 0
    reads: int = 0
    read_nbytes: int = 0
    recomputes: int = 0
    recomputed_nbytes: int = 0
    unpacks: int = 0
    hits: int = 0
    write_waits: int = 0
    read_waits: int = 0
    write_stall_seconds: float = 0.0
    read_stall_seconds: float = 0.0

    @property
    def waits(self) -> int:
        """How often computing threads waited for stores."""
        return self.write_waits + self.read_waits

    @property
    def stall_seconds(self) -> float:
        """How long computing threads waited for stores."""
        return self.write_stall_seconds + self.read_stall_seconds

    def add(self, other: "Figures") -> None:
        """Add the figures of `other` to these."""
        for name in _NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def as_dict(self) -> dict[str, Any]:
        """Return all figures by name."""
        figures = {name: getattr(self, name) for name in _NAMES}
        return figures | {"waits": self.waits, "stall_seconds": self.stall_seconds}


_NAMES = tuple(each.name for each in fields(Figures))


@dataclass(slots=True)
class LedgerRow(Figures):
    """The figures of one op, slot and module.

    If several saves share an array, its writes, reads and hits count in the row of the first save.

    Attributes:
        op: the name of the node that saved.
        slot: the name under which the node saved.
        module: the qualified name of the running module; ``""`` is the model itself.
        store: the store to which the policy sends them, or several: ``"disk:lz4, pool"``; ``""``
            if none.
    """

    op: str = ""
    slot: str = ""
    module: str = ""
    store: str = ""

    def add(self, other: Figures) -> None:
        """Add the figures of `other` to these, and its stores."""
        Figures.add(self, other)
        if isinstance(other, LedgerRow):
            self.add_stores(other.store)

    def add_stores(self, stores: str) -> None:
        """Name further stores."""
        if stores != self.store:
            names = {*self.store.split(", "), *stores.split(", ")} - {""}
            self.store = ", ".join(sorted(names))

    def as_dict(self) -> dict[str, Any]:
        """Return op, slot, module, store and all figures by name."""
        names = {name: getattr(self, name) for name in ("op", "slot", "module", "store")}
        return names | Figures.as_dict(self)


@dataclass(slots=True, repr=False)
class Ledger(Figures):
    """The figures of a session so far: of each row, and their sums.

    They count the session's own work only, even if others use the same stores.

    Attributes:
        rows: one for each op, slot and module, most bytes saved first.
    """

    rows: list[LedgerRow] = field(default_factory=list)

    @classmethod
    def of(cls, rows: Iterable[LedgerRow]) -> Self:
        """Return the ledger with these rows."""
        ledger = cls(rows=sorted(rows, key=lambda row: -row.logical_nbytes))
        for row in ledger.rows:
            ledger.add(row)
        return ledger

    @property
    def by_slot(self) -> Counter[tuple[str, str]]:
        """Logical bytes by node name and slot."""
        return Counter({key: each.logical_nbytes for key, each in self._by(_slot).items()})

    @property
    def by_module(self) -> Counter[str]:
        """Logical bytes by the qualified name of the module; ``""`` is the model itself."""
        return Counter({key: each.logical_nbytes for key, each in self._by(_module).items()})

    def as_dict(self) -> dict[str, Any]:
        """Return the sums, `by_slot` with keys such as ``"GeluBackward0.self"``, and the rows."""
        return Figures.as_dict(self) | {
            "by_slot": {f"{op}.{slot}": n for (op, slot), n in self.by_slot.most_common()},
            "by_module": dict(self.by_module.most_common()),
            "rows": [row.as_dict() for row in self.rows],
        }

    def to_json(self, indent: int | None = None) -> str:
        """Return `as_dict` as JSON."""
        return json.dumps(self.as_dict(), indent=indent)

    def _by(self, key: Callable[[LedgerRow], Any]) -> dict[Any, LedgerRow]:
        sums: dict[Hashable, LedgerRow] = {}
        for row in self.rows:
            sums.setdefault(key(row), LedgerRow()).add(row)
        return sums

    def __str__(self) -> str:
        return as_text(self.__rich__())

    def __rich__(self) -> "RenderableType":
        return as_rich(self._parts())

    def _repr_html_(self) -> str:
        return as_html(self._parts())

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary}>"

    def _parts(self) -> list[Part]:
        """Return the sums, and tables by slot and by module."""
        slots = {f"{op}.{slot}": each for (op, slot), each in self._by(_slot).items()}
        modules = {name or "(the model itself)": each for name, each in self._by(_module).items()}
        groups = {"op and slot": slots} | ({"module": modules} if len(modules) > 1 else {})
        return ["\n".join(self._sums()), *grids(groups, self._columns)]

    @property
    def summary(self) -> str:
        """One line for a session."""
        return (
            f"{_counted(self.saves, 'tensor')} saved, {format_nbytes(self.logical_nbytes)}; "
            f"{format_nbytes(self.kept_nbytes)} kept, {format_nbytes(self.stored_nbytes)} stored, "
            f"{format_nbytes(self.read_nbytes)} read, {self.stall_seconds:.3f} s waited"
        )

    def _sums(self) -> list[str]:
        return [
            f"{_counted(self.saves, 'tensor')} saved for backward, "
            f"{format_nbytes(self.logical_nbytes)}, of which "
            f"{format_nbytes(self.unique_nbytes)} unique and "
            f"{format_nbytes(self.kept_nbytes)} kept",
            f"{format_nbytes(self.encoded_nbytes)} encoded, {format_nbytes(self.stored_nbytes)} "
            f"stored, {format_nbytes(self.written_nbytes)} of them on disk; "
            f"{format_nbytes(self.read_nbytes)} read back, "
            f"{format_nbytes(self.recomputed_nbytes)} recomputed; "
            f"{self.stall_seconds:.3f} s waited",
        ]

    _columns: ClassVar[Mapping[str, Column]] = SAVED


@dataclass(slots=True, repr=False)
class PageLedger(Ledger):
    """The figures of paged tensors, as those of saved ones.

    An op is ``"Parameter"``, ``"Gradient"`` or ``"State"``, the slot the parameter's name. Saves
    count pages, also those of gradients that earlier steps had; hits are uses of pages that were in
    memory or read ahead.
    """

    def _sums(self) -> list[str]:
        return [self.summary]

    @property
    def summary(self) -> str:
        """One line for a model."""
        return (
            f"{_counted(self.saves, 'page')}, {format_nbytes(self.logical_nbytes)}; "
            f"{format_nbytes(self.written_nbytes)} written, "
            f"{format_nbytes(self.read_nbytes)} read; {self.stall_seconds:.3f} s waited"
        )

    _columns: ClassVar[Mapping[str, Column]] = PAGED


def _slot(row: LedgerRow) -> tuple[str, str]:
    return row.op, row.slot


def _module(row: LedgerRow) -> str:
    return row.module


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
