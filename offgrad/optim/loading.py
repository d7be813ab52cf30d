"""The state of a parameter, as an optimizer loads it."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from offgrad import ops
from offgrad._tensor.tensor import Tensor


def convert_state(value: Any, param: Tensor, key: str = "") -> Any:
    """Return a copy of state, in dicts and lists, with tensors in the dtype of their parameter.

    A tensor under the key ``"step"`` keeps its dtype. NumPy arrays become tensors.
    """
    if isinstance(value, (np.ndarray, np.generic)) or _is_foreign_tensor(value):
        value = ops.tensor(np.asarray(value))
    if isinstance(value, Tensor):
        copy = value.detach().clone()
        if key != "step" and param.is_floating_point():
            copy = copy.to(param.dtype)
        copy._storage.role = "optimizer state"
        if key != "step":
            param._storage.place_alike(copy, "optimizer state")
        return copy
    if isinstance(value, dict):
        return {name: convert_state(each, param, name) for name, each in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        return type(value)(convert_state(each, param) for each in value)  # type: ignore[call-arg]
    return value


def _is_foreign_tensor(value: Any) -> bool:
    """Return whether it is a tensor of another library, which NumPy can read."""
    return hasattr(value, "__array__") and not isinstance(value, Tensor)
