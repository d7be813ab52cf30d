"""Exceptions that travel between processes and threads, and tensors as one vector."""

import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from offgrad import ops

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


class _Text(str):
    """A message that prints as it is, also in a KeyError, which shows the repr."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class ExceptionWrapper:
    """An exception as its class and text, with the traceback, to be raised again elsewhere.

    Args:
        exc_info: as `sys.exc_info` returns, or a class and a text; the exception being handled
            if None.
        where: the place for the message, as "in worker 0".
    """

    def __init__(self, exc_info: Any = None, where: str = "in background") -> None:
        exc_info = sys.exc_info() if exc_info is None else exc_info
        self.exc_type: Any = exc_info[0]
        if isinstance(exc_info[1], str):
            self.exc_msg = exc_info[1]
        else:
            self.exc_msg = "".join(traceback.format_exception(*exc_info))
        self.where = where

    def reraise(self) -> NoReturn:
        """Raise an exception of the same class, whose message has the original traceback.

        Raises:
            Exception: of that class; RuntimeError if the class takes no message alone.
        """
        kind = self.exc_type
        text = f"Caught {kind.__name__} {self.where}.\nOriginal {self.exc_msg}"
        try:
            error = kind(_Text(text) if issubclass(kind, KeyError) else text)
        except Exception:
            error = RuntimeError(text)
        raise error from None


def _element_size(dtype: Any) -> int:
    """Return the bytes of an element of a dtype."""
    return int(np.dtype(dtype).itemsize)


def _flatten_dense_tensors(tensors: "Sequence[Tensor]") -> "Tensor":
    """Return the elements of tensors as one vector."""
    return ops.cat([each.contiguous().view(-1) for each in tensors])


def _unflatten_dense_tensors(flat: "Tensor", tensors: "Sequence[Tensor]") -> "tuple[Tensor, ...]":
    """Return views of a vector with the shapes of `tensors`."""
    parts = ops.split(flat, [each.numel() for each in tensors])
    return tuple(part.view_as(each) for part, each in zip(parts, tensors, strict=True))
