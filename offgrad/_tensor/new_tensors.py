"""Methods that make new tensors of the tensor's dtype."""

from typing import TYPE_CHECKING, Any

from offgrad import ops
from offgrad._tensor.legacy import legacy_tensor
from offgrad._tensor.type_names import NAMES
from offgrad.autograd.tensor_base import TensorBase
from offgrad.ops._core.device import check_device

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


class NewTensors(TensorBase):
    """Factories whose default is the dtype of this tensor; keywords as those of `offgrad.zeros`."""

    def new_zeros(self, *size: Any, dtype: Any = None, **options: Any) -> "Tensor":
        """Return zeros of this dtype."""
        return ops.zeros(*size, dtype=dtype or self._array.dtype, **options)

    def new_ones(self, *size: Any, dtype: Any = None, **options: Any) -> "Tensor":
        """Return ones of this dtype."""
        return ops.ones(*size, dtype=dtype or self._array.dtype, **options)

    def new_empty(self, *size: Any, dtype: Any = None, **options: Any) -> "Tensor":
        """Return an uninitialised tensor of this dtype."""
        return ops.empty(*size, dtype=dtype or self._array.dtype, **options)

    def new_empty_strided(
        self, size: Any, stride: Any, dtype: Any = None, **options: Any
    ) -> "Tensor":
        """Return an uninitialised tensor of this dtype, with these strides."""
        return ops.empty_strided(size, stride, dtype=dtype or self._array.dtype, **options)

    def new_full(
        self, size: Any, fill_value: Any, *, dtype: Any = None, **options: Any
    ) -> "Tensor":
        """Return a constant tensor of this dtype."""
        return ops.full(size, fill_value, dtype=dtype or self._array.dtype, **options)

    def new_tensor(self, data: Any, *, dtype: Any = None, **options: Any) -> "Tensor":
        """Return a tensor of `data` with this dtype."""
        return ops.tensor(data, dtype=dtype or self._array.dtype, **options)

    def new(self, *data: Any, device: Any = None) -> "Tensor":
        """Return a tensor of this dtype as an old constructor such as `FloatTensor` does."""
        check_device(device)
        return legacy_tensor(data, self._array.dtype, NAMES[self._array.dtype])
