"""Cast: stores floating-point numbers in fewer bits."""

from dataclasses import dataclass
from typing import Any

from offgrad.policies.base import (
    Keep,
    Offload,
    Placement,
    Policy,
    SaveContext,
    Store,
    Wrapper,
    nested_policy,
)
from offgrad.policies.budget import Budget, Last
from offgrad.policies.names import unknown_name
from offgrad.policies.when import When, dtype_name

_WIDE = ("float32", "float64", "complex64", "complex128")
_ROUNDED = {
    "float16": _WIDE,
    "bfloat16": _WIDE,
    "int8": ("float16", "bfloat16", *_WIDE),
    "int4": ("float16", "bfloat16", *_WIDE),
}
"""By codec, the dtypes that it rounds."""


@dataclass(frozen=True, repr=False)
class Cast(Wrapper):
    """Stores floating-point numbers rounded, so that gradients are approximate.

    Tensors that another policy sends to a store are rounded on the way. Integers, bools, floats
    that are no wider, parameters, tensors that already have a codec and tensors under a budget are
    stored as they are.

    The random rounding of ``"int8"`` and ``"int4"`` depends on the tensor alone, so a run repeats
    bit for bit. A store object has a seed: ``Offload(DiskStore(codec="int8", seed=1))``.

    Attributes:
        to: ``"float16"``, ``"bfloat16"``, ``"int8"`` or ``"int4"``: the codecs of these names,
            whose `offgrad.storage.codec(name).error_bound` gives the error; or such a dtype.
        then: the policy that sends to a store; in any form of `as_policy` but a mapping. By default
            rounded tensors stay in RAM (``"pool"``), and others are not copied there.

    Raises:
        ValueError: if there is no such cast, or the store of `then` does not support it.
        TypeError: if `then` is no policy, or one by module.
    """

    to: Any
    then: Any = None

    def __post_init__(self) -> None:
        to = self.to if isinstance(self.to, str) else dtype_name(self.to)
        if to not in _ROUNDED:
            raise unknown_name("cast", to, _ROUNDED)
        object.__setattr__(self, "to", to)
        then = rounded_only(to, Offload("pool")) if self.then is None else nested_policy(self.then)
        object.__setattr__(self, "then", then)
        if isinstance(then, (Keep, Cast)) or (isinstance(then, Offload) and then.codec is not None):
            raise ValueError(f"a cast applies to stores without a codec, got {then}")
        if isinstance(then, (Budget, Last)):
            raise ValueError(
                f"a cast rounds tensors that go to a store at once, got {then}; a budget is "
                f"lossless, and Last takes the cast as a part: Last(8, Cast({to!r}, 'disk'))"
            )
        if isinstance(then, Offload):
            Store(then.store, to)  # raises where that cannot be

    def place(self, context: SaveContext) -> Placement | None:
        placement: Placement | None = self.then.place(context)
        if not isinstance(placement, Store) or placement.codec is not None:
            return placement
        if context.is_parameter or context.dtype.name not in _ROUNDED[self.to]:
            return placement
        return Store(placement.store, self.to)

    @property
    def lossless(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"cast to {self.to} ({self.then})"


def rounded_only(to: str, then: Policy) -> Policy:
    """Return `then` for rounded dtypes only: other tensors would be in memory twice."""
    return When(then, dtype=_ROUNDED[to]) if to in _ROUNDED else then
