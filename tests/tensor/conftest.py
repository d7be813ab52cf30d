"""One line run on PyTorch and on offgrad."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest

import offgrad


def outcome(lib: Any, call: Callable[[Any], Any]) -> str:
    """Return the text of the result, or the class of the error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return repr(call(lib))
        except Exception as error:
            return next(each.__name__ for each in type(error).__mro__ if each in _BUILTIN)


_BUILTIN = (
    *(TypeError, ValueError, RuntimeError, IndexError, NotImplementedError, AttributeError),
    *(AssertionError, BufferError),
)


@pytest.fixture
def same() -> Callable[[Callable[[Any], Any]], None]:
    """Return a function that runs a call on both libraries and compares the outcomes."""
    torch = pytest.importorskip("torch")

    def compare(call: Callable[[Any], Any]) -> None:
        assert outcome(offgrad, call) == outcome(torch, call)

    return compare
