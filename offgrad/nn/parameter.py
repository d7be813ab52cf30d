"""Parameter and Buffer: tensors that modules register, and those without a shape yet."""

from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.autograd.override_state import disabled_torch_function
from offgrad.autograd.tensor_base import TensorBase, plain_classes
from offgrad.ops._core.device import Device, is_meta

__all__ = [
    "Buffer",
    "Parameter",
    "UninitializedBuffer",
    "UninitializedParameter",
    "UninitializedTensorMixin",
    "is_lazy",
]


class _ParameterMeta(type):
    """Lets ``isinstance`` find parameters of other classes: `Parameter` of a custom tensor."""

    def __instancecheck__(cls, instance: object) -> bool:
        if type.__instancecheck__(cls, instance):
            return True
        return (
            cls is Parameter
            and isinstance(instance, TensorBase)
            and bool(instance._is_module_parameter)
        )


class Parameter(Tensor, metaclass=_ParameterMeta):
    """A tensor that a module registers as a parameter when it is set as an attribute.

    It shares memory with `data` if that is a tensor, and requires grad by default. Of a tensor of
    another class it makes one of that class.
    """

    _is_module_parameter = True  # frozen ones, too
    __torch_function__ = staticmethod(disabled_torch_function)

    def __new__(cls, data: Any = None, requires_grad: bool = True, **_: Any) -> "Parameter":
        source = data if isinstance(data, TensorBase) else ops.tensor(() if data is None else data)
        kind = cls if type(source) in (Tensor, Parameter) else type(source)
        if isinstance(data, Parameter) and issubclass(type(data), cls):
            kind = type(data)
        parameter: Parameter = _new(kind, source, requires_grad)
        return parameter

    def __init__(self, data: Any = None, requires_grad: bool = True, *_: Any, **__: Any) -> None:
        """`__new__` does it all, so that subclasses may take other arguments."""

    def __repr__(self, **options: Any) -> str:
        return f"Parameter containing:\n{super().__repr__(**options)}"


plain_classes.add(Parameter)


def _new(kind: type[Any], source: TensorBase, requires_grad: bool) -> Any:
    """Return a parameter of class `kind` that shares the memory of `source`."""
    parameter = object.__new__(kind)
    parameter._share(source)
    if not kind._is_module_parameter:
        parameter._is_module_parameter = True
    parameter._storage.role = "parameters"
    parameter.requires_grad_(requires_grad)
    return parameter


class _BufferMeta(type):
    """Makes calls of `Buffer` return tensors, which are its instances nevertheless."""

    def __call__(cls, data: Any = None, *, persistent: bool = True, **options: Any) -> Any:
        if cls is not Buffer:
            return super().__call__(persistent=persistent, **options)
        source: Any = ops.empty(0) if data is None else data
        buffer: Any = source.detach().requires_grad_(source.requires_grad)
        buffer._is_buffer, buffer.persistent = True, persistent
        return buffer

    def __instancecheck__(cls, instance: object) -> bool:
        if cls is not Buffer:
            return type.__instancecheck__(cls, instance)
        return isinstance(instance, TensorBase) and "_is_buffer" in instance.__dict__


class Buffer(Tensor, metaclass=_BufferMeta):
    """A tensor that a module registers as a buffer when it is set as an attribute.

    ``Buffer(data, persistent=True)`` returns a tensor that shares the memory of `data`; persistent
    ones are part of the state dict.
    """

    if TYPE_CHECKING:

        def __init__(self, data: Any = None, *, persistent: bool = True) -> None: ...

        persistent: bool


class UninitializedTensorMixin:
    """A parameter or buffer of a lazy module, whose shape is not known yet."""

    cls_to_become: type[Any]
    _dtype: np.dtype[Any]
    _device: str = "cpu"

    @property
    def device(self) -> Device:
        return Device(self._device)

    is_meta: Any = property(lambda self: self._device == "meta")
    is_cpu: Any = property(lambda self: self._device == "cpu")

    def _no_elements(self) -> Any:
        raise ValueError(
            f"Attempted to use an uninitialized {self._kind()}, which has no elements yet; call "
            "its lazy module first, with a batch of the right shape"
        )

    _array: Any = property(_no_elements)

    @classmethod
    def _kind(cls) -> str:
        return "buffer" if cls.cls_to_become is Tensor else "parameter"

    @property
    def shape(self) -> Any:
        raise RuntimeError(
            "Can't access the shape of an uninitialized parameter or buffer, which has none yet; "
            "call its lazy module first, with a batch of the right shape. Loading it into a "
            "module that has been called fails, too"
        )

    @property
    def dtype(self) -> Any:
        return _empty(self._dtype).dtype

    data: Any = property(lambda self: _empty(self._dtype))

    def is_floating_point(self) -> bool:
        return _empty(self._dtype).is_floating_point()

    def is_complex(self) -> bool:
        return self._dtype.kind == "c"

    def size(self, dim: int | None = None) -> Any:
        return _empty(self._dtype).size(dim)

    def to(self, *target: Any, device: Any = None, dtype: Any = None, **_: Any) -> Any:
        """Set the dtype that the tensor will have."""
        dtype, on_meta = ops.conversion(target, device, dtype)
        if on_meta is not None:
            self._device = "meta" if on_meta else "cpu"
        if dtype is not None:
            self._dtype = np.dtype(dtype)
        return self

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        self._requires_grad = bool(requires_grad)
        return self

    def detach(self) -> Any:
        return self

    def materialize(self, shape: Any, device: Any = None, dtype: Any = None) -> None:
        """Become an uninitialised tensor of a shape.

        Args:
            shape: of the tensor; an integer is that of a vector.
            device: by default the one given at construction.
            dtype: by default the one given at construction.
        """
        source = ops.empty(
            shape if isinstance(shape, int) else tuple(shape),
            dtype=self._dtype if dtype is None else dtype,
            device=self._device if device is None else device,
        )
        self.__class__ = self.cls_to_become
        self.__dict__.pop("_dtype")
        self.__dict__.pop("_device", None)
        before = self._storage  # type: ignore[attr-defined]
        self._set(source._array, source._storage, self._requires_grad)  # type: ignore[attr-defined]
        if isinstance(self, Parameter):
            self._storage.role = "parameters"
            before.place_alike(self, "parameters")

    def share_memory_(self) -> Any:
        raise RuntimeError(
            f"Can't share memory on an uninitialized {self._kind()}, which has none yet; call its "
            "lazy module first"
        )

    def __repr__(self, **_: Any) -> str:
        return f"<{type(self).__name__}>"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _rebuild, (type(self), self.__dict__.copy())

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copy = memo[id(self)] = _rebuild(type(self), self.__dict__.copy())
        return copy

    def _start(self, requires_grad: bool, device: Any, dtype: Any) -> None:
        self._device = "meta" if is_meta(device) else "cpu"
        self._dtype = np.dtype(ops.get_default_dtype() if dtype is None else dtype)
        self.__dict__["_storage"] = _empty(self._dtype)._storage
        self._requires_grad = requires_grad


def _empty(dtype: Any) -> Tensor:
    return ops.empty(0, dtype=dtype)


def _rebuild(kind: type[Any], attributes: dict[str, Any]) -> Any:
    """Return the copied or unpickled tensor."""
    tensor = object.__new__(kind)
    tensor.__dict__.update(attributes)
    return tensor


class UninitializedParameter(UninitializedTensorMixin, Parameter):
    """A parameter whose shape is not known yet; `materialize` gives it one.

    Operations on it raise ValueError.
    """

    cls_to_become = Parameter

    def __new__(cls, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> Any:
        parameter = object.__new__(cls)
        parameter._start(requires_grad, device, dtype)
        return parameter

    def __init__(self, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> None:
        """`__new__` does it all."""


class UninitializedBuffer(UninitializedTensorMixin, Tensor):
    """A buffer whose shape is not known yet; `materialize` gives it one.

    Operations on it raise ValueError.
    """

    cls_to_become = Tensor
    __torch_function__ = staticmethod(disabled_torch_function)

    def __new__(cls, *_: Any, **__: Any) -> Any:
        return object.__new__(cls)

    def __init__(
        self,
        requires_grad: bool = False,
        device: Any = None,
        dtype: Any = None,
        persistent: bool = True,
    ) -> None:
        self._start(requires_grad, device, dtype)
        self._is_buffer, self.persistent = True, persistent


def is_lazy(param: Any) -> bool:
    """Return whether a parameter or buffer has no shape yet."""
    return isinstance(param, UninitializedTensorMixin)
