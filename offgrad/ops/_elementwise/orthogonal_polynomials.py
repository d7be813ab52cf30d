"""Orthogonal polynomials, by their recurrences (Abramowitz and Stegun, table 22.7)."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad.autograd.tensor_base import TensorBase, metadata, wrap
from offgrad.ops._core.dtypes import check_tensor, floating

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

# For each family the polynomial of degree 1, and that of degree k + 1 from x and those of degrees
# k and k - 1.
_FAMILIES: dict[str, tuple[Callable[[Any], Any], Callable[[Any, int, Any, Any], Any]]] = {
    "chebyshev_polynomial_t": (lambda x: x, lambda x, k, p, q: 2 * x * p - q),
    "chebyshev_polynomial_u": (lambda x: 2 * x, lambda x, k, p, q: 2 * x * p - q),
    "chebyshev_polynomial_v": (lambda x: 2 * x - 1, lambda x, k, p, q: 2 * x * p - q),
    "chebyshev_polynomial_w": (lambda x: 2 * x + 1, lambda x, k, p, q: 2 * x * p - q),
    "hermite_polynomial_h": (lambda x: 2 * x, lambda x, k, p, q: 2 * x * p - 2 * k * q),
    "hermite_polynomial_he": (lambda x: x, lambda x, k, p, q: x * p - k * q),
    "laguerre_polynomial_l": (
        lambda x: 1 - x,
        lambda x, k, p, q: ((2 * k + 1 - x) * p - k * q) / (k + 1),
    ),
    "legendre_polynomial_p": (
        lambda x: x,
        lambda x, k, p, q: ((2 * k + 1) * x * p - k * q) / (k + 1),
    ),
}


def polynomial(name: str) -> Any:
    """Return the function of the family `name`; ``shifted_`` ones take 2 x - 1 for x."""
    first, following = _FAMILIES[name.removeprefix("shifted_")]

    def function(input: "Tensor", n: "Tensor | int") -> Any:
        x: Any = floating(check_tensor(input, name), name)
        if name.startswith("shifted_"):
            x = 2 * x - 1
        degrees = np.trunc(n._array if isinstance(n, TensorBase) else n)
        x = x.expand(np.broadcast_shapes(metadata(x).shape, degrees.shape))
        before, current = x.new_ones(metadata(x).shape), first(x)
        result = current.masked_fill(wrap(degrees <= 0), 1.0)
        result = result.masked_fill(wrap(degrees < 0), 0.0)
        for k in range(1, int(degrees.max(initial=0))):
            before, current = current, following(x, k, current, before)
            result = current.where(wrap(degrees == k + 1), result)
        return result

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Return the {name.replace('_', ' ')} of degree `n` at each element."
    return function
