"""The ledger: what was saved, where it went, and what that cost."""

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any

from offgrad.memory import format_nbytes
from offgrad.policies.policy import SaveContext


@dataclass
class Ledger:
    """The figures of a session, since it was made. Bytes end in ``nbytes``, times in ``seconds``.

    Attributes:
        saves: tensors saved for backward.
        logical_nbytes: their bytes, each save counted.
        unique_nbytes: their bytes, memory saved several times counted once.
        kept_nbytes: of the logical bytes, those that stayed in memory.
        stored_nbytes: bytes written to stores, encoded and rounded up.
        written_nbytes: of these, bytes written to disk.
        read_nbytes: bytes read back.
        stall_seconds: how long threads that compute waited for stores.
        by_slot: logical bytes by node name and slot.
        by_module: logical bytes by the qualified name of the module; ``""`` is the model itself.
    """

    saves: int = 0
    logical_nbytes: int = 0
    unique_nbytes: int = 0
    kept_nbytes: int = 0
    stored_nbytes: int = 0
    written_nbytes: int = 0
    read_nbytes: int = 0
    stall_seconds: float = 0.0
    by_slot: Counter[tuple[str, str]] = field(default_factory=Counter)
    by_module: Counter[str] = field(default_factory=Counter)

    def record(self, context: SaveContext, unique_nbytes: int) -> None:
        """Count one save, of which `unique_nbytes` were not saved before."""
        self.saves += 1
        self.logical_nbytes += context.nbytes
        self.unique_nbytes += unique_nbytes
        self.by_slot[context.op, context.slot] += context.nbytes
        self.by_module[context.module] += context.nbytes

    def as_dict(self) -> dict[str, Any]:
        """Return the figures; `by_slot` with keys such as ``"GeluBackward0.self"``."""
        figures = {each.name: getattr(self, each.name) for each in fields(self)}
        figures["by_slot"] = {f"{op}.{slot}": n for (op, slot), n in self.by_slot.most_common()}
        figures["by_module"] = dict(self.by_module.most_common())
        return figures

    def __str__(self) -> str:
        lines = [
            f"{self.saves} tensors saved for backward, {format_nbytes(self.logical_nbytes)}, of "
            f"which {format_nbytes(self.unique_nbytes)} unique and "
            f"{format_nbytes(self.kept_nbytes)} kept",
            f"{format_nbytes(self.stored_nbytes)} stored, {format_nbytes(self.written_nbytes)} "
            "of them on "
            f"disk; {format_nbytes(self.read_nbytes)} read back; {self.stall_seconds:.3f} s waited",
        ]
        for (op, slot), nbytes in self.by_slot.most_common(10):
            lines.append(f"  {format_nbytes(nbytes):>10}  {op}.{slot}")
        if len(self.by_module) > 1:
            lines.append("by module")
        for name, nbytes in self.by_module.most_common(10) if len(self.by_module) > 1 else ():
            lines.append(f"  {format_nbytes(nbytes):>10}  {name or '(the model itself)'}")
        return "\n".join(lines)
