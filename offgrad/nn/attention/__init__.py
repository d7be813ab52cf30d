"""Choices of PyTorch's attention kernels, accepted: there is one implementation."""

from collections.abc import Iterator as _Iterator
from collections.abc import Sequence as _Sequence
from contextlib import contextmanager as _contextmanager
from enum import Enum as _Enum

from offgrad._missing import missing as _missing

__all__ = ["SDPBackend", "sdpa_kernel"]


class SDPBackend(_Enum):
    """PyTorch's kernels of scaled dot-product attention."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


@_contextmanager
def sdpa_kernel(
    backends: SDPBackend | _Sequence[SDPBackend], set_priority: bool = False
) -> _Iterator[None]:
    """Do nothing in a ``with`` block, or around a function: the kernel is always the same.

    Raises:
        TypeError: if `backends` are not members of `SDPBackend`.
    """
    given = [backends] if isinstance(backends, SDPBackend) else backends
    for each in given:
        if not isinstance(each, SDPBackend):
            raise TypeError(f"sdpa_kernel takes members of SDPBackend, got {each!r}")
    yield


__getattr__ = _missing("offgrad.nn.attention", ("bias", "flex_attention"))
