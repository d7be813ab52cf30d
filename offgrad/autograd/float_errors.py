"""Floating point errors: operations ignore them, as PyTorch's do, within NumPy's own settings.

`numpy.errstate` does the same in several times the time of a small operation. The two functions set
the context variable behind it, which is private: without it, they use NumPy's public functions.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

ignore_float_errors: Callable[[], Any]
"""Ignore floating point errors in this thread; return the argument of `restore_float_errors`."""

restore_float_errors: Callable[[Any], object]
"""Restore the settings from before `ignore_float_errors`."""


def _public_functions() -> tuple[Callable[[], Any], Callable[[Any], object]]:
    return lambda: np.seterr(all="ignore"), lambda previous: np.seterr(**previous)


def _fast_functions() -> tuple[Callable[[], Any], Callable[[Any], object]]:
    from functools import partial

    from numpy._core import umath

    variable = umath._extobj_contextvar
    ignored = umath._make_extobj(all="ignore")
    return partial(variable.set, ignored), variable.reset


try:
    ignore_float_errors, restore_float_errors = _fast_functions()
except (ImportError, AttributeError):
    ignore_float_errors, restore_float_errors = _public_functions()
