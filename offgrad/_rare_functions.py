"""Functions of `offgrad` that few programs use."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.autograd import anomaly, grad_mode
from offgrad.autograd.tensor_base import describe, wrap
from offgrad.ops._core.dtypes import default_dtype
from offgrad.ops._core.factories import check_options, set_requires_grad


class AcceleratorError(RuntimeError):
    """An error of an accelerator; there is none here, so nothing raises it."""


def from_file(
    filename: Any,
    shared: bool | None = None,
    size: int | None = 0,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
) -> Tensor:
    """Return the first `size` numbers of a binary file, mapped into memory.

    Args:
        filename: the file.
        shared: whether changes of the tensor change the file, which is made or made longer if need
            be. Otherwise the tensor alone changes.
        size: how many numbers.
        dtype: of the numbers; the default dtype by default.
        layout: must be strided.
        device: must be the CPU.
        pin_memory: must be False.
        requires_grad: whether the tensor requires grad.

    Raises:
        RuntimeError: if the file does not exist, or is shorter, and is not shared.
    """
    check_options("from_file", layout, device, pin_memory)
    kind = default_dtype() if dtype is None else np.dtype(dtype)
    count, path = int(size or 0), Path(filename)
    nbytes = count * kind.itemsize
    has = path.stat().st_size if path.exists() else -1
    if has < nbytes:
        if not shared:
            raise RuntimeError(
                f"from_file: {path} must hold {nbytes} bytes, {count} numbers of {kind.name}, but "
                f"{'does not exist' if has < 0 else f'holds {has}'}"
            )
        with path.open("ab") as file:
            file.truncate(nbytes)
    if not count:
        return ops.empty(0, dtype=kind)
    mapped = np.memmap(path, kind, "r+" if shared else "c", shape=(count,))
    tensor = wrap(np.asarray(mapped))
    return set_requires_grad(tensor, requires_grad)


def batch_norm_update_stats(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, momentum: float
) -> tuple[Tensor, Tensor]:
    """Return means and biased variances of the channels of `input` [N, C, ...].

    Running means, and running variances by the unbiased ones, move towards them by `momentum`, in
    place.
    """
    if input.ndim < 2:
        raise RuntimeError(
            f"batch_norm_update_stats: an input [N, C, ...] is needed, got a {describe(input)}"
        )
    dims = [0, *range(2, input.ndim)]

    def update() -> tuple[Tensor, Tensor]:
        variance, mean = ops.var_mean(input, dims, correction=0)
        count = input.numel() // input.shape[1]
        if running_mean is not None:
            running_mean.lerp_(mean, momentum)
        if running_var is not None:
            running_var.lerp_(variance * (count / max(count - 1, 1)), momentum)
        return mean, variance

    result: tuple[Tensor, Tensor] = grad_mode.call(False, update)
    return result


def get_file_path(*path_components: str) -> str:
    """Return the path of a file of the package."""
    return str(Path(__file__).parents[1].joinpath(*path_components))


def cudnn_is_acceptable(tensor: Tensor) -> bool:
    """Return False: tensors are on the CPU."""
    return False


def set_autocast_gpu_dtype(dtype: Any) -> None:
    """Set the dtype of `autocast` on CUDA, which does not exist: nothing changes."""
    ops.set_autocast_dtype("cuda", dtype)


def set_anomaly_enabled(mode: bool, check_nan: bool = True) -> None:
    """Switch anomaly mode on or off: `autograd.set_detect_anomaly`."""
    anomaly.set_detect_anomaly(mode, check_nan)


def thread_safe_generator() -> Any:
    """Return the generator of a data loader's worker thread: None, since workers are processes."""
    return None


def init_num_threads() -> None:
    """Do nothing: threads start with the settings of their process."""


class _ClassProperty:
    """A property of a class."""

    def __init__(self, function: Any) -> None:
        self.fget = function

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self.fget.__get__(instance, type(instance) if owner is None else owner)()


def classproperty(func: Callable[..., Any]) -> _ClassProperty:
    """Return a property of a class: a decorator of functions that take the class."""
    is_bound = isinstance(func, (classmethod, staticmethod))
    return _ClassProperty(func if is_bound else classmethod(func))
