"""Loops over elements, to which `loop_of` gives the function `value` of an element."""

from __future__ import annotations

from typing import Any

import numpy as np

FLAGGED = 1024
"""The elements of a block of `flagging_loop`."""


def value(*_: Any) -> Any:
    """Stand for a helper that `loop_of` names."""
    raise NotImplementedError("a template runs as the loop that loop_of() returns")


def one_array(x: Any, out: Any, start: int, stop: int) -> None:
    """Write a function of the elements of `x`."""
    x, out = x[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = value(x[i])


def two_arrays(a: Any, b: Any, out: Any, start: int, stop: int) -> None:
    """Write a function of the elements of `a` and of `b`."""
    a, b, out = a[start:stop], b[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = value(a[i], b[i])


def array_and_number(x: Any, number: Any, out: Any, start: int, stop: int) -> None:
    """Write a function of the elements of `x` and a number."""
    x, out = x[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = value(x[i], number)


def number_and_array(x: Any, number: Any, out: Any, start: int, stop: int) -> None:
    """Write a function of a number and the elements of `x`."""
    x, out = x[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = value(number, x[i])


def array_in_place(out: Any, factor: Any, b: Any, start: int, stop: int) -> None:
    """Write a function of the elements of `out`, a factor and the elements of `b` into `out`."""
    out, b = out[start:stop], b[start:stop]
    for i in range(out.size):
        out[i] = value(out[i], factor, b[i])


def number_in_place(out: Any, number: Any, start: int, stop: int) -> None:
    """Write a function of the elements of `out` and a number into `out`."""
    out = out[start:stop]
    for i in range(out.size):
        out[i] = value(out[i], number)


def one_in_float64(x: Any, out: Any, start: int, stop: int) -> None:
    """Write a function of the elements of `x`, computed in float64."""
    x, out = x[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = value(np.float64(x[i]))


def two_in_float64(a: Any, b: Any, out: Any, start: int, stop: int) -> None:
    """Write a function of the elements of `a` and of `b`, computed in float64."""
    a, b, out = a[start:stop], b[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = value(np.float64(a[i]), np.float64(b[i]))


def slope_in_float64(grad: Any, x: Any, out: Any, start: int, stop: int) -> None:
    """Write `grad` times a function of the elements of `x`, computed in float64.

    It is rounded to float32 before it multiplies a gradient, so that an infinite one times 0 is
    NaN, as in the references.
    """
    grad, x, out = grad[start:stop], x[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = grad[i] * np.float32(value(np.float64(x[i])))


def flagging_loop(a: Any, b: Any, out: Any, inexact: Any) -> None:
    """Write the first result of a function of two; flag blocks in which a second one is False."""
    for block in range(inexact.size):
        first = block * FLAGGED
        x = a[first : first + FLAGGED]
        y = b[first : first + FLAGGED]
        o = out[first : first + FLAGGED]
        exact = True
        for i in range(x.size):
            number, is_exact = value(x[i], y[i])
            exact = exact & is_exact
            o[i] = number
        inexact[block] = not exact
