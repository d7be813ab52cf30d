"""Small results by a short way: two plain small float tensors, or one and a number.

Functions check and convert their arguments, for broadcasting, other dtypes and classes; that takes
longer than small arithmetic. The results, and what is recorded, are those of the long way.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from offgrad import memory
from offgrad.autograd import grad_mode
from offgrad.autograd.float_errors import ignore_float_errors, restore_float_errors
from offgrad.autograd.op import Array, Op, observers
from offgrad.autograd.tensor_base import plain_classes, wrap
from offgrad.memory.meta import meters
from offgrad.ops._core.dtypes import shared_number

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


class Direct(NamedTuple):
    """How to compute small results of a function of two tensors.

    Attributes:
        op: the operation that it applies.
        fits: whether arrays of one floating point dtype, or one of them a number, have such shapes
            that the function applies the operation alone, and to them.
        compute: the operation's result for what fits.
        takes_dtype: whether the operation has the dtype as a parameter.
    """

    op: type[Op]
    fits: Callable[[Any, Any], bool]
    compute: Callable[[Any, Any], Array]
    takes_dtype: bool


MAX_NUMBER = 2.0**53
"""Larger numbers may overflow; the long way raises the error."""

_LARGE, _modes, _ndarray, _new = memory.POOL_THRESHOLD, grad_mode.state, np.ndarray, object.__new__


def fit_elementwise(a: Any, b: Any) -> bool:
    """Return whether the result has the first operand's shape, or one operand is a number."""
    if type(a) is not type(b):
        return True
    shape, other = a.shape, b.shape
    return shape == other or (len(shape) > len(other) and shape[len(shape) - len(other) :] == other)


def direct_result(form: Direct, a: Any, b: Any) -> "Tensor | None":
    """Return the result of two tensors, or of one and a number; None if the way is too short."""
    if observers or meters:
        return None
    array: Any
    if type(a) in plain_classes:
        array = x = a._array
        if type(b) in plain_classes:
            y = b._array
            if type(y) is not _ndarray or y.dtype is not array.dtype:
                return None
        elif (type(b) is float or type(b) is int) and -MAX_NUMBER <= b <= MAX_NUMBER:
            y = b
        else:
            return None
    elif (
        type(b) in plain_classes
        and (type(a) is float or type(a) is int)
        and -MAX_NUMBER <= a <= MAX_NUMBER
    ):
        x, y = a, b._array
        array = y
    else:
        return None
    dtype = array.dtype
    if (
        type(array) is not _ndarray
        or array.nbytes >= _LARGE
        or dtype.char not in "fd"
        or not form.fits(x, y)
    ):
        return None
    need_a = need_b = False
    if _modes.grad_enabled:
        if x is not a:
            if a._base is not None:
                return None
            need_a = a._requires_grad
        if y is not b:
            if b._base is not None:
                return None
            need_b = b._requires_grad
    previous = ignore_float_errors()
    try:
        if not (need_a or need_b):
            return wrap(form.compute(x, y))
        if x is a or (x is y and a is not b):
            return None
        if y is b:
            b = shared_number(b, dtype, "")
            y = b._array
        node = _new(form.op)
        node.needs_input_grad = need_a, need_b
        parameters = {"dtype": dtype} if form.takes_dtype else {}
        result = node.forward(x, y, **parameters)
        output = wrap(result)
    finally:
        restore_float_errors(previous)
    node._record((a, b), [x, y], result, [output], parameters)
    return output
