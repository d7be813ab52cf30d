"""Bilinear functions of two vectors."""

import math
from typing import TYPE_CHECKING

from offgrad.autograd.tensor_base import metadata
from offgrad.ops._core.autocast import own_precision
from offgrad.ops._core.dtypes import check_tensor, real_floating, shape_error

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["bilinear"]


@own_precision
def bilinear(
    input1: "Tensor", input2: "Tensor", weight: "Tensor", bias: "Tensor | None" = None
) -> "Tensor":
    """Return ``input1 @ weight[k] @ input2 + bias[k]`` for each k: [..., K].

    Args:
        input1: shape [..., I].
        input2: shape [..., J], with the same sizes before.
        weight: shape [K, I, J].
        bias: shape [K].

    Raises:
        RuntimeError: if the shapes do not fit.
    """
    x1, x2 = real_floating(input1, "bilinear"), check_tensor(input2, "bilinear")
    before, shape = metadata(x1).shape[:-1], metadata(check_tensor(weight, "bilinear")).shape
    fits = len(shape) == 3 and metadata(x1).ndim and metadata(x2).shape == (*before, shape[2])
    if not fits or metadata(x1).shape[-1] != shape[1]:
        raise shape_error(
            "bilinear", "inputs [..., I] and [..., J] and a weight [K, I, J] are needed",
            x1, x2, weight,
        )  # fmt: skip
    if bias is not None and metadata(bias).shape != shape[:1]:
        raise shape_error("bilinear", f"the bias must have {shape[0]} elements", bias)
    outputs, width1, width2 = shape
    count = math.prod(before)
    rows = x1.reshape(count, width1) @ weight.permute(1, 0, 2).reshape(width1, outputs * width2)
    products = rows.reshape(count, outputs, width2) @ x2.reshape(count, width2, 1)
    result = products.reshape(*before, outputs)
    return result if bias is None else result + bias
