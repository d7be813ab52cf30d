"""The base class of tensors: an array, its storage and its place in the graph.

`offgrad.Tensor` adds the operations. Autograd creates tensors by `wrap` only, so that this package
does not import the operations.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from offgrad.autograd.grad_mode import inference_used, state
from offgrad.memory import Storage
from offgrad.memory.meta import MetaArray

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor
    from offgrad.autograd.node import AccumulateGrad, Node
    from offgrad.autograd.views import ViewChain


_new, _ndarray = object.__new__, np.ndarray  # looked up once: every operation wraps its results


plain_classes: "set[type[TensorBase]]" = set()
"""`offgrad.Tensor` and the classes of which operations make tensors of it, as of parameters."""


class TensorBase:
    """The data of a tensor."""

    # The class of the tensors that `wrap` creates; the module of `offgrad.Tensor` sets it.
    tensor_class: ClassVar[type["Tensor"]]

    # A tensor over paged memory has none: `Tensor.__getattr__` reads it on each use.
    _array: NDArray[Any]
    _storage: Storage
    # Class attributes as defaults save memory: most tensors need only an array and a storage.
    _requires_grad: bool = False
    _is_module_parameter: bool = False
    # Whether an operation made it of a number among its operands: hooks do not get such tensors.
    _is_wrapped_number: bool = False
    _grad_fn: "Node | None" = None
    _output_nr: int = 0
    # For a view: its base, the operations from the base to it, and the generation of the base's
    # history that its own history belongs to.
    _base: "Tensor | None" = None
    _view_chain: "ViewChain | None" = None
    _generation: int = 0
    _hooks: "dict[int, Any] | None" = None
    _post_accumulate_hooks: "dict[int, Any] | None" = None
    _accumulator: "ref[AccumulateGrad] | None" = None
    _grad: "Tensor | None" = None
    # Of a tensor over paged memory: an array of its shape, dtype and strides whose elements must
    # not be read, and the offset of its first element in the storage, in bytes.
    _spec: NDArray[Any] | None = None
    _offset: int = 0

    def _set(self, array: NDArray[Any], storage: Storage | None, requires_grad: bool) -> None:
        self._array = array
        if self._spec is not None:
            del self._spec
        self._storage = new_storage(array) if storage is None else storage
        if requires_grad:
            self._requires_grad = True

    def _share(self, source: "TensorBase", requires_grad: bool = False) -> None:
        """Become a tensor over the memory of `source`, which is not read if it is paged."""
        if source._spec is None:
            self._set(source._array, source._storage, requires_grad)
            return
        self.__dict__.pop("_array", None)
        self._storage, self._spec, self._offset = source._storage, source._spec, source._offset
        if requires_grad:
            self._requires_grad = True


def new_storage(array: NDArray[Any]) -> Storage:
    """Return a storage for a new tensor over `array`; in inference mode, an inference tensor's."""
    storage = Storage.of_nothing(array) if type(array) is MetaArray else Storage(array)
    if inference_used and state.inference:
        storage.inference = True
    return storage


def wrap(
    array: NDArray[Any], storage: Storage | None = None, requires_grad: bool = False
) -> "Tensor":
    """Return a tensor over `array`; without `storage`, with a new one."""
    tensor = _new(TensorBase.tensor_class)
    if type(array) is not _ndarray:
        if type(array) is not MetaArray:
            array = np.asarray(array)
        elif storage is None:
            storage = new_storage(array)
    tensor._array = array
    if storage is None:
        storage = Storage(array)
        if inference_used and state.inference:
            storage.inference = True
    tensor._storage = storage
    if requires_grad:
        tensor._requires_grad = True
    return tensor


def metadata(tensor: TensorBase) -> NDArray[Any]:
    """Return an array of the tensor's shape, dtype and strides, without reading paged memory.

    Its elements must not be read.
    """
    spec = tensor._spec
    return tensor._array if spec is None else spec


def drop_array(tensor: TensorBase) -> None:
    """Let a tensor over paged memory hold no array; each use reads the storage."""
    if tensor._spec is None:
        array, root = tensor._array, tensor._storage.root
        element = np.empty(1, array.dtype)
        tensor._offset = address(array) - address(root)
        tensor._spec = np.lib.stride_tricks.as_strided(
            element, array.shape, array.strides, writeable=False
        )
        del tensor.__dict__["_array"]


def without_array(tensor: "Tensor") -> "Tensor":
    """Return a tensor over paged memory, with its history, that lets the memory be evicted."""
    if tensor._spec is None:
        held = object.__new__(type(tensor))
        held.__dict__.update(tensor.__dict__)
        drop_array(held)
        return held
    return tensor


def load_array(tensor: TensorBase) -> NDArray[Any]:
    """Return the array of a tensor over paged memory, which stays while the array exists."""
    spec, root = tensor._spec, tensor._storage.root
    assert spec is not None
    if (spec.shape, spec.dtype, spec.strides) == (root.shape, root.dtype, root.strides):
        return root
    return np.ndarray(spec.shape, spec.dtype, root, tensor._offset, spec.strides)


def alias(tensor: TensorBase) -> "Tensor":
    """Return a detached tensor over the same memory, which is not read if it is paged."""
    if tensor._spec is None:
        return wrap(tensor._array, tensor._storage)
    result = _new(TensorBase.tensor_class)
    result._share(tensor)
    return result


def in_batches(tensors: "Iterable[Tensor]") -> "Iterator[list[Tensor]]":
    """Yield the tensors in lists, in order; paged ones in batches that fit in memory together."""
    batch: list[Tensor] = []
    nbytes = 0
    for each in tensors:
        nbytes += metadata(each).nbytes
        if batch and nbytes > each._storage.max_batch_nbytes:
            yield batch
            batch, nbytes = [], metadata(each).nbytes
        batch.append(each)
    if batch:
        yield batch


def address(array: NDArray[Any]) -> int:
    """Return where the first element of `array` lies in memory."""
    return int(array.__array_interface__["data"][0])


def numpy_dtype(x: Any) -> np.dtype[Any]:
    """Return NumPy's dtype of a tensor or an array, as backward gets either."""
    dtype: np.dtype[Any] = (metadata(x) if isinstance(x, TensorBase) else x).dtype
    return dtype


def is_differentiable(dtype: np.dtype[Any]) -> bool:
    """Return whether tensors of `dtype` can require grad: real or complex floating point."""
    return dtype.kind in "fcV"  # V: ml_dtypes' bfloat16 and float8


def describe(tensor: TensorBase) -> str:
    """Return shape and dtype of `tensor` for an error message."""
    array = metadata(tensor)
    return f"{array.dtype.name} tensor of shape {list(array.shape)}"
