"""Programs as text, run on offgrad and on torch: their results must print alike."""

import warnings
from typing import Any

import pytest

import offgrad

Namespace = dict[str, Any]


def outcomes(setup: str, expressions: str, lib: Any) -> list[str]:
    """Run `setup`, then return what each line of `expressions` prints as, or its error's class."""
    names: Namespace = {"torch": lib, "nn": lib.nn}
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(setup, names)
        for line in expressions.strip().splitlines():
            try:
                text = repr(eval(line, names))
            except Exception as error:
                text = type(error).__name__
            found.append(f"{line.strip()} -> {text}".replace("dtype=torch.", "dtype="))
    return found


def same_on_torch(setup: str, expressions: str) -> None:
    """Check that both libraries print the same."""
    torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
    assert outcomes(setup, expressions, offgrad) == outcomes(setup, expressions, torch)
