"""Hashes of the elements."""

from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad.autograd.tensor_base import describe, wrap
from offgrad.ops._core.dims import normalize_dims
from offgrad.ops._core.dtypes import category, check_tensor

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["hash_tensor"]


def hash_tensor(
    input: "Tensor", dim: Any = (), *, keepdim: bool = False, mode: int = 0
) -> "Tensor":
    """Return the exclusive or of the elements' 64 bits, uint64; not differentiable.

    Real numbers count as float64, integers and bools as int64.

    Args:
        input: the tensor.
        dim: dimensions to reduce; all by default.
        keepdim: whether reduced dimensions stay, of size 1.
        mode: must be 0.

    Raises:
        RuntimeError: for another mode, and for a tensor without elements, unless `dim` is given.
        NotImplementedError: for complex numbers.
    """
    if mode != 0:
        raise RuntimeError(f"Unknown hash_tensor mode: {mode}; the only one is 0")
    x = check_tensor(input, "hash_tensor")._array
    if category(x.dtype) == 3:
        raise NotImplementedError(
            f"hash_tensor is not defined for complex numbers, got a {describe(input)}"
        )
    axes = normalize_dims(dim, x.ndim, "hash_tensor") if dim not in ((), [], None) else None
    if axes is None and not x.size:
        raise RuntimeError("hash_tensor: a tensor without elements needs dim=")
    is_real = category(x.dtype) == 2
    bits: Any = np.ascontiguousarray(x, np.float64 if is_real else np.int64).view(np.uint64)
    bits = bits.reshape(x.shape)
    reduce: Any = np.bitwise_xor.reduce
    return wrap(reduce(bits, axis=axes, keepdims=keepdim))
