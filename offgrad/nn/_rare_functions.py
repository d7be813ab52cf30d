"""Names of `offgrad.nn.functional` that few programs use."""

import enum
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from offgrad import ops
from offgrad._dtype import bfloat16, float16, float32
from offgrad._tensor.tensor import Tensor
from offgrad.autograd.tensor_base import describe
from offgrad.nn import grad

__all__ = [
    "BroadcastingList1",
    "BroadcastingList2",
    "BroadcastingList3",
    "GRID_SAMPLE_INTERPOLATION_MODES",
    "GRID_SAMPLE_PADDING_MODES",
    "ScalingType",
    "SwizzleType",
    "Tensor",
    "assert_int_or_pair",
    "boolean_dispatch",
    "grad",
    "grouped_mm",
    "scaled_mm",
    "torch",
]

torch = sys.modules["offgrad"]

GRID_SAMPLE_INTERPOLATION_MODES = {"bilinear": 0, "nearest": 1, "bicubic": 2}
GRID_SAMPLE_PADDING_MODES = {"zeros": 0, "border": 1, "reflection": 2}


class _BroadcastingList:
    """In annotations: a list of numbers, or one number for all of them."""

    def __getitem__(self, types: Any) -> None:
        return None


BroadcastingList1, BroadcastingList2, BroadcastingList3 = (_BroadcastingList() for _ in range(3))


class ScalingType(enum.Enum):
    """What each factor of `scaled_mm` multiplies: the whole matrix, a row, or a block."""

    TensorWise = 0
    RowWise = 1
    BlockWise1x16 = 2
    BlockWise1x32 = 3
    BlockWise1x128 = 4
    BlockWise128x128 = 5


class SwizzleType(enum.Enum):
    """The order of factors in memory."""

    NO_SWIZZLE = 0
    SWIZZLE_32_4_4 = 1


def assert_int_or_pair(arg: Any, arg_name: str, message: str) -> None:
    """Raise unless an argument is an integer or has two members.

    Raises:
        AssertionError: with `message`, in which ``{}`` becomes the name.
    """
    if not isinstance(arg, int) and len(arg) != 2:
        raise AssertionError(message.format(arg_name))


def boolean_dispatch(
    arg_name: str,
    arg_index: int,
    default: bool,
    if_true: Callable[..., Any],
    if_false: Callable[..., Any],
    module_name: str | None,
    func_name: str | None,
) -> Callable[..., Any]:
    """Return a function that calls one of two, as one of its arguments, a bool, says.

    Args:
        arg_name: the name of the argument.
        arg_index: its position.
        default: its value if it is not given.
        if_true: the function that runs if it is true.
        if_false: the other function.
        module_name: the module of the result, if any.
        func_name: its name, if any.
    """

    def function(*args: Any, **kwargs: Any) -> Any:
        chosen = args[arg_index] if arg_index < len(args) else kwargs.get(arg_name, default)
        return (if_true if chosen else if_false)(*args, **kwargs)

    if if_true.__doc__ is None or if_false.__doc__ is None:
        function.__doc__ = if_true.__doc__ or if_false.__doc__
    if module_name is not None:
        function.__module__ = module_name
    if func_name is not None:
        function.__name__ = func_name
    return function


def grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    *,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: Any = None,
) -> Tensor:
    """Return products of groups of rows or columns, each with a matrix of its own.

    Rows [n, k] of `mat_a` with matrices [g, k, m]: [n, m]. Matrices [g, n, k] with columns [k, m]:
    [n, m]. Both batches: [g, n, m]. Both matrices, with groups of the inner dimension: [g, n, m].

    Args:
        mat_a: one matrix, or one for each group.
        mat_b: likewise.
        offs: where each group ends, int32 [g], unless both are batches. What follows the last is
            zero.
        bias: must be None, as in PyTorch.
        out_dtype: the dtype of the result; that of the matrices by default.

    Raises:
        RuntimeError: if shapes, dtypes or `offs` do not fit.
    """
    if bias is not None:
        raise RuntimeError("grouped_mm: there is no bias; add it to the product")
    for name, each in (("mat_a", mat_a), ("mat_b", mat_b)):
        if each.dtype not in (float32, bfloat16, float16):
            raise RuntimeError(
                f"grouped_mm: {name} must be float32, bfloat16 or float16, got a {describe(each)}"
            )
        if each.ndim not in (2, 3):
            raise RuntimeError(f"grouped_mm: {name} must be 2D or 3D, got a {describe(each)}")
    are_batches = mat_a.ndim == mat_b.ndim == 3
    if are_batches != (offs is None):
        raise RuntimeError(
            "grouped_mm: offs is needed if one of the factors is a matrix, and only then; got a "
            f"{describe(mat_a)}, a {describe(mat_b)} and offs={offs}"
        )
    dtype = mat_a.dtype if out_dtype is None else out_dtype
    if are_batches:
        return ops.bmm(mat_a, mat_b).to(dtype)
    if offs is None or offs._array.dtype != np.int32:
        raise RuntimeError("grouped_mm: Offsets have to be int32")
    return _by_groups(mat_a, mat_b, offs._array.tolist()).to(dtype)


def _by_groups(mat_a: Tensor, mat_b: Tensor, ends: list[int]) -> Tensor:
    spans = list(zip([0, *ends], ends, strict=False))
    if mat_a.ndim == 2 and mat_b.ndim == 2:
        return ops.stack([mat_a[:, start:end] @ mat_b[start:end] for start, end in spans])
    if mat_a.ndim == 2:
        parts = [mat_a[start:end] @ mat_b[at] for at, (start, end) in enumerate(spans)]
        rest = mat_a.shape[0] - ends[-1]
        return ops.cat([*parts, mat_a.new_zeros((rest, mat_b.shape[-1]))])
    parts = [mat_a[at] @ mat_b[:, start:end] for at, (start, end) in enumerate(spans)]
    rest = mat_b.shape[1] - ends[-1]
    return ops.cat([*parts, mat_b.new_zeros((mat_a.shape[1], rest))], 1)


def scaled_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Any,
    scale_recipe_a: Any,
    scale_b: Any,
    scale_recipe_b: Any,
    swizzle_a: Any = None,
    swizzle_b: Any = None,
    bias: Tensor | None = None,
    output_dtype: Any = bfloat16,
    contraction_dim: Any = (),
    use_fast_accum: bool = False,
) -> Tensor:
    """Return the product of two float8 matrices, whose numbers factors multiply.

    Args:
        mat_a: shape [n, k].
        mat_b: shape [k, m].
        scale_a: a factor for the matrix, or one for each row [n, 1].
        scale_recipe_a: which: `ScalingType`.
        scale_b: a factor for the matrix, or one for each column [1, m].
        scale_recipe_b: which.
        swizzle_a: the order of `scale_a` in memory: as it is.
        swizzle_b: likewise.
        bias: added to each row [m].
        output_dtype: the dtype of the result.
        contraction_dim: not used.
        use_fast_accum: not used.

    Raises:
        NotImplementedError: for factors of blocks, and for other orders.
    """
    factors = []
    for matrix, scale, recipe, swizzle in (
        (mat_a, scale_a, scale_recipe_a, swizzle_a),
        (mat_b, scale_b, scale_recipe_b, swizzle_b),
    ):
        kinds = recipe if isinstance(recipe, (list, tuple)) else [recipe]
        scales = scale if isinstance(scale, (list, tuple)) else [scale]
        orders = swizzle if isinstance(swizzle, (list, tuple)) else [swizzle]
        if {*kinds} - {ScalingType.TensorWise, ScalingType.RowWise}:
            raise NotImplementedError(
                f"scaled_mm: factors of the matrix or of rows are supported, got {kinds}"
            )
        if {*orders} - {None, SwizzleType.NO_SWIZZLE}:
            raise NotImplementedError(f"scaled_mm: factors lie in their order, got {orders}")
        numbers = matrix.float()
        for each, kind in zip(scales, kinds, strict=True):
            is_left, count = matrix is mat_a, matrix.shape[0 if matrix is mat_a else 1]
            if kind is ScalingType.RowWise:
                each = each.reshape((count, 1) if is_left else (1, count))
            numbers = numbers * each.float()
        factors.append(numbers)
    product = factors[0] @ factors[1]
    return (product if bias is None else product + bias.float()).to(output_dtype)
