"""A backend that keeps bytes in a dict, and may be slow or fail."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from offgrad_storage import Backend, Entry

Array = NDArray[Any]


def _nothing() -> None: ...


class DictBackend(Backend):
    """Keeps bytes in a dict.

    Args:
        before_each: called before each read and write; may sleep, or raise OSError.
        before_write: called before each write as well.
    """

    def __init__(
        self,
        before_each: Callable[[], object] = _nothing,
        before_write: Callable[[], object] = _nothing,
    ) -> None:
        super().__init__("DictStore")
        self.before_each = before_each
        self.before_write = before_write
        self.kept: dict[int, bytes] = {}

    def write(self, entry: Entry, array: Array) -> int:
        self.before_each()
        self.before_write()
        self.kept[entry.serial] = array.tobytes()
        return array.nbytes

    def read(self, entry: Entry, out: Array) -> None:
        self.before_each()
        out[...] = np.frombuffer(self.kept[entry.serial], out.dtype).reshape(out.shape)

    def free(self, entry: Entry) -> Callable[[], object]:
        return functools.partial(self.kept.pop, entry.serial, None)

    def close(self) -> None:
        self.kept.clear()
