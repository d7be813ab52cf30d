"""Methods that make new tensors of the tensor's dtype."""

from typing import TYPE_CHECKING, Any

from offgrad import ops
from offgrad._tensor.legacy import legacy_tensor
from offgrad._tensor.type_names import NAMES
from offgrad.autograd.tensor_base import TensorBase
from offgrad.memory.meta import MetaArray
from offgrad.ops._core.device import CPU, META, is_meta
from offgrad.ops._core.factories import made_on_meta

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


def _here(tensor: TensorBase, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a factory; the device is by default that of `tensor`."""
    if options.get("device") is None:
        options["device"] = META if type(tensor._array) is MetaArray else CPU
    return options


class NewTensors(TensorBase):
    """Factories whose default is the dtype of this tensor; keywords as those of `offgrad.zeros`."""

    def new_zeros(self, *size: Any, dtype: Any = None, **options: Any) -> "Tensor":
        """Return zeros of this dtype."""
        return ops.zeros(*size, dtype=dtype or self._array.dtype, **_here(self, options))

    def new_ones(self, *size: Any, dtype: Any = None, **options: Any) -> "Tensor":
        """Return ones of this dtype."""
        return ops.ones(*size, dtype=dtype or self._array.dtype, **_here(self, options))

    def new_empty(self, *size: Any, dtype: Any = None, **options: Any) -> "Tensor":
        """Return an uninitialised tensor of this dtype."""
        return ops.empty(*size, dtype=dtype or self._array.dtype, **_here(self, options))

    def new_empty_strided(
        self, size: Any, stride: Any, dtype: Any = None, **options: Any
    ) -> "Tensor":
        """Return an uninitialised tensor of this dtype, with these strides."""
        return ops.empty_strided(
            size, stride, dtype=dtype or self._array.dtype, **_here(self, options)
        )

    def new_full(
        self, size: Any, fill_value: Any, *, dtype: Any = None, **options: Any
    ) -> "Tensor":
        """Return a constant tensor of this dtype."""
        return ops.full(size, fill_value, dtype=dtype or self._array.dtype, **_here(self, options))

    def new_tensor(self, data: Any, *, dtype: Any = None, **options: Any) -> "Tensor":
        """Return a tensor of `data` with this dtype."""
        return ops.tensor(data, dtype=dtype or self._array.dtype, **_here(self, options))

    def new(self: Any, *data: Any, size: Any = None, device: Any = None) -> "Tensor":
        """Return a tensor of this dtype as an old constructor such as `FloatTensor` does."""
        if size is not None:
            data = (*size,)
        if is_meta(self.device if device is None else device):
            return made_on_meta(legacy_tensor, data, self._array.dtype, NAMES[self._array.dtype])
        return legacy_tensor(data, self._array.dtype, NAMES[self._array.dtype])
