"""Runs the little programs of the tests of known phrases."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import pytest

import offgrad

Programs = Mapping[str, Callable[[Any], Any]]


def caught(program: Callable[[Any], Any], lib: Any) -> tuple[type[Any] | None, str]:
    """Return the class and text of a program's error, or else of its warnings."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            program(lib)
        except Exception as error:
            return type(error), str(error)
    text = "\n".join(str(each.message) for each in seen)
    return (seen[-1].category if seen else None), text


def check(programs: Programs, phrase: str) -> None:
    """Check that offgrad says the phrase, and that torch says it in an error of that class."""
    kind, text = caught(programs[phrase], offgrad)
    assert phrase in text
    torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
    their_kind, their_text = caught(programs[phrase], torch)
    assert phrase in their_text
    assert kind is not None
    assert their_kind is not None
    assert issubclass(kind, their_kind) or kind.__name__ == their_kind.__name__
