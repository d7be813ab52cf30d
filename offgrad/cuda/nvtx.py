"""``torch.cuda.nvtx``: marks for NVIDIA's profilers, which need CUDA: each raises RuntimeError."""

from collections.abc import Iterator as _Iterator
from contextlib import contextmanager as _contextmanager
from typing import Any as _Any

from offgrad import _refused
from offgrad._missing import missing as _missing

_NAMES = "mark range_end range_pop range_push range_start"
_WHY = (
    "NVTX functions not installed: offgrad runs on the CPU; ask cuda.is_available() before, or use "
    "profiler.record_function"
)

globals().update(_refused.functions("offgrad.cuda.nvtx", _NAMES, _WHY))


@_contextmanager
def range(msg: str, *args: _Any, **kwargs: _Any) -> _Iterator[None]:
    """Raise RuntimeError where a block, or a function that it decorates, begins.

    Args:
        msg: the text of the mark, with places for `args` and `kwargs`.
        args: see `msg`.
        kwargs: see `msg`.
    """
    raise RuntimeError(f"offgrad.cuda.nvtx.range: {_WHY}")
    yield


__all__ = [name for name in globals() if not name.startswith("_")]

__getattr__ = _missing("offgrad.cuda.nvtx")
