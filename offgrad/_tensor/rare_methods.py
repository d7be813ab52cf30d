"""Methods and attributes of tensors that few programs use."""

import warnings
from typing import TYPE_CHECKING, Any, NoReturn

from offgrad import ops
from offgrad._dtype import DTYPES, DType
from offgrad._tensor import storages
from offgrad.autograd import grad_mode
from offgrad.autograd.node import gradient_edge
from offgrad.autograd.tensor_base import TensorBase
from offgrad.ops._core.device import check_device
from offgrad.ops._core.sparse_data import sparse_module

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


def _of_sparse(name: str) -> Any:
    """Return the method that sparse tensors have, and others refuse."""

    def refuse(self: Any, *_: Any) -> NoReturn:
        raise RuntimeError(
            f"{name} expected sparse tensor layout but got Strided: this tensor is dense"
        )

    refuse.__name__ = name
    refuse.__doc__ = "Raise: the tensor is not sparse."
    return refuse


def _of_quantized(name: str) -> Any:
    """Return the method that quantized tensors have, and others refuse."""

    def refuse(self: Any, *_: Any) -> NoReturn:
        raise RuntimeError(f"{name} is for quantized tensors, and this tensor is not quantized")

    refuse.__name__ = name
    refuse.__doc__ = "Raise: the tensor is not quantized."
    return refuse


def _removed(name: str, instead: str) -> Any:
    """Return the function or method that PyTorch removed."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(
            f"{name}: this function was deprecated since version 1.9 and is now removed; use "
            f"{instead}"
        )

    refuse.__name__ = name
    refuse.__doc__ = f"Raise: PyTorch has removed it in favour of `{instead}`."
    return refuse


eig = _removed("eig", "linalg.eig")
lstsq = _removed("lstsq", "linalg.lstsq, whose arguments come in the other order")
matrix_rank = _removed("matrix_rank", "linalg.matrix_rank")
solve = _removed("solve", "linalg.solve, whose arguments come in the other order")
symeig = _removed("symeig", "linalg.eigh")


def _sparse_function(name: str) -> Any:
    """Return the method that a function of sparse tensors computes, imported when called."""

    def method(self: Any, *args: Any, **options: Any) -> Any:
        return getattr(sparse_module("constructors"), name)(self, *args, **options)

    method.__name__ = name
    method.__doc__ = f"See `{name}` of the sparse layouts."
    return method


class RareMethods(TensorBase):
    """Old names, names of other layouts and devices, and the like."""

    name: str | None = None
    indices, values, coalesce = map(_of_sparse, ("indices", "values", "coalesce"))
    is_coalesced, crow_indices = map(_of_sparse, ("is_coalesced", "crow_indices"))
    col_indices, ccol_indices = map(_of_sparse, ("col_indices", "ccol_indices"))
    row_indices = _of_sparse("row_indices")
    to_sparse, to_sparse_coo = map(_sparse_function, ("to_sparse", "to_sparse_coo"))
    to_sparse_csr, to_sparse_csc = map(_sparse_function, ("to_sparse_csr", "to_sparse_csc"))
    to_sparse_bsr, to_sparse_bsc = map(_sparse_function, ("to_sparse_bsr", "to_sparse_bsc"))
    int_repr, q_scale = map(_of_quantized, ("int_repr", "q_scale"))
    q_zero_point, q_per_channel_axis = map(_of_quantized, ("q_zero_point", "q_per_channel_axis"))
    q_per_channel_scales = _of_quantized("q_per_channel_scales")
    q_per_channel_zero_points = _of_quantized("q_per_channel_zero_points")
    qscheme = _of_quantized("qscheme")
    sparse_mask = _sparse_function("sparse_mask")
    smm, sspaddmm = map(_of_sparse, ("smm", "sspaddmm"))
    sparse_resize_, resize_as_sparse_ = map(_of_sparse, ("sparse_resize_", "resize_as_sparse_"))
    sparse_resize_and_clear_ = _of_sparse("sparse_resize_and_clear_")
    eig, lstsq, solve, symeig = eig, lstsq, solve, symeig
    float_power_ = ops.float_power_

    @staticmethod
    def _sparse(index: Any, values: Any, shape: Any, is_coalesced: bool = False) -> Any:
        """Return the sparse tensor of values [n, ...] at indices [d, n], unchecked."""
        return sparse_module("coo").make_coo(index, values, shape, is_coalesced)

    def dequantize(self: Any) -> "Tensor":
        """Return the tensor as float32."""
        result: Tensor = self.float()
        return result

    def sparse_dim(self) -> int:
        """Return 0: no dimension is sparse."""
        return 0

    def dense_dim(self) -> int:
        """Return the number of dimensions."""
        return self._array.ndim

    def to_dense(self: Any, dtype: Any = None, *, masked_grad: Any = None) -> "Tensor":
        """Return the tensor itself, in `dtype` if one is given."""
        return self if dtype is None else ops.cast(self, dtype)

    def const_data_ptr(self: Any) -> int:
        """Return the address of the first element, for reading."""
        address: int = self.data_ptr()
        return address

    @property
    def volatile(self) -> bool:
        """False: PyTorch removed volatile tensors in favour of `no_grad`."""
        warnings.warn(
            "volatile was removed (Variable.volatile is always False)", UserWarning, stacklevel=2
        )
        return False

    @property
    def grad_dtype(self) -> DType:
        """The dtype of the gradient: that of the tensor."""
        return DTYPES[self._array.dtype]

    @property
    def _backward_hooks(self: Any) -> Any:
        node, output_nr = gradient_edge(self)
        return None if node is None else node.hooks_of_output(output_nr)

    def storage_type(self) -> Any:
        """Return the class of typed storages of the dtype."""
        return storages.TYPES[DTYPES[self._array.dtype]]

    def resize(self: Any, *sizes: Any) -> "Tensor":
        """Return the elements, as many as there are, in another shape; deprecated in PyTorch."""
        warnings.warn("non-inplace resize is deprecated", UserWarning, stacklevel=2)
        return ops.reshape(self, *sizes)

    def resize_as(self: Any, tensor: Any) -> "Tensor":
        """Return the elements in the shape of `tensor`; deprecated in PyTorch."""
        warnings.warn("non-inplace resize_as is deprecated", UserWarning, stacklevel=2)
        return ops.reshape(self, tensor._array.shape)

    def module_load(self: Any, other: "Tensor", assign: bool = False) -> "Tensor":
        """Return what `load_state_dict` puts in place of this parameter.

        Args:
            other: the tensor of the state dict.
            assign: return `other`, detached, instead of copying it into this tensor.
        """
        if assign:
            return other.detach()
        result: Tensor = grad_mode.call(False, self.copy_, other)
        return result.detach()

    def _lazy_clone(self: Any) -> "Tensor":
        return ops.clone(self)

    def ipu(self, device: Any = None, **_: Any) -> None:
        """Raise: there is only the CPU."""
        check_device("ipu")

    def mtia(self, device: Any = None, **_: Any) -> None:
        """Raise: there is only the CPU."""
        raise AssertionError("tensors are on the CPU: Torch not compiled with MTIA enabled")
