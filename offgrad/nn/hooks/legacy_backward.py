"""Hooks of `register_backward_hook`, with PyTorch's documented flaw: they see one operation."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from offgrad.autograd.tensor_base import TensorBase
from offgrad.nn.hooks.registry import WithModule

if TYPE_CHECKING:
    from offgrad.autograd.node import Node
    from offgrad.nn.modules.module import Module

_ADVICE = "; register_full_backward_hook gets all gradients"


def register_on_last_operation(
    module: "Module", hooks: Sequence[Callable[..., Any]], args: tuple[Any, ...], output: Any
) -> None:
    """Register `hooks` on the operation that computed the first output."""
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
    """Return which gradients the hooks will miss; None if they get all."""
    outputs = output if isinstance(output, tuple) else (output,)
    if not all(isinstance(each, TensorBase) for each in outputs):
        return "sees only part of grad_output if the outputs are not all tensors"
    if not all(isinstance(each, TensorBase) for each in args):
        return "sees only part of grad_input if the inputs are not all tensors"
    output_nodes = {each.grad_fn for each in outputs if each.grad_fn is not None}
    if len(output_nodes) > 1:
        return "sees only part of grad_output if several operations compute the outputs"
    next_nodes = {next_node for next_node, _ in node.next_functions}
    if {each.grad_fn for each in args if each.grad_fn is not None} != next_nodes:
        return "sees only the inputs of the last operation if forward has several operations"
    return None
