"""``torch.cpu``: the device that offgrad runs on. Streams do not exist; work is never queued."""

import contextlib as _contextlib
from collections.abc import Iterator as _Iterator
from typing import Any as _Any

from offgrad._missing import missing as _missing


def is_available() -> bool:
    """Return True."""
    return True


def is_initialized() -> bool:
    """Return True."""
    return True


def device_count() -> int:
    """Return 1."""
    return 1


def current_device() -> str:
    """Return "cpu"."""
    return "cpu"


def set_device(device: _Any) -> None:
    """Do nothing: there is one device."""


def synchronize(device: _Any = None) -> None:
    """Do nothing: operations have ended when they return."""


def current_stream(device: _Any = None) -> None:
    """Return None: there are no streams."""


@_contextlib.contextmanager
def stream(stream: _Any) -> _Iterator[None]:
    """Run a block; there are no streams."""
    yield


__all__ = [name for name in globals() if not name.startswith("_")]

__getattr__ = _missing("offgrad.cpu", ("amp",))
