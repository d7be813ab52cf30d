"""NumPy's names of arguments, which PyTorch takes, too."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def with_numpy_names(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function` with ``axis`` for ``dim`` and ``keepdims`` for ``keepdim``."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs:
            if "axis" in kwargs and "dim" not in kwargs:
                kwargs["dim"] = kwargs.pop("axis")
            if "keepdims" in kwargs and "keepdim" not in kwargs:
                kwargs["keepdim"] = kwargs.pop("keepdims")
        return function(*args, **kwargs)

    return run
