"""Policies: pure decisions on where a tensor saved for backward is to be.

A policy knows facts and holds no tensors; it does no I/O. The mechanics are the session's.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from offgrad_storage import AbstractArrayStore

from offgrad.memory import format_nbytes


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
        is_parameter: whether it is a leaf that requires grad, or a view of one: it stays in memory
            anyway.
        is_output: whether the node itself made it.
        storage: a number that all views of the same memory share, and no other tensor.
        step: how often the session had been entered before.
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


class Policy(ABC):
    """Decides where each saved tensor goes. A policy of one's own is one method."""

    @abstractmethod
    def place(self, context: SaveContext) -> "Placement":
        """Return `Keep` or `Store` for the tensor that `context` describes."""


@dataclass(frozen=True)
class Keep(Policy):
    """Stay in memory: a placement, and the policy that gives it to every tensor."""

    def place(self, context: SaveContext) -> "Placement":
        """Return itself."""
        return self

    def __str__(self) -> str:
        return "keep"


@dataclass(frozen=True)
class Store:
    """Go to a store.

    Attributes:
        store: ``"pool"``, ``"disk"``, ``"zarr"``, ``"zarr:CODEC"``, or a store of the user's.
    """

    store: str | AbstractArrayStore

    def __str__(self) -> str:
        return self.store if isinstance(self.store, str) else type(self.store).__name__


Placement: TypeAlias = Keep | Store


@dataclass(frozen=True)
class Offload(Policy):
    """Send what is large to a store; keep parameters, which stay in memory anyway, and what is
    small.

    Attributes:
        store: as in `Store`.
        min_nbytes: tensors below this stay: they would cost an I/O each and save nothing.
    """

    store: str | AbstractArrayStore
    min_nbytes: int = 64 * 1024

    def place(self, context: SaveContext) -> Placement:
        """Return `Store` for large tensors that are no parameters."""
        if context.is_parameter or context.nbytes < self.min_nbytes:
            return Keep()
        return Store(self.store)

    def __str__(self) -> str:
        return f"{Store(self.store)}, from {format_nbytes(self.min_nbytes)}"


POLICIES: tuple[str, ...] = ("keep", "pool", "disk", "zarr")
"""The names `as_policy` knows."""


def as_policy(policy: Any) -> Policy:
    """Return the policy meant by a name, a store, a policy object, or a mapping of these by module.

    Raises:
        ValueError: for an unknown name.
        TypeError: for anything else.
    """
    if isinstance(policy, Policy):
        return policy
    if isinstance(policy, AbstractArrayStore):
        return Offload(policy)
    if isinstance(policy, Mapping):
        from offgrad.policies.by_module import ByModule

        return ByModule(policy)
    if isinstance(policy, str):
        name, colon, codec = policy.partition(":")
        if name not in POLICIES or (colon and (name != "zarr" or not codec)):
            raise ValueError(
                f"a policy is one of {', '.join(POLICIES)} (or zarr:CODEC), got {policy!r}"
            )
        return Keep() if name == "keep" else Offload(policy)
    if callable(getattr(policy, "place", None)):
        return policy  # type: ignore[no-any-return]
    raise TypeError(
        "a policy is a name, a store, an object with a method place(context), or a mapping of "
        "these by module, got "
        f"{type(policy).__name__}; a pair of functions goes to "
        "offgrad.autograd.graph.saved_tensors_hooks"
    )
