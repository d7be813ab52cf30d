"""``torch.cuda`` on a library for the CPU: there is no device, and what needs one is refused.

Questions are answered (`is_available` with False, counts and byte counts with 0), seeds and caches
are accepted without effect. All else raises what PyTorch does without CUDA: RuntimeError for
streams, events, graphs and the context of a device, AssertionError for others.
"""

import contextlib as _contextlib
from collections import OrderedDict as _OrderedDict
from collections.abc import Iterator as _Iterator
from typing import Any as _Any

from offgrad import _refused
from offgrad._missing import missing as _missing

_WHY = "offgrad runs on the CPU (Torch not compiled with CUDA enabled); ask is_available() before"

_FUNCTIONS = """
    can_device_access_peer clock_rate cudart current_blas_handle current_device current_stream
    default_stream get_device_capability get_device_name get_device_properties get_rng_state
    init initial_seed ipc_collect mem_get_info
    memory_snapshot memory_summary memory_usage power_draw set_device
    set_per_process_memory_fraction set_rng_state set_stream synchronize temperature utilization
"""

_CLASSES = """
    BFloat16Tensor BoolTensor ByteTensor CharTensor CudaError DoubleTensor FloatTensor HalfTensor
    IntTensor LongTensor ShortTensor
"""

_STREAM_FUNCTIONS = "graph_pool_handle make_graphed_callables"
_STREAM_CLASSES = "CUDAGraph Event ExternalStream Stream graph"

globals().update(_refused.functions("offgrad.cuda", _FUNCTIONS, _WHY, AssertionError))
globals().update(_refused.classes("offgrad.cuda", _CLASSES, _WHY, AssertionError))
globals().update(_refused.functions("offgrad.cuda", _STREAM_FUNCTIONS, _WHY, RuntimeError))
globals().update(_refused.classes("offgrad.cuda", _STREAM_CLASSES, _WHY, RuntimeError))

OutOfMemoryError = type("OutOfMemoryError", (RuntimeError,), {"__doc__": "Never raised."})
default_generators: tuple[_Any, ...] = ()
has_half = True
has_magma = False


def is_available() -> bool:
    """Return False."""
    return False


def is_initialized() -> bool:
    """Return False."""
    return False


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Return False."""
    return False


def device_count() -> int:
    """Return 0."""
    return 0


def get_arch_list() -> list[str]:
    """Return no architectures."""
    return []


def get_rng_state_all() -> list[_Any]:
    """Return the states of no devices."""
    return []


def set_rng_state_all(new_states: _Any) -> None:
    """Accept the states of no devices."""
    if len(new_states):
        raise AssertionError(f"offgrad.cuda.set_rng_state_all: {_WHY}")


def manual_seed(seed: int) -> None:
    """Do nothing: there is no generator of a device."""


def manual_seed_all(seed: int) -> None:
    """Do nothing: there is no generator of a device."""


def seed() -> None:
    """Do nothing: there is no generator of a device."""


def seed_all() -> None:
    """Do nothing: there is no generator of a device."""


def empty_cache() -> None:
    """Do nothing: there is no memory of a device."""


def memory_allocated(device: _Any = None) -> int:
    """Return 0."""
    return 0


max_memory_allocated = memory_reserved = max_memory_reserved = memory_allocated
memory_cached = max_memory_cached = memory_allocated


def memory_stats(device: _Any = None) -> dict[str, _Any]:
    """Return no figures."""
    return _OrderedDict()


def reset_peak_memory_stats(device: _Any = None) -> None:
    """Do nothing: there is no memory of a device."""


reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats
reset_accumulated_memory_stats = reset_peak_memory_stats


@_contextlib.contextmanager
def device(device: _Any) -> _Iterator[None]:
    """Run a block on no device: None and negative numbers only."""
    if device is not None and not (isinstance(device, int) and device < 0):
        raise RuntimeError(f"offgrad.cuda.device: {_WHY}")
    yield


@_contextlib.contextmanager
def stream(stream: _Any) -> _Iterator[None]:
    """Run a block without a stream: None only."""
    if stream is not None:
        raise AssertionError(f"offgrad.cuda.stream: {_WHY}")
    yield


__all__ = [name for name in globals() if not name.startswith("_")]

__getattr__ = _missing("offgrad.cuda", ("amp", "nvtx", "random"))
