"""Floating point errors are ignored for a while, and then handled as the program wants."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad.autograd import float_errors

Pair = tuple[Callable[[], Any], Callable[[Any], object]]


@pytest.mark.parametrize("make", [float_errors._fast_functions, float_errors._public_functions])
def test_both_forms_ignore_and_restore(make: Callable[[], Pair]) -> None:
    ignore, restore = make()
    with np.errstate(divide="raise", over="warn", invalid="call"):
        before = np.geterr()
        previous = ignore()
        assert set(np.geterr().values()) == {"ignore"}
        inner = ignore()
        restore(inner)
        assert set(np.geterr().values()) == {"ignore"}
        restore(previous)
        assert np.geterr() == before


def test_operations_and_backward_ignore_errors_of_a_program_that_raises_them() -> None:
    with np.errstate(all="raise"):
        x = offgrad.tensor([0.0, 1.0], requires_grad=True)
        (1 / x).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [-np.inf, -1.0]
        with pytest.raises(FloatingPointError):
            np.ones(1) / np.zeros(1)
