"""The graph's public side, as in ``torch.autograd.graph``: nodes, and hooks for saved tensors."""

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from offgrad.autograd import saved_tensor
from offgrad.autograd.node import Node
from offgrad.autograd.saved_tensor import PairHooks, SavedTensor, pop_hooks, push_hooks
from offgrad.missing import missing

if TYPE_CHECKING:
    from offgrad.tensor import Tensor

__all__ = ["Node", "SavedTensor", "disable_saved_tensors_hooks", "saved_tensors_hooks"]


class saved_tensors_hooks:
    """Pass every tensor saved for backward inside the block through a pair of hooks.

    Args:
        pack_hook: takes the tensor (detached) when it is saved, once; returns any object.
        unpack_hook: takes that object whenever backward needs the tensor; returns a tensor of the
            same content, shape and dtype.

    The innermost pair of a thread counts; other threads are not affected.
    """

    def __init__(
        self, pack_hook: "Callable[[Tensor], Any]", unpack_hook: "Callable[[Any], Tensor]"
    ) -> None:
        for hook in (pack_hook, unpack_hook):
            if not callable(hook):
                raise TypeError(f"a hook must be callable, got {type(hook).__name__}")
        self._hooks = PairHooks(pack_hook, unpack_hook)

    def __enter__(self) -> None:
        push_hooks(self._hooks)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pop_hooks()


class disable_saved_tensors_hooks:
    """Make entering hooks for saved tensors raise ``RuntimeError(error_message)`` inside the block.

    Raises:
        RuntimeError: on entry, if hooks are active already.
    """

    def __init__(self, error_message: str) -> None:
        self._message = error_message
        self._previous: list[str | None] = []

    def __enter__(self) -> None:
        if saved_tensor.state.hooks:
            raise RuntimeError(self._message)
        self._previous.append(saved_tensor.state.disabled)
        saved_tensor.state.disabled = self._message

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        saved_tensor.state.disabled = self._previous.pop()


__getattr__ = missing("offgrad.autograd.graph")
