"""The machinery of full backward hooks: one node around a module's inputs, one around its
outputs.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from offgrad.autograd import grad_mode
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase

if TYPE_CHECKING:
    from offgrad.nn.module import Module
    from offgrad.tensor import Tensor


class BackwardHookFunction(Op):
    """Each tensor as a view, so that all share one node; keeps nothing."""

    is_view = True
    views_each_input = True
    suffix = "Backward"

    def forward(self, *arrays: Array) -> tuple[Array, ...]:
        """Return the views."""
        return tuple(array.view() for array in arrays)

    def backward(self, *grads: "Tensor | None") -> Any:
        """Pass the gradients."""
        return grads


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
        self._watches_inputs = False
        self._grad_outputs: tuple[Tensor | None, ...] = ()
        self._input_count = 0
        self._input_places: list[int] = []
        self._output_count = 1
        self._output_places: list[int] = []

    def watch_inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments with tensors seen through the node before the module."""
        self._input_count = len(args)
        views, self._input_places, node = _watch(args)
        if node is not None:
            self._watches_inputs = True
            node.register_hook(self._after_inputs)
        return tuple(views)

    def watch_outputs(self, output: Any) -> Any:
        """Return the output with tensors seen through the node after the module."""
        outputs = output if isinstance(output, tuple | list) else (output,)
        self._output_count = len(outputs)
        views, self._output_places, node = _watch(outputs)
        if node is None:
            return output
        node.register_prehook(self._before_outputs)
        if hasattr(output, "_fields"):
            return type(output)(*views)
        return type(output)(views) if isinstance(output, tuple | list) else views[0]

    def _before_outputs(self, grads: "tuple[Tensor | None, ...]") -> Any:
        full = _spread(grads, self._output_places, self._output_count)
        for hook in self._pre_hooks:
            result = hook(self._module, full)
            if result is not None:
                full = _as_tuple(result, len(full), "full_backward_pre_hook")
        self._grad_outputs = full
        if not self._watches_inputs:
            # No input needs a gradient: this is all there is to see.
            for hook in self._hooks:
                if hook(self._module, (None,) * self._input_count, full) is not None:
                    raise RuntimeError(
                        "a backward hook must return None where no input of the module requires "
                        f"grad, but one of {type(self._module).__name__} returned a gradient"
                    )
        return tuple(full[place] for place in self._output_places)

    def _after_inputs(self, grad_inputs: "tuple[Tensor | None, ...]", _: Any) -> Any:
        full = _spread(grad_inputs, self._input_places, self._input_count)
        outputs, self._grad_outputs = self._grad_outputs, ()
        for hook in self._hooks:
            result = hook(self._module, full, outputs)
            if result is not None:
                full = _as_tuple(result, len(full), "full_backward_hook")
        return tuple(full[place] for place in self._input_places)


def _watch(values: Sequence[Any]) -> "tuple[list[Any], list[int], Op | None]":
    """Return the values with tensors seen through one node; the tensors' places; the node."""
    places = [index for index, value in enumerate(values) if isinstance(value, TensorBase)]
    watched = grad_mode.state.grad_enabled and any(values[place]._requires_grad for place in places)
    if not watched:
        return list(values), [], None
    views = BackwardHookFunction.apply_all(*(values[place] for place in places))
    result = list(values)
    node: Op | None = None
    for place, view in zip(places, views, strict=True):
        result[place] = view
        node = node or view._grad_fn
    return result, places, node


def _spread(
    grads: "Sequence[Tensor | None]", places: list[int], count: int
) -> "tuple[Tensor | None, ...]":
    full: list[Tensor | None] = [None] * count
    for place, grad in zip(places, grads, strict=True):
        full[place] = grad
    return tuple(full)


def _as_tuple(result: Any, count: int, hook: str) -> tuple[Any, ...]:
    given = result if isinstance(result, tuple) else (result,)
    if len(given) != count:
        raise RuntimeError(
            f"a {hook} must return as many gradients as it got, {count}, but one returned "
            f"{len(given)}"
        )
    return given
