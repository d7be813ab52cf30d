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
    """The data of a tensor.

    Attributes:
        grad: the accumulated gradient of a leaf (or of a tensor that retains it), else None.
    """

    __slots__ = (
        "__weakref__",
        "_accumulator",
        "_array",
        "_base",
        "_generation",
        "_grad_fn",
        "_hooks",
        "_output_nr",
        "_post_accumulate_hooks",
        "_requires_grad",
        "_storage",
        "grad",
    )

    concrete: ClassVar[type["Tensor"]]

    _array: NDArray[Any]
    _storage: Storage
    _requires_grad: bool
    _grad_fn: "Node | None"
    _output_nr: int
    _base: "Tensor | None"
    _generation: int
    _hooks: "dict[int, Any] | None"
    _post_accumulate_hooks: "dict[int, Any] | None"
    _accumulator: "ref[AccumulateGrad] | None"
    grad: "Tensor | None"

    def __init_subclass__(cls) -> None:
        if not hasattr(TensorBase, "concrete"):
            TensorBase.concrete = cls  # type: ignore[assignment]

    def _set(self, array: NDArray[Any], storage: Storage | None, requires_grad: bool) -> None:
        self._array = array
        self._storage = Storage(array) if storage is None else storage
        self._requires_grad = requires_grad
        self._grad_fn = None
        self._output_nr = 0
        self._base = None
        self._generation = 0
        self._hooks = None
        self._post_accumulate_hooks = None
        self._accumulator = None
        self.grad = None


def wrap(
    array: NDArray[Any], storage: Storage | None = None, requires_grad: bool = False
) -> "Tensor":
    """Return a tensor over `array`; without `storage`, over memory of its own."""
    tensor = object.__new__(TensorBase.concrete)
    tensor._set(array if type(array) is np.ndarray else np.asarray(array), storage, requires_grad)
    return tensor


def is_differentiable(dtype: np.dtype[Any]) -> bool:
    """Return whether tensors of `dtype` can require grad: real or complex floating point."""
    return dtype.kind in "fc" or dtype.name == "bfloat16"


def describe(tensor: TensorBase) -> str:
    """Return shape and dtype of `tensor` for an error message."""
    array = tensor._array
    return f"{array.dtype.name} tensor of shape {list(array.shape)}"
