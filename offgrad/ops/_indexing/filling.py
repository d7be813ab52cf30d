"""Elements written one by one: diagonals, and the results of a Python function."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad.autograd.mutation import check_mutable
from offgrad.autograd.tensor_base import describe
from offgrad.autograd.tensor_base import wrap as as_tensor

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__: list[str] = []


def fill_diagonal_(input: "Tensor", fill_value: Any, wrap: bool = False) -> "Tensor":
    """Write a number into the elements whose indices are all equal; return the tensor.

    With `wrap` the diagonal of a tall matrix begins anew below itself, after a row left out.

    Raises:
        RuntimeError: for less than two dimensions, or three and more of different sizes.
    """
    shape = input._array.shape
    if len(shape) < 2:
        raise RuntimeError(
            f"fill_diagonal_: the tensor must have 2 or more dimensions, got a {describe(input)}"
        )
    if len(shape) > 2 and len(set(shape)) > 1:
        raise RuntimeError(f"fill_diagonal_: all sizes must be equal, got a {describe(input)}")
    where: tuple[Any, ...] = (np.arange(min(shape)),) * len(shape)
    if wrap and len(shape) == 2:
        flat = np.arange(0, shape[0] * shape[1], shape[1] + 1)
        where = np.unravel_index(flat, shape)
    mask = np.zeros(shape, np.bool_)
    mask[where] = True
    return input.masked_fill_(as_tensor(mask), fill_value)


def apply_(input: "Tensor", callable: Callable[[Any], Any]) -> "Tensor":
    """Replace each element by what a Python function returns for it; return the tensor.

    Raises:
        RuntimeError: if the tensor requires grad.
    """
    return _called(input, callable, "apply_")


def map_(input: "Tensor", tensor: "Tensor", callable: Callable[[Any, Any], Any]) -> "Tensor":
    """Replace each element by what a function returns for it and that of another tensor."""
    return _called(input, callable, "map_", tensor)


def map2_(
    input: "Tensor", x: "Tensor", y: "Tensor", callable: Callable[[Any, Any, Any], Any]
) -> "Tensor":
    """Replace each element by what a function returns for it and those of two other tensors."""
    return _called(input, callable, "map2_", x, y)


def _called(
    input: "Tensor", callable: Callable[..., Any], where: str, *others: "Tensor"
) -> "Tensor":
    for each in (input, *others):
        if each.requires_grad:
            raise RuntimeError(
                f"Can't call {where}() on Variable that requires grad. Use var.detach().{where}() "
                "instead."
            )
    check_mutable(input, where, recorded=False)
    target = input._array
    lists = [np.broadcast_to(each._array, target.shape).reshape(-1).tolist() for each in others]
    results = [callable(*each) for each in zip(target.reshape(-1).tolist(), *lists, strict=True)]
    input._storage.write(where)
    strange = next((each for each in results if isinstance(each, str)), None)
    if strange is not None:
        raise TypeError(f"{where}: what the function returns must be real number, not str")
    target[...] = np.asarray(results, target.dtype).reshape(target.shape)
    return input
