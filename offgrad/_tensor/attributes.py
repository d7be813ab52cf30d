"""Shape, dtype, memory and place of a tensor, as PyTorch's attributes and methods tell them."""

from typing import Any

import numpy as np

from offgrad._dtype import DTYPES, DType
from offgrad._layout import contiguous_format, layout, strided
from offgrad._size import Size
from offgrad.autograd.tensor_base import TensorBase, describe, metadata
from offgrad.memory.meta import MetaArray
from offgrad.ops._core.device import CPU, META, Device, check_device
from offgrad.ops._core.dims import normalize_dim
from offgrad.ops._core.memory_formats import is_in_order

_new_tuple = tuple.__new__  # without the checks of Size


class Attributes(TensorBase):
    """What a tensor tells of itself."""

    @property
    def shape(self) -> Size:
        """The sizes of the dimensions."""
        return _new_tuple(Size, metadata(self).shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return metadata(self).ndim

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return DTYPES[metadata(self).dtype]

    @property
    def device(self) -> Device:
        """The device: the CPU, or "meta" for a tensor without memory."""
        return META if type(metadata(self)) is MetaArray else CPU

    @property
    def is_meta(self) -> bool:
        """Whether the tensor has shape and dtype only, and no memory."""
        return type(metadata(self)) is MetaArray

    @property
    def is_cpu(self) -> bool:
        """Whether the tensor has memory."""
        return type(metadata(self)) is not MetaArray

    @property
    def layout(self) -> layout:
        """The layout: always `offgrad.strided`."""
        return strided

    @property
    def nbytes(self) -> int:
        """The bytes of the elements."""
        return metadata(self).nbytes

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return metadata(self).itemsize

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or the size of one dimension."""
        if dim is None:
            return _new_tuple(Size, metadata(self).shape)
        return metadata(self).shape[self._existing_dim(dim, "size")]

    def dim(self) -> int:
        """Return the number of dimensions."""
        return metadata(self).ndim

    ndimension = dim

    def numel(self) -> int:
        """Return the number of elements."""
        return metadata(self).size

    nelement = numel

    def element_size(self) -> int:
        """Return the bytes of one element."""
        return metadata(self).itemsize

    def stride(self, dim: int | None = None) -> Any:
        """Return the strides in elements, of all dimensions or one."""
        spec = metadata(self)
        steps = tuple([step // spec.itemsize for step in spec.strides])
        if 0 in steps:
            steps = _with_strides_of_ones(spec.shape, steps)
        return steps if dim is None else steps[self._existing_dim(dim, "stride")]

    def _existing_dim(self, dim: int, where: str) -> int:
        if not metadata(self).ndim:
            raise IndexError(f"{where}: dim {dim} is given, but the tensor has no dimensions")
        return normalize_dim(dim, metadata(self).ndim, where)

    def dim_order(self) -> tuple[int, ...]:
        """Return the dimensions in the order of their strides, the largest first."""
        order = sorted(range(metadata(self).ndim), key=lambda axis: -metadata(self).strides[axis])
        return tuple(order)

    def data_ptr(self) -> int:
        """Return the address of the first element; 0 if there is none."""
        if not self._array.size or type(self._array) is MetaArray:
            return 0
        return int(self._array.__array_interface__["data"][0])

    def is_contiguous(self, memory_format: Any = contiguous_format) -> bool:
        """Return whether the memory has no gaps and is in C order, or that of `memory_format`."""
        if memory_format is contiguous_format:
            return metadata(self).flags.c_contiguous
        return is_in_order(metadata(self), memory_format, "is_contiguous")

    def is_floating_point(self) -> bool:
        """Return whether the dtype is a real floating point type."""
        return DTYPES[metadata(self).dtype].is_floating_point

    def is_complex(self) -> bool:
        """Return whether the dtype is complex."""
        return metadata(self).dtype.kind == "c"

    def is_signed(self) -> bool:
        """Return whether the dtype has negative numbers."""
        return metadata(self).dtype.kind not in "bu"

    def is_nonzero(self) -> bool:
        """Return whether the only element is not zero.

        Raises:
            RuntimeError: unless there is exactly one element.
        """
        if self._array.size != 1:
            raise RuntimeError(f"is_nonzero needs one element, got a {describe(self)}")
        return bool(self)

    def is_same_size(self, other: TensorBase) -> bool:
        """Return whether `other` has the same shape."""
        return metadata(self).shape == metadata(other).shape

    def is_set_to(self, tensor: TensorBase) -> bool:
        """Return whether `tensor` has the same elements of the same memory."""
        mine, theirs = self._array, tensor._array
        return (
            mine.__array_interface__["data"] == theirs.__array_interface__["data"]
            and mine.shape == theirs.shape
            and mine.strides == theirs.strides
        )

    def is_conj(self) -> bool:
        """Return False: conjugates are computed at once."""
        return False

    def is_neg(self) -> bool:
        """Return False: negatives are computed at once."""
        return False

    def is_pinned(self, device: Any = None) -> bool:
        """Return False: there is no accelerator to pin memory for."""
        return False

    def pin_memory(self, device: Any = None) -> Any:
        """Raise: there is no accelerator to pin memory for."""
        raise RuntimeError("cannot pin memory: no accelerator is available; leave out pin_memory()")

    def is_distributed(self) -> bool:
        """Return False."""
        return False

    def get_device(self) -> int:
        """Return -1, the number of the CPU."""
        return -1

    def cuda(self, device: Any = None, non_blocking: bool = False, **_: Any) -> Any:
        """Raise: there is only the CPU."""
        check_device("cuda")

    def xpu(self, device: Any = None, non_blocking: bool = False, **_: Any) -> Any:
        """Raise: there is only the CPU."""
        check_device("xpu")

    is_cuda = is_xpu = is_mps = is_mtia = is_ipu = is_maia = is_xla = is_vulkan = False
    is_sparse = is_sparse_csr = is_mkldnn = is_quantized = is_nested = False

    def __len__(self) -> int:
        if not self._array.ndim:
            raise TypeError("len() of a 0-d tensor: it has no dimensions, so no length")
        return int(self._array.shape[0])

    def __contains__(self: Any, element: Any) -> bool:
        if not isinstance(element, (TensorBase, bool, int, float, complex, np.generic)):
            raise RuntimeError(
                f"`in` looks for tensors and numbers in a tensor, got {type(element)}"
            )
        return bool((self == element).any())


def _with_strides_of_ones(shape: tuple[int, ...], steps: tuple[int, ...]) -> tuple[int, ...]:
    """Return strides with PyTorch's for dimensions of size 1, and for tensors without elements."""
    found = list(steps)
    is_empty = 0 in shape
    for axis in reversed(range(len(shape))):
        if not found[axis] and (shape[axis] == 1 or is_empty):
            follows = axis + 1 < len(shape)
            found[axis] = max(shape[axis + 1], 1) * found[axis + 1] if follows else 1
    return tuple(found)
