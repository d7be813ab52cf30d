"""Policies: pure decisions on where a tensor saved for backward is to be.

A policy knows facts and holds no tensors; it does no I/O. The mechanics are the session's.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, TypeAlias

import numpy as np
from offgrad_storage import AbstractArrayStore

from offgrad.memory import format_nbytes
from offgrad.policies.names import (
    STORES,
    as_nbytes,
    is_lossless,
    store_and_codec,
)

MAX_RECOMPUTE_OPS = 64
"""How far chains of operations are followed (as in `offgrad.autograd.replay`)."""


@dataclass(frozen=True, slots=True)
class SaveContext:
    """The facts about one act of saving.

    Attributes:
        op: the name of the node that saves, such as ``"GeluBackward0"``.
        slot: what it is to the node, such as ``"self"`` or ``"result"``.
        module: the qualified name of the module it happens in, counted from the session's model or
            from the outermost module called, which itself is ``""``, as is none.
        dtype: of the tensor.
        shape: of the tensor.
        nbytes: of the tensor's elements.
        is_parameter: whether it is a leaf that requires grad, an `nn.Parameter`, frozen or not, or
            a view of one: it stays in memory anyway.
        is_output: whether the node itself made it.
        storage: a number that all views of the same memory share, and no other tensor.
        step: how often the session had been entered before.
        made_by: the name of the node that made it, or what it is a view of; ``""`` for a leaf.
        recompute_ops: how many cheap operations it takes to compute it again, from what the session
            has saved or what is in memory anyway; 0 if it cannot be.
    """

    op: str
    slot: str
    module: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    nbytes: int
    is_parameter: bool
    is_output: bool
    storage: int
    step: int
    made_by: str = ""
    recompute_ops: int = 0


class Policy(ABC):
    """Decides where each saved tensor goes. A policy of one's own is one method."""

    @abstractmethod
    def place(self, context: SaveContext) -> "Placement | None":
        """Return `Keep`, `Store`, `Spill` or `Recompute`; None for no answer.

        What no policy has an answer for is kept.
        """

    @property
    def lossless(self) -> bool:
        """Whether all it stores comes back bit for bit, as far as it knows."""
        return True

    @property
    def recomputes(self) -> bool:
        """Whether it may return `Recompute`: if not, nobody keeps track of what that would take."""
        return True


@dataclass(frozen=True)
class Keep(Policy):
    """Stay in memory: a placement, and the policy that gives it to every tensor."""

    def place(self, context: SaveContext) -> "Placement":
        """Return itself."""
        return self

    @property
    def recomputes(self) -> bool:
        """False."""
        return False

    def __str__(self) -> str:
        return "keep"


@dataclass(frozen=True)
class Store:
    """Go to a store, as soon as it would else be held for backward alone (see `OffloadSession`).

    Attributes:
        store: ``"pool"``, ``"disk"``, ``"zarr"``, or a store of the user's. ``"disk:lz4"`` is short
            for ``"disk"`` with the codec ``"lz4"``.
        codec: the name of what encodes the tensor on its way there (see `offgrad.storage.codec`);
            None for the store's own choice. A store of the user's has its own.

    Raises:
        ValueError: for an unknown name, or a codec for a store of the user's.
        TypeError: if these are not what they should be.
    """

    store: str | AbstractArrayStore
    codec: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.codec, str | None):
            raise TypeError(f"a codec is given by name, got {type(self.codec).__name__}")
        if isinstance(self.store, str):
            store, codec = store_and_codec(self.store, self.codec)
            object.__setattr__(self, "store", store)
            object.__setattr__(self, "codec", codec)
        elif not isinstance(self.store, AbstractArrayStore):
            raise TypeError(f"a store is a name or a store, got {type(self.store).__name__}")
        elif self.codec is not None:
            name = type(self.store).__name__
            raise ValueError(
                f"a store of your own has its own codec: make it with {name}(codec="
                f"{self.codec!r}), or give the name of a store in its place"
            )

    @property
    def lossless(self) -> bool:
        """Whether what is stored comes back bit for bit."""
        if isinstance(self.store, AbstractArrayStore):
            return self.store.lossless
        return self.codec is None or is_lossless(self.codec)

    def __str__(self) -> str:
        name = self.store if isinstance(self.store, str) else type(self.store).__name__
        return name if self.codec is None else f"{name}:{self.codec}"


@dataclass(frozen=True)
class Spill:
    """Stay in memory as long as there is room, then go to a store; what is used last goes first.

    All that a session saves with equal ones shares the room.

    Attributes:
        store: where to.
        nbytes: most bytes of memory; None for no bound.
        last: most tensors, those that share memory counting as one; None for no bound.
    """

    store: Store
    nbytes: int | None = None
    last: int | None = None

    @property
    def lossless(self) -> bool:
        """As of the store."""
        return self.store.lossless


@dataclass(frozen=True)
class Recompute(Policy):
    """Compute it again in backward: a placement, and the policy that gives it where that is cheap.

    Cheap are elementwise operations and normalisations, where their inputs are at hand: saved by
    the same session, wherever that has them, or in memory anyway, or cheap to compute themselves.
    So the output of GELU, which the next layer saves, follows from the input, which GELU itself
    saves. The policy has no answer for anything else, for parameters, and for what is small.

    Attributes:
        max_ops: most operations to be run again for one tensor.
        min_nbytes: tensors below this are small. Bytes, or text such as ``"1MiB"``.
    """

    max_ops: int = 4
    min_nbytes: int | str = 64 * 1024

    def __post_init__(self) -> None:
        if not isinstance(self.max_ops, int) or isinstance(self.max_ops, bool):
            raise TypeError(f"max_ops is an int, got {type(self.max_ops).__name__}")
        if not 1 <= self.max_ops <= MAX_RECOMPUTE_OPS:
            raise ValueError(f"max_ops is from 1 to {MAX_RECOMPUTE_OPS}, got {self.max_ops}")
        object.__setattr__(self, "min_nbytes", as_nbytes(self.min_nbytes))

    def place(self, context: SaveContext) -> "Placement | None":
        """Return itself where it takes few operations to have the tensor again."""
        if context.is_parameter or context.nbytes < as_nbytes(self.min_nbytes):
            return None
        return self if 0 < context.recompute_ops <= self.max_ops else None

    def __str__(self) -> str:
        smallest = format_nbytes(as_nbytes(self.min_nbytes))
        return f"recompute from at most {self.max_ops} ops, from {smallest}"


Placement: TypeAlias = Keep | Store | Spill | Recompute


@dataclass(frozen=True)
class Offload(Policy):
    """Send what is large to a store.

    It has no answer for parameters, which stay in memory anyway, and for what is small.

    Attributes:
        store: as in `Store`.
        codec: as in `Store`.
        min_nbytes: tensors below this are small: they would cost an I/O each and save nothing.
            Bytes, or text such as ``"1MiB"``.
    """

    store: str | AbstractArrayStore
    codec: str | None = None
    min_nbytes: int | str = 64 * 1024

    def __post_init__(self) -> None:
        placement = Store(self.store, self.codec)
        object.__setattr__(self, "store", placement.store)
        object.__setattr__(self, "codec", placement.codec)
        object.__setattr__(self, "min_nbytes", as_nbytes(self.min_nbytes))

    def place(self, context: SaveContext) -> Placement | None:
        """Return `Store` for large tensors that are no parameters."""
        if context.is_parameter or context.nbytes < as_nbytes(self.min_nbytes):
            return None
        return Store(self.store, self.codec)

    @property
    def lossless(self) -> bool:
        """As of `Store`."""
        return Store(self.store, self.codec).lossless

    @property
    def recomputes(self) -> bool:
        """False."""
        return False

    def __str__(self) -> str:
        return f"{Store(self.store, self.codec)}, from {format_nbytes(as_nbytes(self.min_nbytes))}"


POLICIES: tuple[str, ...] = ("keep", *STORES)
"""The names of policies that stand for themselves, and give the same bits."""


@singledispatch
def as_policy(policy: Any) -> Policy:
    """Return the policy meant by text, a store, a policy object, a list, or a mapping by module.

    Text is ``"NAME[:CODEC][,min=SIZE]"`` or another of `parse_policy`. Of a list of policies the
    first that has an answer counts (see `First`).

    Raises:
        ValueError: for text that means no policy.
        TypeError: for anything else.
    """
    if isinstance(policy, AbstractArrayStore):
        return Offload(policy)
    if callable(getattr(policy, "place", None)) and not isinstance(policy, type):
        return policy  # type: ignore[no-any-return]
    raise TypeError(
        "a policy is a name, a store, an object with a method place(context), a list of these, or "
        "a mapping of these by module, got "
        f"{f'the class {policy.__name__}' if isinstance(policy, type) else type(policy).__name__}; "
        "a pair of functions goes to "
        "offgrad.autograd.graph.saved_tensors_hooks"
    )
