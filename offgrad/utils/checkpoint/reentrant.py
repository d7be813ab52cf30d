"""The reentrant kind of checkpoint: a Function whose backward runs the function and a backward."""

import warnings
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

from offgrad.autograd import engine, grad_mode
from offgrad.autograd.function import Function
from offgrad.autograd.gradients import backward as run_backward
from offgrad.autograd.tensor_base import TensorBase
from offgrad.ops._core.autocast import current_autocast
from offgrad.ops._random import replay
from offgrad.utils.checkpoint.save_log import CheckpointError


def detach_variable(inputs: Any) -> tuple[Any, ...]:
    """Return detached tensors that require grad as `inputs` do; other objects stay.

    Args:
        inputs: a tuple.
    """
    if not isinstance(inputs, tuple):
        raise RuntimeError(f"detach_variable takes a tuple, got {type(inputs).__name__}")
    return tuple(_detached(each) for each in inputs)


def _detached(value: Any) -> Any:
    if not isinstance(value, TensorBase):
        return value
    tensor: Any = value
    return tensor.detach().requires_grad_(tensor.requires_grad)


def check_backward_validity(inputs: Iterable[Any]) -> None:
    """Warn if no tensor among `inputs` requires grad.

    Args:
        inputs: the arguments of a checkpoint.
    """
    if not any(isinstance(each, TensorBase) and each.requires_grad for each in inputs):  # type: ignore[attr-defined]
        warnings.warn("None of the inputs have requires_grad=True: no gradients", stacklevel=4)


class CheckpointFunction(Function):
    """Runs a function without recording; backward runs it again, recorded, and a backward of it.

    Only the tensors among the arguments are saved.
    """

    @staticmethod
    def forward(
        ctx: Any, run_function: Callable[..., Any], preserve_rng_state: bool, *args: Any
    ) -> Any:
        """Return ``run_function(*args)``."""
        check_backward_validity(args)
        ctx.run_function = run_function
        ctx.positions = [
            position for position, each in enumerate(args) if isinstance(each, TensorBase)
        ]
        ctx.inputs = [None if isinstance(each, TensorBase) else each for each in args]
        ctx.save_for_backward(*[args[position] for position in ctx.positions])
        ctx.autocast = current_autocast()
        ctx.draws = None
        if not preserve_rng_state:
            return run_function(*args)
        with replay.recording() as draws:
            outputs = run_function(*args)
        ctx.draws = draws
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Return the gradients of the arguments; those of other tensors are accumulated."""
        if engine.state.passes[-1].has_targets:
            raise RuntimeError(
                "torch.utils.checkpoint is incompatible with backward(inputs=) and grad() "
                "when use_reentrant=True: pass False, or no inputs to backward()"
            )
        inputs = list(ctx.inputs)
        for position, tensor in zip(ctx.positions, ctx.saved_tensors, strict=True):
            inputs[position] = tensor
        detached = detach_variable(tuple(inputs))
        draws = nullcontext() if ctx.draws is None else _replaying(ctx.draws)
        with grad_mode.enable_grad(), ctx.autocast(), draws:
            outputs = ctx.run_function(*detached)
        results = outputs if isinstance(outputs, tuple) else (outputs,)
        pairs = [
            (each, grad)
            for each, grad in zip(results, grads, strict=True)
            if isinstance(each, TensorBase) and each.requires_grad  # type: ignore[attr-defined]
        ]
        if not pairs:
            raise RuntimeError(
                "none of output has requires_grad=True, this checkpoint() is not necessary"
            )
        run_backward([each for each, _ in pairs], [grad for _, grad in pairs])  # type: ignore[misc]
        found = [each.grad if isinstance(each, TensorBase) else None for each in detached]  # type: ignore[attr-defined]
        return None, None, *found


def _replaying(draws: Any) -> Any:
    return replay.replaying(
        draws, lambda message: CheckpointError(f"a checkpoint must do the same again: {message}")
    )
