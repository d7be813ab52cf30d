"""Limits may end in any order: the smallest active one applies."""

from contextlib import ExitStack

import pytest

import offgrad
from offgrad import memory
from offgrad.memory import OutOfMemoryError

MIB = 1 << 20


def test_limits_that_end_out_of_order() -> None:
    base = memory.allocated()
    outer, inner = ExitStack(), ExitStack()
    outer.enter_context(memory.limit(base + 8 * MIB))
    inner.enter_context(memory.limit(base + 2 * MIB))
    outer.close()
    with pytest.raises(OutOfMemoryError):
        offgrad.zeros(4 * MIB // 4)
    inner.close()
    assert offgrad.zeros(16 * MIB // 4).nbytes == 16 * MIB
