"""Parameter: a tensor that modules register."""

from typing import Any

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.autograd.tensor_base import TensorBase


class Parameter(Tensor):
    """A tensor that a module registers as a parameter when it is set as an attribute.

    It shares memory with `data` if that is a tensor, and requires grad by default.
    """

    _is_module_parameter = True  # frozen ones, too

    def __init__(self, data: Any = (), requires_grad: bool = True) -> None:
        source = data if isinstance(data, TensorBase) else ops.tensor(data)
        self._set(source._array, source._storage, False)
        self._storage.role = "parameters"
        self.requires_grad_(requires_grad)

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"
