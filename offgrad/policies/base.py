"""Policies: pure decisions on where a tensor saved for backward goes.

A policy knows facts, holds no tensors and does no I/O. A session carries its decisions out.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, singledispatch
from typing import Any, ClassVar, TypeAlias

import numpy as np
from offgrad_storage import AbstractArrayStore

from offgrad.memory import format_nbytes
from offgrad.policies.names import (
    STORES,
    as_nbytes,
    is_lossless,
    store_and_codec,
)
from offgrad.policies.shown import Shown

MAX_RECOMPUTE_OPS = 64
"""The maximum number of operations that recompute one tensor."""


@dataclass(frozen=True, slots=True)
class SaveContext:
    """The facts about one saved tensor.

    Attributes:
        op: the name of the node that saves, such as ``"GeluBackward0"``.
        slot: the name under which the node saves it, such as ``"self"`` or ``"result"``.
        module: the qualified name of the running module, counted from the session's model or from
            the outermost module called; ``""`` for that module itself, and outside of all modules.
        dtype: of the tensor.
        shape: of the tensor.
        nbytes: of the tensor's elements.
        is_parameter: whether it is a leaf that requires grad, an `nn.Parameter`, frozen or not, or
            a view of one: it stays in memory anyway.
        is_output: whether it is an output of the node.
        storage: a number shared by all views of the same memory, and by no other tensor.
        step: how often the session had been entered before.
        made_by: the name of the node that made it, or made its base if it is a view; ``""`` for a
            leaf.
        recompute_ops: how many cheap operations recompute it from tensors that the session has
            saved or that are in memory anyway; 0 if it cannot be recomputed, or if the session's
            policy never recomputes.
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


class Policy(Shown, ABC):
    """Decides where each saved tensor goes. A custom policy is one method, `place`."""

    is_by_module: ClassVar[bool] = False

    @abstractmethod
    def place(self, context: SaveContext) -> "Placement | None":
        """Return `Keep`, `Store`, `Spill` or `Recompute`; None for no answer.

        A tensor for which no policy has an answer is kept.
        """

    @property
    def lossless(self) -> bool:
        """Whether every tensor it stores comes back bit for bit, as far as it knows."""
        return True

    @property
    def recomputes(self) -> bool:
        """Whether it may return `Recompute`; if not, replays are not tracked."""
        return True


class Wrapper(Policy):
    """A policy that changes the answers of another policy, `then`."""

    then: Any

    @property
    def lossless(self) -> bool:
        return are_lossless(self.then)

    @property
    def recomputes(self) -> bool:
        return may_recompute(self.then)


def are_lossless(*policies: Any) -> bool:
    """Return whether all are lossless as far as known; a policy may lack that attribute."""
    return all(getattr(each, "lossless", True) for each in policies)


def may_recompute(*policies: Any) -> bool:
    """Return whether one may recompute; a policy may lack that attribute."""
    return any(getattr(each, "recomputes", True) for each in policies)


@dataclass(frozen=True, repr=False)
class Keep(Policy):
    """Stay in memory: a placement, and the policy that gives it to every tensor."""

    def place(self, context: SaveContext) -> "Placement":
        return self

    @property
    def recomputes(self) -> bool:
        return False

    def __str__(self) -> str:
        return "keep"


@dataclass(frozen=True)
class Store:
    """Go to a store, once only the graph needs the memory (see `OffloadSession`).

    Attributes:
        store: ``"pool"``, ``"disk"``, ``"zarr"``, or a store object. ``"disk:lz4"`` is short for
            ``"disk"`` with the codec ``"lz4"``.
        codec: the name of the codec that encodes the tensor (see `offgrad.storage.codec`); None for
            the store's own choice. A store object has its own.

    Raises:
        ValueError: for an unknown name, or a codec for a store object.
        TypeError: if `store` is neither a name nor a store, or `codec` is no name.
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
                f"a store object has its own codec: make it with {name}(codec={self.codec!r}), or "
                "give the name of a store instead"
            )

    @property
    def lossless(self) -> bool:
        """Whether stored tensors come back bit for bit."""
        if isinstance(self.store, AbstractArrayStore):
            return self.store.lossless
        return self.codec is None or is_lossless(self.codec)

    def __str__(self) -> str:
        name = self.store if isinstance(self.store, str) else type(self.store).__name__
        return name if self.codec is None else f"{name}:{self.codec}"


@dataclass(frozen=True)
class Spill:
    """Stay in memory as long as there is room, then go to a store; furthest next use first.

    All tensors that a session places by equal `Spill` objects share the room.

    Attributes:
        store: the store to evict to.
        nbytes: the maximum of memory; None for no bound.
        last: the maximum number of tensors, where those that share memory count as one; None for no
            bound.
    """

    store: Store
    nbytes: int | None = None
    last: int | None = None

    @property
    def lossless(self) -> bool:
        return self.store.lossless


@dataclass(frozen=True, repr=False)
class Recompute(Policy):
    """Recompute it in backward: a placement, and the policy that gives it where that is cheap.

    Cheap are elementwise operations and normalisations whose inputs are available: saved by the
    same session, in memory anyway, or cheap to recompute themselves. The output of GELU, which the
    next layer saves, follows from the input, which GELU saves. The policy has no answer for other
    tensors, for parameters and for small tensors.

    Attributes:
        max_ops: the maximum number of operations that recompute one tensor.
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
        if context.is_parameter or context.nbytes < int(self.min_nbytes):
            return None
        return self if 0 < context.recompute_ops <= self.max_ops else None

    def __str__(self) -> str:
        smallest = format_nbytes(int(self.min_nbytes))
        return f"recompute from at most {self.max_ops} ops, from {smallest}"


Placement: TypeAlias = Store | Spill | Keep | Recompute


@dataclass(frozen=True, repr=False)
class Offload(Policy):
    """Send large tensors to a store.

    It has no answer for parameters, which stay in memory anyway, and for small tensors.

    Attributes:
        store: as in `Store`.
        codec: as in `Store`.
        min_nbytes: tensors below this are small: each would cost an I/O and save little memory.
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
        if context.is_parameter or context.nbytes < int(self.min_nbytes):
            return None
        return self._placement

    # Not a field: `dataclasses.asdict` and `fields` show the arguments alone.
    @cached_property
    def _placement(self) -> Store:
        return Store(self.store, self.codec)

    @property
    def lossless(self) -> bool:
        return self._placement.lossless

    @property
    def recomputes(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"{self._placement}, from {format_nbytes(int(self.min_nbytes))}"


POLICIES: tuple[str, ...] = ("keep", *STORES)
"""The names of lossless policies that need no argument."""


def as_policy(policy: Any) -> Policy:
    """Return the policy given by text, a store, a policy object, a list, or a mapping by module.

    Text is ``"NAME[:CODEC][,min=SIZE]"`` or another form of `parse_policy`. In a list of policies
    the first with an answer decides (see `First`).

    Raises:
        ValueError: for text that names no policy.
        TypeError: for anything else.
    """
    return convert(policy)


@singledispatch
def convert(policy: Any) -> Policy:
    """Convert one form of `as_policy`; modules of policies made of others register their forms."""
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


def nested_policy(policy: Any) -> Policy:
    """Return the policy given, as a part of another.

    Raises:
        TypeError: if it is no policy, or a policy by module: that applies to its modules alone.
    """
    if isinstance(policy, Mapping) or (isinstance(policy, Policy) and policy.is_by_module):
        raise TypeError(
            "policies by module cannot be nested in another policy: put the policy into the "
            "mapping, or use When(policy, module=pattern)"
        )
    return as_policy(policy)
