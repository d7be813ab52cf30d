"""Many parameters as one vector, and back."""

from collections.abc import Iterable

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.autograd.tensor_base import TensorBase

__all__ = ["parameters_to_vector", "vector_to_parameters"]


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """Return the elements of all parameters, one after the other, as one vector."""
    return ops.cat([each.view(-1) for each in parameters])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Make consecutive slices of a vector, views of it, the data of parameters.

    Raises:
        TypeError: if `vec` is no tensor.
    """
    if not isinstance(vec, TensorBase):
        raise TypeError(f"expected torch.Tensor as the vector, but got: {type(vec)}")
    start = 0
    for each in parameters:
        size = each.numel()
        each.data = vec[start : start + size].view_as(each).data
        start += size
