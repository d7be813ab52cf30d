"""Context managers that set or forbid the hooks for saved tensors."""

from collections.abc import Callable
from contextlib import ContextDecorator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from offgrad.autograd.saved_tensor import PairHooks, pop_hooks, push_hooks, state

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


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
        pop_hooks(self._hooks)


class save_on_cpu(saved_tensors_hooks):
    """Keep what is saved inside the block in the memory of the CPU: where offgrad's tensors are.

    Args:
        pin_memory: must be False: there is no other device to pin memory for.
        device_type: accepted for code written for PyTorch.
    """

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        if pin_memory:
            raise RuntimeError(
                "pinned memory is for copies to another device, and offgrad has none; leave "
                "pin_memory=True out"
            )
        super().__init__(_same, _same)


def _same(tensor: "Tensor") -> "Tensor":
    return tensor


class disable_saved_tensors_hooks(ContextDecorator):
    """Make entering hooks for saved tensors raise ``RuntimeError(error_message)`` inside the block,
    or in the decorated function.

    Raises:
        RuntimeError: on entry, if hooks are active already.
    """

    def __init__(self, error_message: str) -> None:
        self._message = error_message
        self._previous: list[str | None] = []

    def __enter__(self) -> None:
        if state.hooks:
            raise RuntimeError(self._message)
        self._previous.append(state.disabled)
        state.disabled = self._message

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        state.disabled = self._previous.pop()
