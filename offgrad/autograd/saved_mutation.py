"""allow_mutation_on_saved_tensors: what is saved is copied when it is about to be changed."""

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from offgrad.autograd import saved_tensor
from offgrad.autograd.saved_tensor import (
    Save,
    SavedTensor,
    Unpacker,
    pop_hooks,
    push_hooks,
)
from offgrad.autograd.tensor_base import wrap
from offgrad.memory import copy

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


class _Kept:
    """A saved tensor: the memory itself, until somebody wants to change it; then a copy.

    It is a writer of its storage, which asks those before it changes.
    """

    def __init__(self, guard: "_Guard", tensor: "Tensor") -> None:
        self._guard = guard
        self.tensor: Tensor | None = tensor
        self.captured = False
        tensor._storage.add_pending_write(self)
        guard.kept.add(self)

    def wait_captured(self) -> None:
        """Copy the memory; after the block a change is left to be refused."""
        if self.tensor is not None and not self.captured and self._guard.active:
            self.tensor = wrap(copy(self.tensor._array))
            self.captured = True

    def clear(self) -> None:
        self.tensor = None


class _Guard:
    """The hooks of one block, and what the block is entered as."""

    needs_replay = False

    def __init__(self) -> None:
        self.active = True
        self.kept: WeakSet[_Kept] = WeakSet()

    def clear(self) -> None:
        """Let go of what is saved and copied; the graph cannot be run backward after it."""
        for kept in self.kept.copy():
            kept.clear()

    def pack(self, save: Save) -> _Kept:
        return _Kept(self, save.tensor)

    @property
    def unpacker(self) -> Unpacker:
        """Itself."""
        return self

    def unpack(self, packed: _Kept) -> "Tensor":
        if not self.active:
            raise AssertionError(
                "a graph recorded inside allow_mutation_on_saved_tensors() can be run backward "
                "only inside the same block; move backward() into it"
            )
        if packed.tensor is None:
            raise AssertionError("what was saved for backward is gone: its block was cleared")
        return packed.tensor

    def plan(self, packed: Sequence[Any]) -> Callable[[], None]:
        return _nothing

    def sources(self) -> Iterable[SavedTensor]:
        return ()


def _nothing() -> None:
    pass


class allow_mutation_on_saved_tensors:
    """Inside the block tensors saved for backward may be changed in place: they are copied then.

    Forward, the changes and backward belong into the block. It is entered as an object whose
    ``clear()`` lets go of all that is saved.

    Raises:
        RuntimeError: if such a block is entered inside another.
        AssertionError: from backward outside the block (as PyTorch's).
    """

    def __enter__(self) -> _Guard:
        if any(isinstance(hooks, _Guard) for hooks in saved_tensor.state.hooks):
            raise RuntimeError("allow_mutation_on_saved_tensors() blocks cannot be nested")
        self._guard = _Guard()
        push_hooks(self._guard)
        return self._guard

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pop_hooks(self._guard)
        self._guard.active = False
        self._guard.clear()
