"""The graph's public side, as in ``torch.autograd.graph``: nodes, and hooks for saved tensors."""

from collections.abc import Callable, Iterable
from contextlib import ContextDecorator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from offgrad._missing import missing
from offgrad.autograd import saved_tensor
from offgrad.autograd.multi_grad_hook import register_multi_grad_hook
from offgrad.autograd.node import GradientEdge, Node, gradient_edge
from offgrad.autograd.saved_mutation import allow_mutation_on_saved_tensors
from offgrad.autograd.saved_tensor import (
    PairHooks,
    SavedTensor,
    pop_hooks,
    push_hooks,
)
from offgrad.autograd.tensor_base import TensorBase, describe

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "GradientEdge",
    "Node",
    "SavedTensor",
    "allow_mutation_on_saved_tensors",
    "disable_saved_tensors_hooks",
    "get_gradient_edge",
    "increment_version",
    "register_multi_grad_hook",
    "save_on_cpu",
    "saved_tensors_hooks",
]


def get_gradient_edge(tensor: "Tensor") -> GradientEdge:
    """Return where the gradient of `tensor` goes; it stands for the tensor in `grad` and
    `backward`, without holding its memory.

    Raises:
        RuntimeError: if the tensor does not require grad.
    """
    node, output_nr = gradient_edge(tensor)
    if node is None:
        raise RuntimeError(
            f"gradient edges are for tensors that require grad, got a {describe(tensor)}"
        )
    return GradientEdge(node, output_nr)


def increment_version(tensor: "Tensor | Iterable[Tensor]") -> None:
    """Count the version of one tensor or several up, as if an operation had changed them in place.

    For code that changes memory behind autograd's back, such as through ``numpy()``.
    """
    single = isinstance(tensor, TensorBase) or not isinstance(tensor, Iterable)
    for each in (tensor,) if single else tensor:
        if not isinstance(each, TensorBase):
            raise RuntimeError(f"versions are of tensors, got {type(each).__name__}")
        each._storage.write("increment_version")


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
