"""What autograd knows of a tensor: its array, its storage and its place in the graph.

`offgrad.Tensor` is the one subclass; it adds the operations. Autograd makes tensors through
`wrap` and needs nothing else of it, so that this package does not import the operations.
"""

from typing import TYPE_CHECKING, Any, ClassVar
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from offgrad.memory import Storage

if TYPE_CHECKING:
    from offgrad.autograd.node import AccumulateGrad, Node
    from offgrad.tensor import Tensor


class TensorBase:
    """The data of a tensor."""

    concrete: ClassVar[type["Tensor"]]

    _array: NDArray[Any]
    _storage: Storage
    # Defaults are the class's: few tensors need more than an array and a storage of their own.
    _requires_grad: bool = False
    _grad_fn: "Node | None" = None
    _output_nr: int = 0
    _base: "Tensor | None" = None
    _generation: int = 0
    _hooks: "dict[int, Any] | None" = None
    _post_accumulate_hooks: "dict[int, Any] | None" = None
    _accumulator: "ref[AccumulateGrad] | None" = None
    _grad: "Tensor | None" = None

    def __init_subclass__(cls) -> None:
        if not hasattr(TensorBase, "concrete"):
            TensorBase.concrete = cls  # type: ignore[assignment]

    def _set(self, array: NDArray[Any], storage: Storage | None, requires_grad: bool) -> None:
        self._array = array
        self._storage = Storage(array) if storage is None else storage
        if requires_grad:
            self._requires_grad = True


def wrap(
    array: NDArray[Any], storage: Storage | None = None, requires_grad: bool = False
) -> "Tensor":
    """Return a tensor over `array`; without `storage`, over memory of its own."""
    tensor = object.__new__(TensorBase.concrete)
    if type(array) is not np.ndarray:
        array = np.asarray(array)
    tensor._array = array
    tensor._storage = Storage(array) if storage is None else storage
    if requires_grad:
        tensor._requires_grad = True
    return tensor


def view_of(array: NDArray[Any], base: "Tensor") -> "Tensor":
    """Return a tensor over `array`, which lies in the memory of `base`."""
    tensor = wrap(array, base._storage)
    tensor._base = base if base._base is None else base._base
    tensor._generation = tensor._base._generation
    return tensor


def is_stale(tensor: TensorBase) -> bool:
    """Return whether `tensor` is a view whose memory got another history since it was taken."""
    base = tensor._base
    return base is not None and tensor._generation != base._generation


def is_differentiable(dtype: np.dtype[Any]) -> bool:
    """Return whether tensors of `dtype` can require grad: real or complex floating point."""
    return dtype.kind in "fc" or dtype.name == "bfloat16"


def describe(tensor: TensorBase) -> str:
    """Return shape and dtype of `tensor` for an error message."""
    array = tensor._array
    return f"{array.dtype.name} tensor of shape {list(array.shape)}"
