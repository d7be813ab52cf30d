"""A differentiable stack of tensors, for autograd's own functions."""

from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import memory
from offgrad.autograd.function import Function
from offgrad.autograd.tensor_base import wrap

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


class Stack(Function):
    """Stacks tensors of one shape along a new first dimension; saves nothing."""

    @staticmethod
    def forward(ctx: Any, *rows: "Tensor") -> "Tensor":
        ctx.set_materialize_grads(False)
        block = memory.zeros((len(rows), *rows[0]._array.shape), rows[0]._array.dtype)
        np.stack([row._array for row in rows], out=block)
        return wrap(block)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        if grad is None:
            return (None,) * len(ctx.needs_input_grad)
        return tuple(
            grad[row] if needed else None for row, needed in enumerate(ctx.needs_input_grad)
        )
