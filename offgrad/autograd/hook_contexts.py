"""Context managers that set or forbid the hooks for saved tensors."""

from collections.abc import Callable
from contextlib import ContextDecorator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from offgrad.autograd.save_hooks import PairHooks
from offgrad.autograd.saved_tensor import pop_hooks, push_hooks, state

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


class saved_tensors_hooks:
    """Pass each tensor saved for backward inside the block through a pair of hooks.

    The innermost pair of a thread applies; other threads are not affected.

    Args:
        pack_hook: called once with the detached tensor when it is saved; returns any object.
        unpack_hook: called with that object each time backward needs the tensor; returns one
            of equal content, shape and dtype.
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
    """Keep tensors saved inside the block in CPU memory, where all tensors of offgrad are.

    Args:
        pin_memory: must be False: there is no other device to pin memory for.
        device_type: ignored; accepted for code written for PyTorch.
    """

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        if pin_memory:
            raise RuntimeError(
                "pinned memory is for copies to another device, and offgrad has none; remove "
                "pin_memory=True"
            )
        super().__init__(_identity, _identity)


def _identity(tensor: "Tensor") -> "Tensor":
    return tensor


class disable_saved_tensors_hooks(ContextDecorator):
    """Make `saved_tensors_hooks` raise ``RuntimeError(error_message)`` inside the block or the
    decorated function.

    Raises:
        RuntimeError: on entry, if hooks are already active.
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
