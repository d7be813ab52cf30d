"""step_in_backward: each parameter is updated as soon as its gradient is complete."""

from functools import partial
from typing import Any

from offgrad._tensor.tensor import Tensor
from offgrad.autograd import grad_mode
from offgrad.autograd.handles import RemovableHandle
from offgrad.optim.optimizer import Optimizer
from offgrad.optim.placing import place_states

__all__ = ["StepInBackward", "step_in_backward"]


class StepInBackward:
    """Updates parameters inside backward; `remove` ends that."""

    def __init__(self, handles: list[RemovableHandle]) -> None:
        self._handles = handles

    def remove(self) -> None:
        """Leave gradients to `Optimizer.step` again."""
        for each in self._handles:
            each.remove()

    def __enter__(self) -> "StepInBackward":
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


def step_in_backward(optimizer: Optimizer) -> StepInBackward:
    """Have each backward pass update the parameters of `optimizer`, and drop their gradients.

    A parameter is updated as soon as its gradient is complete, so gradients are never all in memory
    and need no store. The updates are those of ``optimizer.step()``, which then has nothing to do;
    its hooks are not called. Not for gradients that must be accumulated over several passes,
    clipped or unscaled together.

    Args:
        optimizer: of which each parameter is updated by itself, unlike LBFGS.

    Returns:
        An object whose `remove`, or the end of its block, ends that.

    Raises:
        TypeError: if `optimizer` is no optimizer, or its updates need all parameters at once.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"step_in_backward takes an optimizer, got {type(optimizer).__name__}")
    if type(optimizer).step is not Optimizer.step:
        raise TypeError(
            f"{type(optimizer).__name__} defines its own step(), which needs all gradients; "
            "step_in_backward is for optimizers that update each parameter by itself"
        )
    return StepInBackward(
        [
            param.register_post_accumulate_grad_hook(partial(_update, optimizer, group))
            for group in optimizer.param_groups
            for param in group["params"]
            if param.requires_grad
        ]
    )


def _update(optimizer: Optimizer, group: dict[str, Any], param: Tensor) -> None:
    grad_mode.call(False, optimizer.update_group, [param], group)
    place_states(optimizer.state, [param])
    param.grad = None
