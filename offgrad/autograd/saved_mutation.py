"""allow_mutation_on_saved_tensors: saved tensors are copied before in-place changes."""

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from offgrad.autograd import saved_tensor
from offgrad.autograd.save_hooks import Unpacker
from offgrad.autograd.saved_tensor import Save, SavedTensor, pop_hooks, push_hooks
from offgrad.autograd.tensor_base import wrap
from offgrad.memory import copy

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


class _CopyOnWrite:
    """A saved tensor that shares its memory until an in-place change, before which it is copied.

    It registers as a pending write of its storage, which waits for these before it changes.
    """

    def __init__(self, context: "_MutationContext", tensor: "Tensor") -> None:
        self._context = context
        self.tensor: Tensor | None = tensor
        self.captured = False
        tensor._storage.add_pending_write(self)
        context.saves.add(self)

    def wait_captured(self) -> None:
        """Copy the memory; after the block do nothing, so that backward refuses the change."""
        if self.tensor is not None and not self.captured and self._context.active:
            self.tensor = wrap(copy(self.tensor._array))
            self.captured = True

    def clear(self) -> None:
        self.tensor = None


class _MutationContext:
    """The hooks of one block, and the object that its ``with`` statement returns."""

    needs_replay = False

    def __init__(self) -> None:
        self.active = True
        self.saves: WeakSet[_CopyOnWrite] = WeakSet()

    def clear(self) -> None:
        """Free all saved tensors and copies; afterwards backward through the graph raises."""
        for saved in self.saves.copy():
            saved.clear()

    def pack(self, save: Save) -> _CopyOnWrite:
        return _CopyOnWrite(self, save.tensor)

    @property
    def unpacker(self) -> Unpacker:
        return self

    def unpack(self, packed: _CopyOnWrite) -> "Tensor":
        if not self.active:
            raise AssertionError(
                "Trying to backward outside of the 'allow_mutation_on_saved_tensors' context that "
                "recorded the graph; move backward() there"
            )
        if packed.tensor is None:
            raise AssertionError(
                "the saved tensors of this graph were freed by clear() of their block"
            )
        return packed.tensor

    def plan(self, packed: Sequence[Any]) -> Callable[[], None]:
        return _do_nothing

    def sources(self) -> Iterable[SavedTensor]:
        return ()


def _do_nothing() -> None:
    pass


class allow_mutation_on_saved_tensors:
    """Allow in-place changes of tensors saved for backward: they are copied before the change.

    Run forward, the changes and backward inside the block. The ``with`` statement returns an object
    whose ``clear()`` frees all saved tensors.

    Raises:
        RuntimeError: if blocks are nested.
        AssertionError: from backward outside the block, as in PyTorch.
    """

    def __enter__(self) -> _MutationContext:
        if any(isinstance(hooks, _MutationContext) for hooks in saved_tensor.state.hooks):
            raise RuntimeError("allow_mutation_on_saved_tensors contexts cannot be nested")
        self._context = _MutationContext()
        push_hooks(self._context)
        return self._context

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pop_hooks(self._context)
        self._context.active = False
        self._context.clear()
