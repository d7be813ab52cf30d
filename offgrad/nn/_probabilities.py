"""Softmax and its like in `offgrad.nn.functional`: the dimension may be left out."""

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from offgrad import ops

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


def _with_implicit_dim(operation: "Callable[..., Tensor]", does: str) -> "Callable[..., Tensor]":
    """Return `operation`; None as `dim` means 0 or 1, which the number of dimensions decides."""
    name = operation.__name__

    def function(
        input: "Tensor", dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
    ) -> "Tensor":
        if dim is None:
            warnings.warn(
                f"Implicit dimension choice for {name} has been deprecated: pass dim=, here "
                f"{0 if input.dim() in (0, 1, 3) else 1}",
                UserWarning,
                stacklevel=_stacklevel,
            )
            dim = 0 if input.dim() in (0, 1, 3) else 1
        return operation(input, dim, dtype=dtype)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Return {does} along `dim`, computed as `dtype` if given."
    return function


softmax = _with_implicit_dim(ops.softmax, "``exp(input)`` over its sum")
softmin = _with_implicit_dim(ops.softmin, "the softmax of ``-input``")
log_softmax = _with_implicit_dim(ops.log_softmax, "the logarithm of the softmax")


def gumbel_softmax(
    logits: "Tensor", tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> "Tensor":
    """Return samples of the Gumbel-softmax distribution (Jang, Gu and Poole, 2017).

    Args:
        logits: unnormalised log-probabilities along `dim`.
        tau: the temperature.
        hard: return one-hot vectors, with the gradients of the soft ones.
        eps: has no effect.
        dim: the dimension of the classes.
    """
    if eps != 1e-10:
        warnings.warn("gumbel_softmax: eps is deprecated and unused", stacklevel=2)
    gumbels = -ops.empty_like(logits).exponential_().log()
    soft = ops.softmax((logits + gumbels) / tau, dim)
    if not hard:
        return soft
    index = soft.max(dim, keepdim=True)[1]
    one_hot = ops.zeros_like(logits).scatter(dim, index, 1.0)
    return one_hot - soft.detach() + soft
