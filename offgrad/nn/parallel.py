"""Modules for several devices, as in ``torch.nn.parallel``: plain on the CPU, or refused."""

from collections.abc import Iterator as _Iterator
from collections.abc import Sequence as _Sequence
from contextlib import contextmanager as _contextmanager
from typing import Any as _Any

from offgrad import _refused
from offgrad import distributed as _distributed
from offgrad._missing import missing as _missing
from offgrad.nn.modules.module import Module as _Module

__all__ = [
    "DataParallel",
    "DistributedDataParallel",
    "data_parallel",
    "gather",
    "parallel_apply",
    "replicate",
    "scatter",
]


class DataParallel(_Module):
    """Calls its module: there is one device.

    The state dict has the names of PyTorch's, which begin with ``module.``.

    Args:
        module: the module.
        device_ids: accepted; it has no effect.
        output_device: accepted; it has no effect.
        dim: accepted; it has no effect.
    """

    def __init__(
        self,
        module: _Module,
        device_ids: _Sequence[_Any] | None = None,
        output_device: _Any = None,
        dim: int = 0,
    ) -> None:
        super().__init__()
        self.module = module
        self.device_ids: list[_Any] = []

    def forward(self, *inputs: _Any, **kwargs: _Any) -> _Any:
        return self.module(*inputs, **kwargs)


class DistributedDataParallel(_Module):
    """Calls its module: there is one process, whose gradients are the mean of one.

    The state dict has the names of PyTorch's, which begin with ``module.``.

    Args:
        module: the module.
        *_: PyTorch's other arguments, as `options`: they have no effect.
        **options: see `_`.

    Raises:
        ValueError: before `offgrad.distributed.init_process_group`.
        RuntimeError: if no parameter requires grad.
    """

    def __init__(self, module: _Module, *_: _Any, **options: _Any) -> None:
        super().__init__()
        if not _distributed.is_initialized():
            raise ValueError(
                "Default process group has not been initialized: call "
                "offgrad.distributed.init_process_group() before, or use the module itself"
            )
        if not any(each.requires_grad for each in module.parameters()):
            raise RuntimeError(
                "DistributedDataParallel needs a module with a parameter that requires grad, got "
                f"{type(module).__name__}"
            )
        self.module = module

    def forward(self, *inputs: _Any, **kwargs: _Any) -> _Any:
        return self.module(*inputs, **kwargs)

    @_contextmanager
    def no_sync(self) -> _Iterator[None]:
        """Change nothing in the block: gradients are never exchanged."""
        yield


def data_parallel(
    module: _Module,
    inputs: _Any,
    device_ids: _Sequence[_Any] | None = None,
    output_device: _Any = None,
    dim: int = 0,
    module_kwargs: dict[str, _Any] | None = None,
) -> _Any:
    """Return the output of a module: there is one device.

    Args:
        module: the module.
        inputs: its positional arguments, or the only one.
        device_ids: accepted; it has no effect.
        output_device: accepted; it has no effect.
        dim: accepted; it has no effect.
        module_kwargs: its keyword arguments.
    """
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    return module(*arguments, **(module_kwargs or {}))


_CPU = "there is only the CPU; call the module itself"
_functions = _refused.functions(
    "offgrad.nn.parallel", "gather parallel_apply replicate scatter", _CPU
)
gather, parallel_apply = _functions["gather"], _functions["parallel_apply"]
replicate, scatter = _functions["replicate"], _functions["scatter"]

__getattr__ = _missing("offgrad.nn.parallel")
