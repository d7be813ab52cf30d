"""Methods of Module that change all modules, parameters and buffers: modes, dtypes, gradients."""

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from offgrad import ops
from offgrad.autograd import grad_mode
from offgrad.autograd.gradients import clear_grad
from offgrad.autograd.tensor_base import TensorBase, is_differentiable, metadata
from offgrad.nn.parameter import Parameter, is_lazy
from offgrad.nn.traversal import TraversalMethods
from offgrad.ops._core.device import check_device

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor
    from offgrad.nn.modules.module import Module


class _Settings:
    """What ``offgrad.__future__`` sets."""

    overwrite = False
    swap = False


settings = _Settings()

C = TypeVar("C", bound="ConversionMethods")


class ConversionMethods(TraversalMethods):
    """The methods."""

    training: bool

    def apply(self: C, fn: "Callable[[Module], None]") -> C:
        """Call `fn` with every module below and with this one; return this one."""
        for module in self.children():
            module.apply(fn)
        fn(self)  # type: ignore[arg-type]
        return self

    def train(self: C, mode: bool = True) -> C:
        """Set training mode, which turns dropout on, here and below.

        Raises:
            ValueError: if `mode` is no bool.
        """
        if not isinstance(mode, bool):
            raise ValueError(f"mode must be True or False, got {mode!r}")
        self.training = mode
        for module in self.children():
            module.train(mode)
        return self

    def eval(self: C) -> C:
        """Set evaluation mode, here and below."""
        return self.train(False)

    def requires_grad_(self: C, requires_grad: bool = True) -> C:
        """Set whether gradients are computed for the parameters.

        Raises:
            TypeError: if `requires_grad` is no bool.
        """
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the parameters' gradients, or fill them with zeros."""
        for parameter in self.parameters():
            clear_grad(parameter, set_to_none)

    # Conversions

    def _apply(self: C, fn: "Callable[[Tensor], Tensor]", recurse: bool = True) -> C:
        """Replace parameters, gradients and buffers by what `fn` returns for them.

        Parameters and gradients stay the same objects and get the new data.
        """
        for module in self.children() if recurse else ():
            module._apply(fn)
        for name, parameter in self._parameters.items():
            if parameter is None:
                continue
            if settings.overwrite:
                self._parameters[name] = _converted(parameter, fn)
                continue
            _convert(parameter, fn)
            if parameter.grad is not None:
                _convert(parameter.grad, fn)
                parameter._storage.place_alike(parameter.grad, "gradients")
        for name, buffer in self._buffers.items():
            if buffer is not None:
                converted = self._buffers[name] = fn(buffer)
                converted._storage.role = "buffers"
        return self

    def to(self: C, *args: Any, **kwargs: Any) -> C:
        """Convert floating point and complex parameters and buffers to a dtype.

        Called as ``to(dtype)``, ``to(device, dtype, non_blocking)``, ``to(tensor)`` or
        ``to(memory_format=...)``, by position or by keyword. Parameters and buffers of other
        dtypes, such as int64, stay. On ``"meta"`` they have no memory; memory formats have no
        effect.

        Raises:
            TypeError: for a dtype that is neither floating point nor complex.
        """
        unknown = kwargs.keys() - {"device", "dtype", "non_blocking", "memory_format", "tensor"}
        if "copy" in unknown:
            raise RuntimeError(
                "Module.to() changes a module itself: .to() does not accept copy argument; call "
                "copy.deepcopy() first"
            )
        if unknown:
            raise TypeError(f"Module.to takes no argument {min(unknown)!r}")
        second = args[1] if len(args) > 1 else None
        if isinstance(second, TensorBase) or type(second) in (int, float):
            raise TypeError(
                "Module.to takes (device, dtype, non_blocking), (dtype, non_blocking) or (tensor), "
                f"got {type(second).__name__} as its second argument"
            )
        target = (*args, *[value for name, value in kwargs.items() if name == "tensor"])
        dtype, on_meta = ops.conversion(target, kwargs.get("device"), kwargs.get("dtype"))
        device = None if on_meta is None else "meta" if on_meta else "cpu"
        if dtype is None:
            if device is None:
                return self
            return self._apply(lambda tensor: tensor.to(device=device))
        dtype = np.dtype(dtype)
        if not is_differentiable(dtype):
            raise TypeError(
                "Module.to() takes a floating or complex dtype, because parameters of other "
                f"dtypes have no gradients, got {dtype.name}; convert single tensors by their .to()"
            )

        def convert(tensor: "Tensor") -> "Tensor":
            if tensor.is_floating_point() or tensor.is_complex():
                return tensor.to(device=device, dtype=dtype)
            return tensor if device is None else tensor.to(device=device)

        return self._apply(convert)

    def _to_floating(self: C, dtype: Any) -> C:
        dtype = np.dtype(dtype)
        return self._apply(
            lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor
        )

    def float(self: C) -> C:
        """Convert floating parameters and buffers to float32."""
        return self._to_floating(np.float32)

    def double(self: C) -> C:
        """Convert floating parameters and buffers to float64."""
        return self._to_floating(np.float64)

    def half(self: C) -> C:
        """Convert floating parameters and buffers to float16."""
        return self._to_floating(np.float16)

    def bfloat16(self: C) -> C:
        """Convert floating parameters and buffers to bfloat16."""
        return self._to_floating("bfloat16")

    def type(self: C, dst_type: Any) -> C:
        """Convert all parameters and buffers to a dtype, or a type such as ``FloatTensor``."""
        return self._apply(operator.methodcaller("type", dst_type))

    def cpu(self: C) -> C:
        """Return this module: all tensors are on the CPU."""
        return self._apply(lambda tensor: tensor.to(device="cpu"))

    def cuda(self: C, device: Any = None) -> C:
        """Raise: there is only the CPU."""
        check_device("cuda")
        return self

    def ipu(self: C, device: Any = None) -> C:
        """Raise: there is only the CPU."""
        check_device("ipu")
        return self

    def mtia(self: C, device: Any = None) -> C:
        """Raise: there is only the CPU."""
        check_device("mtia")
        return self

    def xpu(self: C, device: Any = None) -> C:
        """Raise: there is only the CPU."""
        check_device("xpu")
        return self

    def to_empty(self: C, *, device: Any, recurse: bool = True) -> C:
        """Replace parameters and buffers by uninitialised ones of the same shapes and dtypes.

        Args:
            device: "cpu" or "meta"; None for that of each tensor.
            recurse: those of modules below, too.
        """
        return self._apply(lambda tensor: ops.empty_like(tensor, device=device), recurse)

    def share_memory(self: C) -> C:
        """Call ``share_memory_()`` of all parameters and buffers."""
        return self._apply(operator.methodcaller("share_memory_"))


@grad_mode.no_grad()
def _converted(parameter: Parameter, fn: "Callable[[Tensor], Tensor]") -> Parameter:
    """Return a new parameter with the data, and the gradient, that `fn` returns."""
    new = Parameter(fn(parameter).detach(), parameter.requires_grad)
    if parameter.grad is not None:
        new.grad = fn(parameter.grad).requires_grad_(parameter.grad.requires_grad)
    return new


@grad_mode.no_grad()
def _convert(tensor: "Tensor", fn: "Callable[[Tensor], Tensor]") -> None:
    """Give `tensor` the data of ``fn(tensor)``."""
    converted = fn(tensor)
    if converted is tensor or is_lazy(converted):
        return
    new, old = metadata(converted), metadata(tensor)
    if tensor._requires_grad and not is_differentiable(new.dtype):
        raise RuntimeError(
            "a parameter that requires grad must be floating point or complex, but was to become "
            f"{new.dtype.name}; call requires_grad_(False) first"
        )
    if (new.shape, new.dtype) != (old.shape, old.dtype):
        tensor._accumulator = None  # it expects gradients of the old shape and dtype
    before = tensor._storage
    tensor._share(converted, tensor._requires_grad)
    tensor._storage.role = "parameters" if isinstance(tensor, Parameter) else before.role
    if isinstance(tensor, Parameter):
        before.place_alike(tensor, "parameters")
