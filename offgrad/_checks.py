"""Assertions of conditions, which model code uses instead of ``assert``: ``torch._check``."""

from collections.abc import Callable
from typing import Any

import numpy as np

from offgrad.autograd.tensor_base import TensorBase

__all__ = [
    "_assert",
    "_check",
    "_check_index",
    "_check_is_size",
    "_check_not_implemented",
    "_check_tensor_all",
    "_check_type",
    "_check_value",
    "_check_with",
]

Message = Callable[[], object] | None


def _assert(condition: Any, message: str) -> None:
    """Raise AssertionError with `message` unless `condition`, a bool or a tensor, is true."""
    if not condition:
        raise AssertionError(message)


def _check_with(error: type[Exception], cond: bool, message: Message = None) -> None:
    """Raise `error` unless `cond` is true.

    Args:
        error: the class of the error.
        cond: a bool, not a tensor.
        message: a function without arguments that returns the error's text.

    Raises:
        TypeError: if `cond` is no bool, or `message` no function.
    """
    if isinstance(cond, TensorBase):
        raise TypeError(
            "cond must be a bool, but got a Tensor; for tensors use _check_tensor_all(cond)"
        )
    if not isinstance(cond, bool):
        raise TypeError(f"cond must be a bool, but got {type(cond)}")
    if cond:
        return
    if message is None:
        raise error("Expected cond to be True, but got False; pass a message to say what it is")
    if not callable(message):
        raise TypeError("message must be a callable, such as lambda: 'text'")
    raise error(str(message()))


def _check(cond: bool, message: Message = None) -> None:
    """Raise RuntimeError unless `cond` is true; `message` returns the text."""
    _check_with(RuntimeError, cond, message)


def _check_index(cond: bool, message: Message = None) -> None:
    """Raise IndexError unless `cond` is true; `message` returns the text."""
    _check_with(IndexError, cond, message)


def _check_value(cond: bool, message: Message = None) -> None:
    """Raise ValueError unless `cond` is true; `message` returns the text."""
    _check_with(ValueError, cond, message)


def _check_type(cond: bool, message: Message = None) -> None:
    """Raise TypeError unless `cond` is true; `message` returns the text."""
    _check_with(TypeError, cond, message)


def _check_not_implemented(cond: bool, message: Message = None) -> None:
    """Raise NotImplementedError unless `cond` is true; `message` returns the text."""
    _check_with(NotImplementedError, cond, message)


def _check_is_size(i: int, message: Message = None, *, max: int | None = None) -> None:
    """Raise RuntimeError unless `i` is at least 0, and at most `max`."""
    _check_with(RuntimeError, i >= 0 and (max is None or i <= max), message)


def _check_tensor_all(cond: Any, message: Message = None) -> None:
    """Raise RuntimeError unless all elements of `cond`, a tensor of bools, are true.

    Raises:
        TypeError: if `cond` is no tensor of bools.
    """
    if not isinstance(cond, TensorBase):
        raise TypeError(f"cond must be a tensor, but got {type(cond)}")
    if cond._array.dtype != np.bool_:
        raise TypeError(f"cond tensor must have dtype torch.bool, but got {cond._array.dtype.name}")
    _check_with(RuntimeError, bool(cond._array.all()), message)
