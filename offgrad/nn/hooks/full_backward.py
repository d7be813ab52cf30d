"""Full backward hooks: a node before the module sees its inputs, one after it its outputs."""

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from offgrad import memory
from offgrad.autograd import engine, grad_mode
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase, wrap
from offgrad.ops._shape.slicing import Alias

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor
    from offgrad.nn.modules.module import Module


class BackwardHookFunction(Op):
    """Return a view of each tensor, so that all have the same node. Keeps nothing for backward."""

    is_view = True
    views_each_input = True
    suffix = "Backward"
    runs_without_grad = True

    def forward(self, *arrays: Array) -> tuple[Array, ...]:
        self.input_metadata = [(array.shape, array.dtype) for array in arrays]
        return tuple(array.view() for array in arrays)

    def backward(self, *grads: "Tensor | None") -> Any:
        """Pass the gradients on, zeros for missing ones, as PyTorch's Functions do."""
        return tuple(
            wrap(memory.zeros(shape, dtype)) if grad is None else grad
            for grad, (shape, dtype) in zip(grads, self.input_metadata, strict=True)
        )


class BackwardHook:
    """Calls the backward hooks for one call of a module."""

    def __init__(
        self,
        module: "Module",
        hooks: Sequence[Callable[..., Any]],
        pre_hooks: Sequence[Callable[..., Any]],
    ) -> None:
        self._module = module
        self._hooks = hooks
        self._pre_hooks = pre_hooks
        self._inputs = _TensorPositions((), 0)
        self._outputs = _TensorPositions((), 0)

    def setup_input_hook(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments, tensors as views from the node before the module."""
        views, self._inputs, node = _view_through_node(args)
        if node is not None:
            node.register_hook(self._after_inputs)
        return tuple(views)

    def setup_output_hook(self, output: Any) -> Any:
        """Return the output, tensors as views from the node after the module."""
        if not isinstance(output, (TensorBase, tuple)):
            warnings.warn(
                f"the output of {type(self._module).__name__} should be a Tensor or a tuple of "
                f"Tensors, got a {type(output).__name__}: its backward hooks will not be called",
                stacklevel=6,
            )
        outputs = output if isinstance(output, tuple) else (output,)
        views, self._outputs, node = _view_through_node(outputs)
        if node is None:
            return output
        node.register_hook(self._after_outputs)
        if not isinstance(output, tuple):
            return views[0]
        return type(output)(*views) if hasattr(output, "_fields") else tuple(views)

    def _after_outputs(self, _: Any, grads: "tuple[Tensor | None, ...]") -> Any:
        full = self._outputs.pack_with_none(grads)
        for hook in self._pre_hooks:
            result = hook(self._module, full)
            if result is not None:
                full = _checked_gradients(result, len(full), "full_backward_pre_hook")
        if self._inputs.indices:
            # Of this pass alone: other threads may run theirs through the same graph.
            engine.state.passes[-1].per_pass[self] = full
        else:
            self._call_without_inputs(full)
        return self._outputs.unpack_none(full)

    def _call_without_inputs(self, grad_outputs: "tuple[Tensor | None, ...]") -> None:
        """Call the hooks at once, because no input requires grad."""
        name = type(self._module).__name__
        warnings.warn(
            f"no inputs require grad in a call of {name}: its full backward hooks are called when "
            "the gradients of its outputs are computed",
            stacklevel=2,
        )
        for hook in self._hooks:
            result = hook(self._module, (None,) * self._inputs.size, grad_outputs)
            if result is None or (isinstance(result, tuple) and set(result) <= {None}):
                continue
            raise RuntimeError(
                "a full backward hook must return None for Modules where no input requires "
                f"gradient, but one of {name} returned {result!r}"
            )

    def _after_inputs(self, grad_inputs: "tuple[Tensor | None, ...]", _: Any) -> Any:
        outputs = engine.state.passes[-1].per_pass.pop(self, None)
        if outputs is None:
            # The gradients bypassed the outputs, as those of a double backward may.
            return None
        full = self._inputs.pack_with_none(grad_inputs)
        for hook in self._hooks:
            result = hook(self._module, full, outputs)
            if result is not None:
                full = _checked_gradients(result, len(full), "full_backward_hook")
        return self._inputs.unpack_none(full)


class _TensorPositions(NamedTuple):
    """Indices of the tensors among `size` values; none if no tensor requires grad."""

    indices: tuple[int, ...]
    size: int

    def pack_with_none(self, grads: "Sequence[Tensor | None]") -> "tuple[Tensor | None, ...]":
        """Return an entry for each value: a tensor's gradient, or None."""
        full: list[Tensor | None] = [None] * self.size
        for index, grad in zip(self.indices, grads, strict=True):
            full[index] = grad
        return tuple(full)

    def unpack_none(self, full: Sequence[Any]) -> tuple[Any, ...]:
        """Return only the entries of tensors."""
        return tuple([full[index] for index in self.indices])


def _view_through_node(values: Sequence[Any]) -> "tuple[list[Any], _TensorPositions, Op | None]":
    """Return the values, tensors as views from one node; their positions; the node, if any."""
    result = list(values)
    indices = [index for index, value in enumerate(values) if isinstance(value, TensorBase)]
    tensors = [values[index] for index in indices]
    if not grad_mode.state.grad_enabled or not any(each.requires_grad for each in tensors):
        return result, _TensorPositions((), len(result)), None
    views = BackwardHookFunction.apply_all(*tensors)
    for index, tensor, view in zip(indices, tensors, views, strict=True):
        result[index] = view if tensor.requires_grad else _alias(tensor)
    node = next(view.grad_fn for view in views if view.requires_grad)
    return result, _TensorPositions(tuple(indices), len(result)), node


@grad_mode.no_grad()
def _alias(tensor: "Tensor") -> "Tensor":
    return Alias.apply(tensor)


def _checked_gradients(result: Any, count: int, hook: str) -> tuple[Any, ...]:
    given = (result,) if isinstance(result, TensorBase) else tuple(result)
    if len(given) != count:
        raise RuntimeError(
            f"a {hook} returned an invalid number of gradients, got {len(given)}, but expected "
            f"{count}: as many as it was called with"
        )
    return given
