"""Cast: fewer bits for each number that is stored."""

from dataclasses import dataclass
from typing import Any

from offgrad.policies.base import (
    Keep,
    Offload,
    Placement,
    Policy,
    SaveContext,
    Store,
)
from offgrad.policies.budget import Budget, Last
from offgrad.policies.combined import part, recomputes
from offgrad.policies.names import unknown
from offgrad.policies.when import When, dtype_name

_WIDE = ("float32", "float64", "complex64", "complex128")
_ROUNDED = {
    "float16": _WIDE,
    "bfloat16": _WIDE,
    "int8": ("float16", "bfloat16", *_WIDE),
    "int4": ("float16", "bfloat16", *_WIDE),
}
"""By codec, the dtypes that it rounds."""


@dataclass(frozen=True)
class Cast(Policy):
    """Stores floating-point numbers rounded: what backward computes with is close, not the same.

    What another policy sends to a store goes there rounded. Integers, bools, floats that are no
    wider, and parameters go as they are, and so does what has a codec already, or waits in a budget
    for its room.

    What ``"int8"`` and ``"int4"`` round at random depends on the tensor alone, so a run repeats bit
    for bit. A store of one's own has a seed: ``Offload(DiskStore(codec="int8", seed=1))``.

    Attributes:
        to: ``"float16"``, ``"bfloat16"``, ``"int8"`` or ``"int4"``: the codecs of these names,
            whose `offgrad.storage.codec(name).error_bound` says how close; or such a dtype.
        then: the policy that sends to a store; whatever `as_policy` takes but mappings. By default
            what is rounded stays in RAM (``"pool"``), and what is not is not copied there either.

    Raises:
        ValueError: if there is no such cast, or `then` has a store that cannot do it.
        TypeError: if `then` is no policy, or one by module.
    """

    to: Any
    then: Any = None

    def __post_init__(self) -> None:
        to = self.to if isinstance(self.to, str) else dtype_name(self.to)
        if to not in _ROUNDED:
            raise unknown("cast", to, _ROUNDED)
        object.__setattr__(self, "to", to)
        then = in_memory(to, Offload("pool")) if self.then is None else part(self.then)
        object.__setattr__(self, "then", then)
        if isinstance(then, Keep | Cast) or (isinstance(then, Offload) and then.codec is not None):
            raise ValueError(f"a cast is for what goes to a store without a codec, got {then}")
        if isinstance(then, Budget | Last):
            raise ValueError(
                f"a cast rounds what goes to a store at once, got {then}; a budget gives back the "
                f"same bits, and Last takes the cast as its own: Last(8, Cast({to!r}, 'disk'))"
            )
        if isinstance(then, Offload):
            Store(then.store, to)  # raises where that cannot be

    def place(self, context: SaveContext) -> Placement | None:
        """Return what `then` returns, with the codec if that is a store and the tensor wide."""
        placement: Placement | None = self.then.place(context)
        if not isinstance(placement, Store) or placement.codec is not None:
            return placement
        if context.is_parameter or context.dtype.name not in _ROUNDED[self.to]:
            return placement
        return Store(placement.store, self.to)

    @property
    def lossless(self) -> bool:
        """False."""
        return False

    @property
    def recomputes(self) -> bool:
        """As `then`."""
        return recomputes(self.then)

    def __str__(self) -> str:
        return f"cast to {self.to} ({self.then})"


def in_memory(to: str, then: Policy) -> Policy:
    """Return `then` for what a cast rounds alone: the rest would be in memory twice."""
    return When(then, dtype=_ROUNDED[to]) if to in _ROUNDED else then
