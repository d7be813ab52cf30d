"""Variable: the old name of a tensor with a place in the graph."""

import warnings
from typing import Any

import numpy as np

from offgrad.autograd.tensor_base import TensorBase, wrap


class _VariableMeta(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, TensorBase)


class Variable(metaclass=_VariableMeta):
    """Returns a tensor that shares the memory of `data` and has no history; tensors are instances.

    Old code wraps tensors in it.
    """

    def __new__(cls, data: Any = None, requires_grad: bool = False, volatile: Any = None) -> Any:
        """Return the tensor.

        Args:
            data: a tensor; by default one without elements.
            requires_grad: whether gradients are computed for the result.
            volatile: has no effect.
        """
        if volatile is not None:
            warnings.warn(
                "volatile was removed and now has no effect. Use `with torch.no_grad():` instead.",
                UserWarning,
                stacklevel=2,
            )
        if data is None:
            data = wrap(np.zeros(0, np.float32))
        if not isinstance(data, TensorBase):
            raise TypeError(f"Variable data has to be a tensor, but got {type(data).__name__}")
        tensor: Any = wrap(data._array, data._storage)
        return tensor.requires_grad_(requires_grad)
