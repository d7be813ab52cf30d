"""The hooks that get the tensors that nodes save: their protocols, and PyTorch's pairs."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor
    from offgrad.autograd.saved_tensor import Save, SavedTensor


class SaveHooks(Protocol):
    """Hooks for saving; the innermost of a thread gets each tensor that a node saves."""

    needs_replay: bool
    """Whether they may need the replay of the operation that made a tensor."""

    @property
    def pack(self) -> "Callable[[Save], Any]":
        """A function, called once for each tensor with grad mode off, that returns an object to
        hold in its place, or `KEEP`.
        """

    @property
    def unpacker(self) -> "Unpacker":
        """The object that gets the order of a backward pass, and unpacks."""


class Unpacker(Protocol):
    """Gives saved tensors back."""

    def unpack(self, packed: Any) -> "Tensor":
        """Return a tensor with the saved content. Called as often as backward needs it."""

    def plan(self, packed: Sequence[Any]) -> Callable[[], None]:
        """Learn the order in which a backward pass will unpack.

        Returns:
            A function to be called when the pass is over, however it ended.
        """

    def sources(self) -> "Iterable[SavedTensor]":
        """Return the saved tensors that it will unpack itself, before it can unpack anything."""


class PairHooks:
    """A plain ``(pack, unpack)`` pair of functions on tensors, PyTorch's kind."""

    needs_replay = False

    def __init__(self, pack: "Callable[[Tensor], Any]", unpack: "Callable[[Any], Tensor]") -> None:
        self.pack_tensor = pack
        self._unpack = unpack

    def pack(self, save: "Save") -> Any:
        return self.pack_tensor(save.tensor)

    @property
    def unpacker(self) -> Unpacker:
        return self

    def unpack(self, packed: Any) -> "Tensor":
        return self._unpack(packed)

    def plan(self, packed: Sequence[Any]) -> Callable[[], None]:
        return lambda: None  # a pair has no use for the order

    def sources(self) -> "Iterable[SavedTensor]":
        return ()
