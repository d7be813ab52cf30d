"""Settings and small functions of the package. Most are accepted, since nothing depends on them."""

import importlib
import warnings
from typing import Any

from offgrad import kernels
from offgrad.autograd.tensor_base import TensorBase
from offgrad.ops._core.device import Device, set_default
from offgrad.ops._core.device import default as default_device

__all__ = [
    "are_deterministic_algorithms_enabled",
    "compiled_with_cxx11_abi",
    "get_default_device",
    "get_deterministic_debug_mode",
    "get_device_module",
    "get_float32_matmul_precision",
    "get_num_interop_threads",
    "has_lapack",
    "has_mkl",
    "has_openmp",
    "has_spectral",
    "is_deterministic_algorithms_warn_only_enabled",
    "is_vulkan_available",
    "is_warn_always_enabled",
    "newaxis",
    "set_default_device",
    "set_deterministic_debug_mode",
    "set_float32_matmul_precision",
    "set_flush_denormal",
    "set_num_interop_threads",
    "set_warn_always",
    "typename",
    "use_deterministic_algorithms",
]

newaxis = None
"""An index that adds a dimension."""

has_lapack = has_spectral = True  # NumPy's
has_mkl = has_openmp = False

_MODES = ("default", "warn", "error")
_PRECISIONS = ("highest", "high", "medium")

_state: dict[str, Any] = {
    "deterministic": "default",
    "precision": "highest",
    "interop threads": 1,
    "warn always": False,
}


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Accept either mode: the same call gives the same bits in any case."""
    set_deterministic_debug_mode(0 if not mode else 1 if warn_only else 2)


def are_deterministic_algorithms_enabled() -> bool:
    """Return whether the program has asked for deterministic algorithms."""
    return bool(_state["deterministic"] != "default")


def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """Return whether the program has asked for warnings only."""
    return bool(_state["deterministic"] == "warn")


def set_deterministic_debug_mode(debug_mode: int | str) -> None:
    """Accept "default", "warn" or "error", or their numbers, as `use_deterministic_algorithms`.

    Raises:
        TypeError: for other types.
        RuntimeError: for other values.
    """
    if not isinstance(debug_mode, (int, str)):
        raise TypeError(f"debug_mode must be a str or an int, got {type(debug_mode).__name__}")
    if isinstance(debug_mode, int) and 0 <= debug_mode < len(_MODES):
        debug_mode = _MODES[debug_mode]
    if debug_mode not in _MODES:
        raise RuntimeError(f"debug_mode must be one of {_MODES} or 0 to 2, got {debug_mode!r}")
    _state["deterministic"] = debug_mode


def get_deterministic_debug_mode() -> int:
    """Return the number of the mode."""
    return _MODES.index(_state["deterministic"])


def set_float32_matmul_precision(precision: str) -> None:
    """Set the precision of products of float32: "highest", "high" or "medium".

    "highest", the default, is that of float32. With the others, CPUs that have AMX multiply large
    matrices as sums of products of bfloat16. The error is below 2**-16 of the sum of the terms'
    absolute values, where that of float32 is about 2**-24. The same setting gives the same bits.
    Other CPUs, and other dtypes, keep full precision.
    """
    if precision not in _PRECISIONS:
        warnings.warn(
            f"{precision!r} is not one of {_PRECISIONS}; the call has no effect", stacklevel=2
        )
        return
    _state["precision"] = precision
    kernels.allow_split_products(precision != "highest")


def get_float32_matmul_precision() -> str:
    """Return what `set_float32_matmul_precision` has set."""
    return str(_state["precision"])


def set_num_interop_threads(count: int) -> None:
    """Accept a number of threads: operations never run beside each other by themselves.

    Raises:
        RuntimeError: the number is not positive.
    """
    if count < 1:
        raise RuntimeError(f"set_num_interop_threads expects a positive integer, got {count}")
    _state["interop threads"] = count


def get_num_interop_threads() -> int:
    """Return what `set_num_interop_threads` has set."""
    return int(_state["interop threads"])


def set_flush_denormal(mode: bool) -> bool:
    """Return False: the processor's mode stays as it is."""
    return False


def set_warn_always(b: bool) -> None:
    """Keep the flag: Python's warning filters decide."""
    _state["warn always"] = bool(b)


def is_warn_always_enabled() -> bool:
    """Return the flag of `set_warn_always`."""
    return bool(_state["warn always"])


def get_default_device() -> Device:
    """Return the device of tensors made without one: the CPU, unless the program has set it."""
    return default_device()


def set_default_device(device: Any) -> None:
    """Set the device of tensors made without one, "cpu" or "meta", in this thread.

    Raises:
        AssertionError, RuntimeError: for another device.
    """
    set_default(device)


def get_device_module(device: Any = None) -> Any:
    """Return the module of a device's functions, `offgrad.cpu` for None.

    Raises:
        RuntimeError: there is none.
    """
    kind = "cpu" if device is None else Device(device).type
    if kind not in ("cpu", "cuda", "mps", "xpu"):
        raise RuntimeError(f"offgrad has no module of functions for {kind!r}")
    return importlib.import_module(f"offgrad.{kind}")


def compiled_with_cxx11_abi() -> bool:
    """Return True."""
    return True


def is_vulkan_available() -> bool:
    """Return False."""
    return False


def typename(obj: Any) -> str:
    """Return the name of the type of a tensor or object, with its module."""
    if isinstance(obj, TensorBase):
        name = getattr(obj, "type", None)
        return str(name()) if name is not None else "offgrad.Tensor"
    kind = obj if isinstance(obj, type) else type(obj)
    if callable(obj) and hasattr(obj, "__qualname__"):
        kind = obj
    module = getattr(kind, "__module__", "") or ""
    name = kind.__qualname__
    return name if module in ("", "builtins") else f"{module}.{name}"
