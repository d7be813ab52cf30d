"""`autocast`: operations that choose the dtype of their inputs, per thread.

In its block, products of matrices, convolutions and attention convert their inputs to bfloat16 or
float16; losses, Fourier transforms, decompositions of matrices and others that need the digits
convert theirs to float32; all other operations run in the dtypes of their inputs. The decorators
`lower_precision` and `full_precision` mark these operations, which are PyTorch's on the CPU.
"""

import functools
import threading
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import ml_dtypes
import numpy as np

from offgrad._dtype import dtype_of
from offgrad.autograd.tensor_base import TensorBase
from offgrad.ops._core.device import Device, check_device
from offgrad.ops._core.dtypes import cast

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "autocast",
    "autocast_decrement_nesting",
    "autocast_increment_nesting",
    "clear_autocast_cache",
    "get_autocast_cpu_dtype",
    "get_autocast_dtype",
    "get_autocast_gpu_dtype",
    "is_autocast_cache_enabled",
    "is_autocast_cpu_enabled",
    "is_autocast_enabled",
    "set_autocast_cache_enabled",
    "set_autocast_cpu_dtype",
    "set_autocast_cpu_enabled",
    "set_autocast_dtype",
    "set_autocast_enabled",
]

P = ParamSpec("P")
R = TypeVar("R")

_FLOAT32 = np.dtype(np.float32)
_16_BIT = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
_CONVERTED = frozenset({_FLOAT32, *_16_BIT})


class _State(threading.local):
    """What the thread converts to.

    Attributes:
        dtype: None outside of `autocast`.
        default: the dtype of `autocast` without one.
        is_cached: kept for `is_autocast_cache_enabled`; there is no cache.
    """

    dtype: np.dtype[Any] | None = None
    default: np.dtype[Any] = _16_BIT[0]
    is_cached = True
    nesting = 0


_state = _State()


def lower_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate an operation that `autocast` runs in its dtype."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        dtype = _state.dtype
        if dtype is None:
            return function(*args, **kwargs)
        return _call_in(dtype, function, args, kwargs)

    return wrapper


def full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate an operation that `autocast` runs in float32."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if _state.dtype is None:
            return function(*args, **kwargs)
        return _call_in(_FLOAT32, function, args, kwargs)

    return wrapper


def widest_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate an operation that `autocast` runs in float32 if one of its inputs is float32."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if _state.dtype is None or not _has_float32((*args, *kwargs.values())):
            return function(*args, **kwargs)
        return _call_in(_FLOAT32, function, args, kwargs)

    return wrapper


def _has_float32(values: tuple[Any, ...]) -> bool:
    return any(isinstance(each, TensorBase) and each._array.dtype == _FLOAT32 for each in values)


def own_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate an operation, made of others, that `autocast` leaves in the dtypes of its inputs."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        before, _state.dtype = _state.dtype, None
        try:
            return function(*args, **kwargs)
        finally:
            _state.dtype = before

    return wrapper


def in_full_precision(tensor: "Tensor") -> "Tensor":
    """Return what an operation under `full_precision` gets: under `autocast`, 32 bits for 16."""
    if _state.dtype is None:
        return tensor
    converted: Tensor = _converted(tensor, _FLOAT32)
    return converted


def _call_in(dtype: np.dtype[Any], function: Callable[..., R], args: Any, kwargs: Any) -> R:
    """Call a function with float32 and 16-bit tensors as `dtype`, and no `autocast` inside."""
    before, _state.dtype = _state.dtype, None
    try:
        return function(
            *[_converted(each, dtype) for each in args],
            **{name: _converted(each, dtype) for name, each in kwargs.items()},
        )
    finally:
        _state.dtype = before


def _converted(value: Any, dtype: np.dtype[Any]) -> Any:
    if isinstance(value, TensorBase):
        found = value._array.dtype
        return cast(value, dtype) if found in _CONVERTED and found != dtype else value  # type: ignore[arg-type]
    if isinstance(value, (list, tuple)):
        converted = [_converted(each, dtype) for each in value]
        return converted if isinstance(value, list) else tuple(converted)
    return value


class autocast:
    """Run products of matrices, convolutions and attention of the block in 16 bits, losses in 32.

    Fourier transforms, decompositions of matrices and other operations of PyTorch's list run in 32
    bits, too. Also a decorator. Only the CPU exists: for other devices it warns and does nothing.

    Args:
        device_type: ``"cpu"``.
        dtype: bfloat16 or float16; by default `get_autocast_dtype`.
        enabled: with False, the block does not convert although it may lie in one that does.
        cache_enabled: accepted; each operation converts anew.

    Raises:
        ValueError: if `device_type` is no text.
        RuntimeError: for an unknown device.
    """

    def __init__(
        self,
        device_type: str,
        dtype: Any = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if not isinstance(device_type, str):
            raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")
        self.device = device_type
        self.fast_dtype = get_autocast_dtype(device_type) if dtype is None else dtype
        self._cache_enabled = _state.is_cached if cache_enabled is None else cache_enabled
        self._enabled = enabled and self._is_possible()
        self._before: list[Any] = []

    def _is_possible(self) -> bool:
        """Return whether device and dtype are supported, else warn."""
        if self.device != "cpu":
            name = "CUDA" if self.device == "cuda" else self.device
            warnings.warn(
                f"{name} is not available: there is only the CPU. Disabling autocast.",
                UserWarning,
                stacklevel=3,
            )
            return False
        if np.dtype(self.fast_dtype) not in _16_BIT:
            warnings.warn(
                "autocast on the CPU casts to bfloat16 or float16 only: it is disabled",
                UserWarning,
                stacklevel=3,
            )
            return False
        return True

    def __enter__(self) -> "autocast":
        self._before.append(_state.dtype)
        if self.device == "cpu":
            _state.dtype = np.dtype(self.fast_dtype) if self._enabled else None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _state.dtype = self._before.pop()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return wrapper


def current_autocast() -> Callable[[], autocast]:
    """Return a function whose contexts convert as this thread does now, in any thread."""
    dtype = _state.dtype
    return functools.partial(autocast, "cpu", dtype, enabled=dtype is not None)


def is_autocast_enabled(device_type: str = "cuda") -> bool:
    """Return whether operations convert on a device: never but on the CPU."""
    return device_type == "cpu" and _state.dtype is not None


def set_autocast_enabled(*arguments: Any) -> None:
    """Switch conversion on a device on or off: ``("cpu", True)``; other devices do not exist."""
    device_type, enabled = arguments if len(arguments) == 2 else ("cuda", *arguments)
    if device_type == "cpu":
        _state.dtype = _state.default if enabled else None
    elif enabled:
        check_device(device_type)


def get_autocast_dtype(device_type: str) -> Any:
    """Return the dtype to which `autocast` converts by default."""
    kind = Device(device_type).type
    return dtype_of(_state.default if kind == "cpu" else _16_BIT[1])


def set_autocast_dtype(device_type: str, dtype: Any) -> None:
    """Set the dtype to which `autocast` converts by default."""
    if device_type == "cpu":
        _state.default = np.dtype(dtype)
        if _state.dtype is not None:
            _state.dtype = _state.default


def is_autocast_cpu_enabled() -> bool:
    """Return whether operations convert."""
    return is_autocast_enabled("cpu")


def set_autocast_cpu_enabled(enabled: bool) -> None:
    """Switch conversion on or off."""
    set_autocast_enabled("cpu", enabled)


def get_autocast_cpu_dtype() -> Any:
    """Return the dtype to which `autocast` converts by default."""
    return get_autocast_dtype("cpu")


def set_autocast_cpu_dtype(dtype: Any) -> None:
    """Set the dtype to which `autocast` converts by default."""
    set_autocast_dtype("cpu", dtype)


def get_autocast_gpu_dtype() -> Any:
    """Return float16, as PyTorch does."""
    return get_autocast_dtype("cuda")


def is_autocast_cache_enabled() -> bool:
    """Return what `set_autocast_cache_enabled` set; there is no cache."""
    return _state.is_cached


def set_autocast_cache_enabled(enabled: bool) -> None:
    """Note it; there is no cache."""
    _state.is_cached = enabled


def clear_autocast_cache() -> None:
    """Do nothing: there is no cache."""


def autocast_increment_nesting() -> int:
    """Count a level of nesting."""
    _state.nesting += 1
    return _state.nesting


def autocast_decrement_nesting() -> int:
    """Count a level of nesting off."""
    _state.nesting -= 1
    return _state.nesting
