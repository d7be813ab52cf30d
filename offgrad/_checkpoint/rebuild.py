"""The functions by which a checkpoint's pickle makes tensors of storages."""

import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offgrad import memory
from offgrad._layout import (
    sparse_bsc,
    sparse_bsr,
    sparse_coo,
    sparse_csc,
    sparse_csr,
    strided,
)
from offgrad._tensor.conversions import rebuild_meta
from offgrad._tensor.tensor import Tensor
from offgrad.autograd.tensor_base import TensorBase, is_differentiable, wrap
from offgrad.memory import Storage
from offgrad.memory.meta import as_meta
from offgrad.nn.parameter import Parameter
from offgrad.ops._core.sparse_data import sparse_module

_COMPRESSED = sparse_csr, sparse_csc, sparse_bsr, sparse_bsc
_OWN = frozenset(TensorBase.__annotations__)


class LoadedStorage:
    """The memory of a storage in a file.

    Attributes:
        data: its bytes.
        dtype: of its elements; None if the file does not say.
        shared: what the tensors over it have in common.
        on_meta: whether the tensors get its geometry only.
    """

    on_meta = False

    def __init__(
        self, data: NDArray[np.uint8], dtype: np.dtype[Any] | None, *, external: bool
    ) -> None:
        self.data = data
        self.dtype = dtype
        if dtype is not None and data.nbytes % dtype.itemsize == 0:
            self.shared = Storage(data.view(dtype), external=external)
        else:
            self.shared = Storage(data, external=external)


def _tensor(
    storage: LoadedStorage,
    offset: int,
    size: Any,
    stride: Any,
    dtype: np.dtype[Any] | None,
    requires_grad: bool,
    metadata: Any,
) -> Tensor:
    if not isinstance(storage, LoadedStorage) or dtype is None:
        raise pickle.UnpicklingError("the file is corrupt: a tensor has no storage")
    itemsize = dtype.itemsize
    steps = tuple(step * itemsize for step in stride)
    try:
        if 0 in size:
            array: NDArray[Any] = np.empty(tuple(size), dtype)
        else:
            array = np.ndarray(tuple(size), dtype, storage.data.data, offset * itemsize, steps)
    except (TypeError, ValueError) as error:
        raise pickle.UnpicklingError(
            f"the file is corrupt: a tensor of shape {list(size)} and strides {list(stride)} "
            f"exceeds its storage of {storage.data.nbytes} bytes"
        ) from error
    if isinstance(metadata, dict) and (metadata.get("conj") or metadata.get("neg")):
        array = np.conj(array) if metadata.get("conj") else array
        return wrap(memory.copy(-array if metadata.get("neg") else array))
    tensor = wrap(as_meta(array)) if storage.on_meta else wrap(array, storage.shared)
    if requires_grad and is_differentiable(dtype):
        tensor._requires_grad = True
    return tensor


def rebuild_tensor(storage: LoadedStorage, offset: int, size: Any, stride: Any) -> Tensor:
    """Return a tensor, of the oldest files."""
    return _tensor(storage, offset, size, stride, storage.dtype, False, None)


def rebuild_tensor_v2(
    storage: LoadedStorage,
    offset: int,
    size: Any,
    stride: Any,
    requires_grad: bool,
    backward_hooks: Any,
    metadata: Any = None,
) -> Tensor:
    """Return a tensor of the storage's dtype."""
    return _tensor(storage, offset, size, stride, storage.dtype, requires_grad, metadata)


def rebuild_tensor_v3(
    storage: LoadedStorage,
    offset: int,
    size: Any,
    stride: Any,
    requires_grad: bool,
    backward_hooks: Any,
    dtype: Any,
    metadata: Any = None,
) -> Tensor:
    """Return a tensor of a dtype, over bytes."""
    return _tensor(storage, offset, size, stride, np.dtype(dtype), requires_grad, metadata)


def rebuild_meta_tensor(dtype: Any, size: Any, stride: Any, requires_grad: bool) -> Tensor:
    """Return a tensor of the meta device."""
    kind = np.dtype(dtype)
    return rebuild_meta(
        Tensor, tuple(size), [each * kind.itemsize for each in stride], kind, requires_grad
    )


def rebuild_parameter(data: Tensor, requires_grad: bool, backward_hooks: Any) -> Parameter:
    """Return a parameter over the memory of `data`."""
    return Parameter(data, requires_grad)


def rebuild_parameter_with_state(
    data: Tensor, requires_grad: bool, backward_hooks: Any, state: Any
) -> Any:
    """Return a parameter with further attributes."""
    return _with_state(Parameter(data, requires_grad), state)


def rebuild_from_type_v2(function: Any, kind: Any, args: Any, state: Any) -> Any:
    """Return the tensor ``function(*args)`` as `kind`, with further attributes."""
    if function not in REBUILD.values() or not (
        isinstance(kind, type) and issubclass(kind, Tensor)
    ):
        raise pickle.UnpicklingError(f"the file is corrupt: {kind!r} is no class of tensors")
    tensor = function(*args)
    if type(tensor) is not kind:
        source, tensor = tensor, object.__new__(kind)
        tensor._set(source._array, source._storage, source._requires_grad)
    return _with_state(tensor, state)


def _with_state(tensor: Any, state: Any) -> Any:
    """Set the attributes that a program gave to a tensor."""
    for part in state if isinstance(state, tuple) else (state,):
        for name, value in (part or {}).items():
            if not isinstance(name, str) or name in _OWN or hasattr(Tensor, name):
                raise pickle.UnpicklingError(
                    f"the file is corrupt: it sets {name!r} of a tensor, which is no attribute of "
                    "a program's own"
                )
            tensor.__dict__[name] = value
    return tensor


def layout_of(text: str) -> Any:
    """Return the layout that prints as `text`."""
    for each in (strided, sparse_coo, *_COMPRESSED):
        if repr(each) == text:
            return each
    raise pickle.UnpicklingError(f"the file is corrupt: {text!r} is no layout")


def rebuild_sparse_tensor(layout: Any, parts: Any) -> Tensor:
    """Return a sparse tensor of its indices and values, which are checked."""
    constructors = sparse_module("constructors")
    try:
        if layout is sparse_coo:
            indices, values, size, *rest = parts
            coalesced = bool(rest and rest[0])
            made = constructors.sparse_coo_tensor(indices, values, size, is_coalesced=coalesced)
        else:
            made = constructors.sparse_compressed_tensor(*parts, layout=layout)
    except (TypeError, ValueError, RuntimeError) as error:
        raise pickle.UnpicklingError(f"the file is corrupt: {error}") from error
    tensor: Tensor = made
    return tensor


REBUILD = {
    "torch.serialization._get_layout": layout_of,
    "torch._utils._rebuild_sparse_tensor": rebuild_sparse_tensor,
    "torch._utils._rebuild_tensor": rebuild_tensor,
    "torch._utils._rebuild_tensor_v2": rebuild_tensor_v2,
    "torch._utils._rebuild_tensor_v3": rebuild_tensor_v3,
    "torch._utils._rebuild_meta_tensor_no_storage": rebuild_meta_tensor,
    "torch._utils._rebuild_parameter": rebuild_parameter,
    "torch._utils._rebuild_parameter_with_state": rebuild_parameter_with_state,
    "torch._tensor._rebuild_from_type_v2": rebuild_from_type_v2,
}
"""The functions, by the names in files."""
