"""The machinery of full backward hooks: one node around a module's inputs, one around its
outputs.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from offgrad import memory
from offgrad.autograd import grad_mode
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase, wrap
from offgrad.ops._shape.slicing import Alias

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor
    from offgrad.nn.modules.module import Module


class BackwardHookFunction(Op):
    """Each tensor as a view, so that all share one node; keeps nothing."""

    is_view = True
    views_each_input = True
    suffix = "Backward"
    runs_without_grad = True

    def forward(self, *arrays: Array) -> tuple[Array, ...]:
        """Return the views."""
        self.like = [(array.shape, array.dtype) for array in arrays]
        return tuple(array.view() for array in arrays)

    def backward(self, *grads: "Tensor | None") -> Any:
        """Pass the gradients; what has none gets zeros, as from PyTorch's Functions."""
        return tuple(
            wrap(memory.zeros(shape, dtype)) if grad is None else grad
            for grad, (shape, dtype) in zip(grads, self.like, strict=True)
        )


class BackwardHook:
    """Calls the hooks of one call of a module with its gradients."""

    def __init__(
        self,
        module: "Module",
        hooks: Sequence[Callable[..., Any]],
        pre_hooks: Sequence[Callable[..., Any]],
    ) -> None:
        self._module = module
        self._hooks = hooks
        self._pre_hooks = pre_hooks
        self._inputs = _Places((), 0)
        self._outputs = _Places((), 0)
        # Of the pass that is on its way from the outputs to the inputs; None while none is.
        self._grad_outputs: tuple[Tensor | None, ...] | None = None

    def watch_inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments with tensors seen through the node before the module."""
        views, self._inputs, node = _watch(args)
        if node is not None:
            node.register_hook(self._after_inputs)
        return tuple(views)

    def watch_outputs(self, output: Any) -> Any:
        """Return the output with tensors seen through the node after the module."""
        if not isinstance(output, TensorBase | tuple):
            warnings.warn(
                "backward hooks are called for outputs that are a Tensor or a tuple of Tensors, "
                f"but {type(self._module).__name__} returned a {type(output).__name__}: they will "
                "not be called",
                stacklevel=6,
            )
        outputs = output if isinstance(output, tuple) else (output,)
        views, self._outputs, node = _watch(outputs)
        if node is None:
            return output
        node.register_hook(self._after_outputs)
        if not isinstance(output, tuple):
            return views[0]
        return type(output)(*views) if hasattr(output, "_fields") else tuple(views)

    def _after_outputs(self, _: Any, grads: "tuple[Tensor | None, ...]") -> Any:
        full = self._outputs.spread(grads)
        for hook in self._pre_hooks:
            result = hook(self._module, full)
            if result is not None:
                full = _as_tuple(result, len(full), "full_backward_pre_hook")
        self._grad_outputs = full
        if not self._inputs.indices:
            self._call_without_inputs(full)
        return self._outputs.picked(full)

    def _call_without_inputs(self, grad_outputs: "tuple[Tensor | None, ...]") -> None:
        """Call the hooks where no input needs a gradient: this is all there is to see."""
        self._grad_outputs = None
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
                "a full backward hook must return None where no input of the module requires "
                f"grad, but one of {name} returned {result!r}"
            )

    def _after_inputs(self, grad_inputs: "tuple[Tensor | None, ...]", _: Any) -> Any:
        if self._grad_outputs is None:
            # The gradients came past the outputs, as those of a double backward may.
            return None
        full = self._inputs.spread(grad_inputs)
        outputs, self._grad_outputs = self._grad_outputs, None
        for hook in self._hooks:
            result = hook(self._module, full, outputs)
            if result is not None:
                full = _as_tuple(result, len(full), "full_backward_hook")
        return self._inputs.picked(full)


class _Places(NamedTuple):
    """Where among so many values the tensors are; nowhere if none requires grad."""

    indices: tuple[int, ...]
    size: int

    def spread(self, grads: "Sequence[Tensor | None]") -> "tuple[Tensor | None, ...]":
        """Return an entry for each value, None for what is no tensor."""
        full: list[Tensor | None] = [None] * self.size
        for index, grad in zip(self.indices, grads, strict=True):
            full[index] = grad
        return tuple(full)

    def picked(self, full: Sequence[Any]) -> tuple[Any, ...]:
        """Return the entries of the tensors."""
        return tuple([full[index] for index in self.indices])


def _watch(values: Sequence[Any]) -> "tuple[list[Any], _Places, Op | None]":
    """Return the values with tensors seen through one node; their places; the node, if any."""
    result = list(values)
    indices = [index for index, value in enumerate(values) if isinstance(value, TensorBase)]
    tensors = [values[index] for index in indices]
    if not grad_mode.state.grad_enabled or not any(each.requires_grad for each in tensors):
        return result, _Places((), len(result)), None
    views = BackwardHookFunction.apply_all(*tensors)
    for index, tensor, view in zip(indices, tensors, views, strict=True):
        result[index] = view if tensor.requires_grad else _alias(tensor)
    node = next(view.grad_fn for view in views if view.requires_grad)
    return result, _Places(tuple(indices), len(result)), node


@grad_mode.no_grad()
def _alias(tensor: "Tensor") -> "Tensor":
    return Alias.apply(tensor)


def _as_tuple(result: Any, count: int, hook: str) -> tuple[Any, ...]:
    given = (result,) if isinstance(result, TensorBase) else tuple(result)
    if len(given) != count:
        raise RuntimeError(
            f"a {hook} must return as many gradients as it got, {count}, but one returned "
            f"{len(given)}"
        )
    return given
