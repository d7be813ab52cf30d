"""A custom differentiable function, with first and second derivatives checked numerically."""

from typing import Any

import offgrad
from offgrad.autograd import Function, gradcheck, gradgradcheck


class Softplus(Function):
    """log(1 + exp(x)); keeps its input for backward, which any policy may offload."""

    @staticmethod
    def forward(ctx: Any, x: offgrad.Tensor) -> offgrad.Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0) + (-x.abs()).exp().log1p()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Return the gradient, computed by differentiable operations for second derivatives."""
        (x,) = ctx.saved_tensors
        return grads[0] * x.sigmoid()


if __name__ == "__main__":
    x = offgrad.randn(3, 4, dtype=offgrad.float64, requires_grad=True)
    with offgrad.offload("disk"):
        Softplus.apply(x).sum().backward()
    print(x.grad)
    assert gradcheck(Softplus.apply, (x,))
    assert gradgradcheck(Softplus.apply, (x,))
    print("first and second derivatives agree with finite differences")
