"""Tensor: an array with a place in the graph. Its methods are the operations."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

import numpy as np
from numpy.typing import NDArray

from offgrad import ops
from offgrad._dtype import DTYPES, DType
from offgrad._missing import no_attribute
from offgrad._size import Size
from offgrad._tensor.inplace import InPlaceMethods
from offgrad._tensor.methods import OperationMethods
from offgrad._tensor.printing import numbers
from offgrad.autograd import gradients
from offgrad.autograd.grad_mode import is_inference_mode_enabled
from offgrad.autograd.handles import RemovableHandle, add_hook
from offgrad.autograd.node import AccumulateGrad, Node, gradient_edge
from offgrad.autograd.tensor_base import TensorBase, describe
from offgrad.autograd.views import is_stale, refresh
from offgrad.ops._core.device import CPU, Device
from offgrad.ops._core.dims import normalize_dim
from offgrad.ops._core.dtypes import check_tensor, default_dtype, element
from offgrad.ops._indexing.advanced import as_tuple, parse
from offgrad.ops._shape.permuting import expand_to
from offgrad.ops._shape.reshaping import reshape_to

if TYPE_CHECKING:
    from collections.abc import Sequence

_new_tuple = tuple.__new__  # without the checks of Size


def _comparable(other: object) -> TypeGuard[Any]:
    return isinstance(other, TensorBase | bool | int | float | complex | np.generic)


def _operator(
    operation: "Callable[..., Tensor]", reflected: bool = False
) -> "Callable[[Tensor, Any], Tensor]":
    """Return the method of an operator, with NotImplemented for other types."""

    def method(self: "Tensor", other: Any) -> "Tensor":
        try:
            return operation(self, other)
        except TypeError:
            if _comparable(other):
                raise
            return NotImplemented  # type: ignore[no-any-return]

    def reflected_method(self: "Tensor", other: Any) -> "Tensor":
        try:
            return operation(other, self)
        except TypeError:
            if _comparable(other):
                raise
            return NotImplemented  # type: ignore[no-any-return]

    return reflected_method if reflected else method


class Tensor(OperationMethods, InPlaceMethods):
    """An n-dimensional array of one dtype that can take part in automatic differentiation.

    `offgrad.tensor`, `offgrad.zeros`, `offgrad.from_numpy` and others make tensors. Views made by
    indexing, `view`, `transpose` and others share a tensor's memory and version.
    """

    # NumPy arrays leave binary operators with a tensor to the tensor's methods.
    __array_ufunc__ = None

    def __init__(self, *data: Any, dtype: Any = None, requires_grad: bool = False) -> None:
        """Copy one sequence or array as the default dtype; with sizes, leave it uninitialised."""
        dtype = default_dtype() if dtype is None else dtype
        if data and all(isinstance(each, int) for each in data):
            source = ops.empty(*data, dtype=dtype)
        else:
            source = ops.tensor(*(data or ((),)), dtype=dtype)
        self._set(source._array, source._storage, False)
        if requires_grad:
            self.requires_grad_()

    # Shape, dtype and memory

    @property
    def shape(self) -> Size:
        """The sizes of the dimensions."""
        return _new_tuple(Size, self._array.shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._array.ndim

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return DTYPES[self._array.dtype]

    @property
    def nbytes(self) -> int:
        """The bytes of the elements."""
        return self._array.nbytes

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return self._array.itemsize

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or the size of one dimension."""
        if dim is None:
            return _new_tuple(Size, self._array.shape)
        return self._array.shape[self._existing_dim(dim, "size")]

    def dim(self) -> int:
        """Return the number of dimensions."""
        return self._array.ndim

    def numel(self) -> int:
        """Return the number of elements."""
        return self._array.size

    def element_size(self) -> int:
        """Return the bytes of one element."""
        return self._array.itemsize

    def stride(self, dim: int | None = None) -> Any:
        """Return the strides in elements, of all dimensions or one."""
        steps = tuple(step // self._array.itemsize for step in self._array.strides)
        return steps if dim is None else steps[self._existing_dim(dim, "stride")]

    def _existing_dim(self, dim: int, where: str) -> int:
        if not self._array.ndim:
            raise IndexError(f"{where}: dim {dim} is given, but the tensor has no dimensions")
        return normalize_dim(dim, self._array.ndim, where)

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        return int(self._array.__array_interface__["data"][0])

    def is_contiguous(self) -> bool:
        """Return whether the memory is C-ordered without gaps."""
        return self._array.flags.c_contiguous

    def is_floating_point(self) -> bool:
        """Return whether the dtype is a real floating point type."""
        return self._array.dtype.kind == "f" or self._array.dtype.name == "bfloat16"

    def is_complex(self) -> bool:
        """Return whether the dtype is complex."""
        return self._array.dtype.kind == "c"

    def __len__(self) -> int:
        if not self._array.ndim:
            raise TypeError("a tensor without dimensions has no length")
        return int(self._array.shape[0])

    def __iter__(self) -> Iterator["Tensor"]:
        if not self._array.ndim:
            raise TypeError("a tensor without dimensions cannot be iterated over")
        return iter(self.unbind(0))

    def __repr__(self) -> str:
        parts = [f"tensor({numbers(self._array, 'tensor(')}"]
        default = {"f": default_dtype(), "i": np.dtype(np.int64), "b": np.dtype(np.bool_)}
        if self._array.dtype != default.get(self._array.dtype.kind):
            parts.append(f"dtype={self._array.dtype.name}")
        if self._grad_fn is not None:
            parts.append(f"grad_fn=<{self._grad_fn.name()}>")
        elif self._requires_grad:
            parts.append("requires_grad=True")
        return ", ".join(parts) + ")"

    __hash__ = object.__hash__

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute("Tensor", name)

    # Autograd

    @property
    def requires_grad(self) -> bool:
        """Whether gradients are computed for the tensor."""
        return self._requires_grad or is_stale(self)

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if not isinstance(value, bool | np.bool_):
            raise RuntimeError(f"requires_grad must be a bool, got {value!r}")
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> "Tensor":
        """Set whether gradients are computed for this leaf; return it.

        Raises:
            RuntimeError: for integers and bools; if switched off for a tensor that is not a leaf.
            TypeError: if `requires_grad` is no bool.
        """
        if not isinstance(requires_grad, bool | np.bool_):
            raise TypeError(f"requires_grad must be a bool, got {requires_grad!r}")
        if requires_grad:
            ops.check_requires_grad(self)
            if self._storage.inference and not is_inference_mode_enabled():
                raise RuntimeError(
                    "an inference tensor can require grad only in inference_mode(), got a "
                    f"{describe(self)}; use a clone()"
                )
        elif self._grad_fn is not None:
            raise RuntimeError(
                f"requires_grad can be switched off only on leaves, but this {describe(self)} was "
                f"computed by {self._grad_fn.name()}; use detach()"
            )
        self._requires_grad = bool(requires_grad)
        return self

    @property
    def grad(self) -> "Tensor | None":
        """The accumulated gradient of a leaf or a tensor with `retain_grad`, else None."""
        return self._grad

    @grad.setter
    def grad(self, value: "Tensor | None") -> None:
        if value is not None and not isinstance(value, TensorBase):
            raise TypeError(f"grad must be a tensor or None, got {type(value).__name__}")
        if value is not None and (
            value._array.shape != self._array.shape or value._array.dtype != self._array.dtype
        ):
            raise RuntimeError(
                f"grad must have its tensor's shape and dtype, got a {describe(value)} for a "
                f"{describe(self)}"
            )
        if value is self:
            raise RuntimeError("a tensor cannot be its own grad; give it a clone()")
        self._grad = value

    @grad.deleter
    def grad(self) -> None:
        self._grad = None

    @property
    def is_leaf(self) -> bool:
        """Whether the tensor is not the result of a recorded operation: gradients end here."""
        return self.grad_fn is None

    @property
    def grad_fn(self) -> Node | None:
        """The node that computed the tensor; None for leaves."""
        if is_stale(self):
            refresh(self)
        return self._grad_fn

    @property
    def output_nr(self) -> int:
        """The index of the tensor among the outputs of `grad_fn`."""
        return self._output_nr

    @property
    def _version(self) -> int:
        if self._storage.inference:
            raise RuntimeError("inference tensors do not track versions; use a clone()")
        return self._storage.version

    def is_inference(self) -> bool:
        """Return whether the tensor was made in `inference_mode`: autograd refuses such tensors."""
        return self._storage.inference

    def _is_view(self) -> bool:
        return self._base is not None

    @property
    def data(self) -> "Tensor":
        """A detached tensor that shares the memory."""
        return self.detach()

    @data.setter
    def data(self, value: "Tensor") -> None:
        if not isinstance(value, TensorBase):
            raise TypeError(f"data must be a tensor, got {type(value).__name__}")
        if value._array.shape != self._array.shape or value._array.dtype != self._array.dtype:
            raise RuntimeError(
                f"data must keep shape and dtype, got a {describe(value)} for a {describe(self)}"
            )
        self._array, self._storage = value._array, value._storage
        if self._is_module_parameter:
            self._storage.role = "parameters"

    def backward(
        self,
        gradient: "Tensor | None" = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: "Tensor | Sequence[Tensor] | None" = None,
    ) -> None:
        """Accumulate the gradients of this tensor into ``.grad`` of leaves: `autograd.backward`."""
        gradients.backward(self, gradient, retain_graph, create_graph, inputs=inputs)

    def register_hook(self, hook: "Callable[[Tensor], Tensor | None]") -> RemovableHandle:
        """Call ``hook(grad)`` whenever the gradient of this tensor is computed.

        The hook may return a gradient that replaces its argument, which it must not change.

        Raises:
            RuntimeError: if the tensor does not require grad.
        """
        node, output_nr = gradient_edge(self)
        if node is None:
            raise RuntimeError(
                f"hooks are for tensors that require grad, got a {describe(self)} that does not"
            )
        hooks = node.hooks_of_output(output_nr, create=True)
        assert hooks is not None
        return add_hook(hooks, hook)

    def register_post_accumulate_grad_hook(
        self, hook: "Callable[[Tensor], None]"
    ) -> RemovableHandle:
        """Call ``hook(self)`` whenever a gradient has been accumulated into ``.grad`` of this leaf.

        Raises:
            RuntimeError: if the tensor is not a leaf that requires grad.
        """
        if not self._requires_grad or self._grad_fn is not None:
            raise RuntimeError(
                "post-accumulate hooks are for leaves that require grad, "
                f"got a {describe(self)} that is not one; use register_hook for results"
            )
        if self._post_accumulate_hooks is None:
            self._post_accumulate_hooks = {}
        return add_hook(self._post_accumulate_hooks, hook)

    def retain_grad(self) -> None:
        """Make backward set ``.grad`` of this tensor although it is not a leaf.

        Raises:
            RuntimeError: if the tensor does not require grad.
        """
        node, _ = gradient_edge(self)
        if node is None:
            raise RuntimeError(
                f"retain_grad is for tensors that require grad, got a {describe(self)}"
            )
        if not isinstance(node, AccumulateGrad):
            node.retain_grad(self)

    @property
    def retains_grad(self) -> bool:
        """Whether backward sets ``.grad`` although the tensor is not a leaf."""
        return self._grad_fn is not None and self._grad_fn.retains_grad(self)

    # Conversion

    def numpy(self) -> NDArray[Any]:
        """Return an array that shares the memory.

        Raises:
            RuntimeError: if the tensor requires grad: detach it first.
        """
        if self._requires_grad:
            raise RuntimeError(
                f"an array cannot carry the history of this {describe(self)} that requires grad; "
                "use .detach().numpy()"
            )
        self._storage.export()
        return self._array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def item(self) -> Any:
        """Return the only element as a Python number.

        Raises:
            RuntimeError: unless there is exactly one element.
        """
        if self._array.size != 1:
            raise RuntimeError(f"item() needs a tensor of one element, got a {describe(self)}")
        return self._array.item()

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python numbers."""
        return self._array.tolist()

    def __bool__(self) -> bool:
        if self._array.size != 1:
            raise RuntimeError(
                f"only a tensor of one element is true or false, got a {describe(self)}; use "
                "any() or all()"
            )
        return bool(self._array.item())

    def __int__(self) -> int:
        return int(self._scalar())

    def __float__(self) -> float:
        return float(self._scalar())

    def __complex__(self) -> complex:
        return complex(self._scalar())

    def _scalar(self) -> Any:
        if self._array.size != 1:
            raise ValueError(f"only a tensor of one element is a number, got a {describe(self)}")
        return self._array.item()

    def __index__(self) -> int:
        if self._array.dtype.kind not in "iu":
            raise TypeError(
                f"only an integer tensor of one element is an index, got a {describe(self)}"
            )
        return int(self.item())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self._array.ndim == 0 and spec else str(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Tensor":
        if self._grad_fn is not None:
            raise RuntimeError(
                f"only leaves can be deep-copied, but this {describe(self)} was computed by "
                f"{self._grad_fn.name()}; copy its detach()"
            )
        known: Tensor | None = memo.get(id(self))
        if known is not None:
            return known
        copy = object.__new__(type(self))
        clone = self.detach().clone()
        copy._set(clone._array, clone._storage, self._requires_grad)
        copy._storage.role = self._storage.role
        memo[id(self)] = copy
        if self.grad is not None:
            copy.grad = self.grad.detach().clone()
            copy.grad._storage.role = self.grad._storage.role
        for name, value in self.__dict__.items():
            if name not in TensorBase.__annotations__:
                setattr(copy, name, deepcopy(value, memo))
        return copy

    def __reduce__(self) -> Any:
        if self._grad_fn is not None:
            raise RuntimeError(
                f"only leaves can be pickled, but this {describe(self)} was computed by "
                f"{self._grad_fn.name()}; pickle its detach()"
            )
        return _rebuild, (
            type(self),
            np.ascontiguousarray(self._array).reshape(self.shape),
            self._requires_grad,
        )

    def to(
        self,
        *target: Any,
        device: Any = None,
        dtype: Any = None,
        copy: bool = False,
        non_blocking: bool = False,
    ) -> "Tensor":
        """Return the tensor in a dtype, or in that of another tensor; itself if it has that dtype.

        The device may be ``"cpu"`` only.
        """
        dtype = ops.conversion(target, device, dtype)
        result = self if dtype is None else ops.cast(self, dtype)
        return result.clone() if copy and result is self else result

    @property
    def device(self) -> Device:
        """The device: always the CPU."""
        return CPU

    def type_as(self, other: "Tensor") -> "Tensor":
        """Return the tensor converted to the dtype of `other`."""
        return ops.cast(self, check_tensor(other, "type_as")._array.dtype)

    def cpu(self) -> "Tensor":
        """Return the tensor itself."""
        return self

    def float(self) -> "Tensor":
        """Return the tensor as float32."""
        return ops.cast(self, np.float32)

    def double(self) -> "Tensor":
        """Return the tensor as float64."""
        return ops.cast(self, np.float64)

    def bfloat16(self) -> "Tensor":
        """Return the tensor as bfloat16."""
        return ops.cast(self, "bfloat16")

    def half(self) -> "Tensor":
        """Return the tensor as float16."""
        return ops.cast(self, np.float16)

    def long(self) -> "Tensor":
        """Return the tensor as int64."""
        return ops.cast(self, np.int64)

    def int(self) -> "Tensor":
        """Return the tensor as int32."""
        return ops.cast(self, np.int32)

    def bool(self) -> "Tensor":
        """Return the tensor as bool: whether elements are nonzero."""
        return ops.cast(self, np.bool_)

    def new_zeros(self, *size: Any, dtype: Any = None) -> "Tensor":
        """Return zeros of this dtype."""
        return ops.zeros(*size, dtype=self._array.dtype if dtype is None else dtype)

    def new_ones(self, *size: Any, dtype: Any = None) -> "Tensor":
        """Return ones of this dtype."""
        return ops.ones(*size, dtype=self._array.dtype if dtype is None else dtype)

    def new_empty(self, *size: Any, dtype: Any = None) -> "Tensor":
        """Return an uninitialised tensor of this dtype."""
        return ops.empty(*size, dtype=self._array.dtype if dtype is None else dtype)

    def new_full(self, size: Any, fill_value: Any, *, dtype: Any = None) -> "Tensor":
        """Return a constant tensor of this dtype."""
        return ops.full(size, fill_value, dtype=self._array.dtype if dtype is None else dtype)

    def new_tensor(self, data: Any, *, dtype: Any = None) -> "Tensor":
        """Return a tensor of `data` with this dtype."""
        return ops.tensor(data, dtype=self._array.dtype if dtype is None else dtype)

    # Views

    @property
    def T(self) -> "Tensor":
        """The transposed matrix."""
        return ops.permute(self, tuple(reversed(range(self._array.ndim))))

    @property
    def mT(self) -> "Tensor":
        """The last two dimensions swapped; of a tensor without dimensions itself."""
        if self._array.ndim == 1:
            raise RuntimeError(f"mT needs at least 2 dimensions, got a {describe(self)}")
        if not self._array.ndim:
            return ops.permute(self, ())
        return ops.transpose(self, -2, -1)

    @property
    def H(self) -> "Tensor":
        """The conjugate transpose of the matrix; a tensor without dimensions conjugated."""
        if self._array.ndim not in (0, 2):
            raise RuntimeError(f"H needs a matrix, got a {describe(self)}; use mH for batches")
        return ops.conj(self.t())

    @property
    def mH(self) -> "Tensor":
        """The last two dimensions swapped, conjugated."""
        if self._array.ndim == 1:
            raise RuntimeError(f"mH needs at least 2 dimensions, got a {describe(self)}")
        return ops.conj(self.mT)

    @property
    def real(self) -> "Tensor":
        """The real part, a view."""
        return ops.real(self)

    @property
    def imag(self) -> "Tensor":
        """The imaginary part, a view."""
        return ops.imag(self)

    def where(self, condition: "Tensor", other: Any) -> "Tensor":
        """Return the tensor where `condition` is true, and `other` elsewhere."""
        return ops.where(condition, self, other)

    def view_as(self, other: "Tensor") -> "Tensor":
        """Return a view of the shape of `other`."""
        return ops.view(self, check_tensor(other, "view_as").shape)

    def expand_as(self, other: "Tensor") -> "Tensor":
        """Return a view broadcast to the shape of `other`."""
        return expand_to(self, check_tensor(other, "expand_as").shape, "expand_as")

    def reshape_as(self, other: "Tensor") -> "Tensor":
        """Return the elements in the shape of `other`."""
        return reshape_to(self, check_tensor(other, "reshape_as").shape, "reshape_as")

    # In place

    def __setitem__(self, index: Any, value: Any) -> None:
        while isinstance(value, Tensor) and value._array.ndim and value._array.shape[0] == 1:
            value = value[0]  # as PyTorch drops leading sizes of 1
        index = as_tuple(index)
        if not parse(index)[2]:
            target = ops.getitem(self, index)
            if not isinstance(value, TensorBase):
                value = ops.tensor(element(value, self._array.dtype, "setitem"))
            ops.copy_(target, value, name="setitem")
        else:
            ops.inplace(ops.index_put, self, index, value)

    def detach_(self) -> "Tensor":
        """Remove the tensor from the graph: it becomes a leaf that does not require grad.

        Raises:
            RuntimeError: for views.
        """
        if self._base is not None:
            raise RuntimeError(
                "a view shares its base's history and cannot be detached in place; use detach()"
            )
        self._grad_fn, self._output_nr, self._requires_grad = None, 0, False
        return self

    def zero_(self) -> "Tensor":
        """Fill with zeros."""
        return self.copy_(0, name="zero_")

    def fill_(self, value: Any) -> "Tensor":
        """Fill with one number, or a tensor without dimensions."""
        if not isinstance(value, TensorBase):
            value = ops.tensor(element(value, self._array.dtype, "fill_"))
        elif value._array.ndim:
            raise RuntimeError(
                f"fill_ takes a number or a tensor without dimensions, got {describe(value)}; use "
                "copy_()"
            )
        return self.copy_(value, name="fill_")

    def normal_(self, mean: Any = 0.0, std: Any = 1.0, *, generator: Any = None) -> "Tensor":
        """Fill with normal numbers of mean `mean` and standard deviation `std`."""
        sample = ops.randn(self.shape, dtype=self._array.dtype, generator=generator)
        return self.copy_(sample * std + mean, name="normal_")

    def uniform_(self, a: Any = 0.0, b: Any = 1.0, *, generator: Any = None) -> "Tensor":
        """Fill with numbers uniform on [a, b)."""
        sample = ops.rand(self.shape, dtype=self._array.dtype, generator=generator)
        return self.copy_(sample * (b - a) + a, name="uniform_")

    def bernoulli_(self, p: Any = 0.5, *, generator: Any = None) -> "Tensor":
        """Fill with ones with probability `p`, a number or a tensor that broadcasts, and zeros."""
        sample = ops.rand(self.shape, generator=generator)
        return self.copy_(sample < p, name="bernoulli_")

    def exponential_(self, lambd: Any = 1.0, *, generator: Any = None) -> "Tensor":
        """Fill with numbers of the exponential distribution of rate `lambd`."""
        sample = ops.rand(self.shape, dtype=self._array.dtype, generator=generator)
        return self.copy_(ops.log1p(-sample) / -lambd, name="exponential_")

    # Operators

    __radd__ = _operator(ops.add, reflected=True)
    __rsub__ = _operator(ops.sub, reflected=True)
    __rmul__ = _operator(ops.mul, reflected=True)
    __rtruediv__ = _operator(ops.div, reflected=True)
    __rfloordiv__ = _operator(ops.floor_divide, reflected=True)
    __rmod__ = _operator(ops.remainder, reflected=True)
    __rpow__ = _operator(ops.pow, reflected=True)

    def __eq__(self, other: object) -> "Tensor":  # type: ignore[override]
        return ops.eq(self, other) if _comparable(other) else NotImplemented

    def __ne__(self, other: object) -> "Tensor":  # type: ignore[override]
        return ops.ne(self, other) if _comparable(other) else NotImplemented

    __getitem__ = ops.getitem
    __neg__ = ops.neg
    __abs__ = ops.abs
    __add__ = _operator(ops.add)
    __sub__ = _operator(ops.sub)
    __mul__ = _operator(ops.mul)
    __truediv__ = _operator(ops.div)
    __floordiv__ = _operator(ops.floor_divide)
    __mod__ = _operator(ops.remainder)
    __pow__ = _operator(ops.pow)
    __matmul__ = _operator(ops.matmul)
    __lt__ = _operator(ops.lt)
    __le__ = _operator(ops.le)
    __gt__ = _operator(ops.gt)
    __ge__ = _operator(ops.ge)
    __and__ = __rand__ = _operator(ops.bitwise_and)
    __or__ = __ror__ = _operator(ops.bitwise_or)
    __xor__ = __rxor__ = _operator(ops.bitwise_xor)
    __lshift__ = _operator(ops.bitwise_left_shift)
    __rshift__ = _operator(ops.bitwise_right_shift)
    __rlshift__ = _operator(ops.bitwise_left_shift, reflected=True)
    __rrshift__ = _operator(ops.bitwise_right_shift, reflected=True)
    __invert__ = ops.bitwise_not
    __iadd__ = InPlaceMethods.add_
    __isub__ = InPlaceMethods.sub_
    __imul__ = InPlaceMethods.mul_
    __itruediv__ = InPlaceMethods.div_
    __ifloordiv__ = InPlaceMethods.floor_divide_
    __imod__ = InPlaceMethods.remainder_
    __ipow__ = InPlaceMethods.pow_
    __iand__ = InPlaceMethods.bitwise_and_
    __ior__ = InPlaceMethods.bitwise_or_
    __ixor__ = InPlaceMethods.bitwise_xor_
    __ilshift__ = InPlaceMethods.bitwise_left_shift_
    __irshift__ = InPlaceMethods.bitwise_right_shift_


TensorBase.tensor_class = Tensor


def _rebuild(kind: type[Tensor], array: NDArray[Any], requires_grad: bool) -> Tensor:
    """Return the unpickled tensor."""
    source = ops.tensor(array)
    tensor = object.__new__(kind)
    tensor._set(source._array, source._storage, requires_grad)
    return tensor
