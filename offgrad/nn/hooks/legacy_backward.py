"""The hooks of `register_backward_hook`, with their documented flaw: they see one operation."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from offgrad.autograd.tensor_base import TensorBase
from offgrad.nn.hooks.registry import WithModule

if TYPE_CHECKING:
    from offgrad.autograd.node import Node
    from offgrad.nn.modules.module import Module

_ADVICE = "; register_full_backward_hook gives all of them"


def register_on_last_operation(
    module: "Module", hooks: Sequence[Callable[..., Any]], args: tuple[Any, ...], output: Any
) -> None:
    """Have `hooks` called with the gradients of the operation that made the first output."""
    first = output
    while not isinstance(first, TensorBase):
        if isinstance(first, Mapping):
            first = next(each for each in first.values() if isinstance(each, TensorBase))
        else:
            first = first[0]
    node: Node | None = first.grad_fn  # type: ignore[attr-defined]
    if node is None:
        return
    for hook in hooks:
        node.register_hook(WithModule(hook, module))
    flaw = _flaw(args, output, node)
    if flaw is not None:
        warnings.warn(
            f"a hook of register_backward_hook of {type(module).__name__} {flaw}{_ADVICE}",
            FutureWarning,
            stacklevel=6,
        )


def _flaw(args: tuple[Any, ...], output: Any, node: "Node") -> str | None:
    """Return what the hooks will not see; None if they will see what they should."""
    outputs = output if isinstance(output, tuple) else (output,)
    if not all(isinstance(each, TensorBase) for each in outputs):
        return "sees part of grad_output only where the outputs are not all tensors"
    if not all(isinstance(each, TensorBase) for each in args):
        return "sees part of grad_input only where the inputs are not all tensors"
    made_by = {each.grad_fn for each in outputs if each.grad_fn is not None}
    if len(made_by) > 1:
        return "sees part of grad_output only where several operations make the outputs"
    led_to = {following for following, _ in node.next_functions}
    if {each.grad_fn for each in args if each.grad_fn is not None} != led_to:
        return "sees the inputs of the last operation only where forward has several operations"
    return None
