"""Phrases of PyTorch's errors about checkpoints that code and people match on."""

import io
import os
from typing import Any

import pytest

from tests.known_phrases import Programs, check


class Custom:
    """A class that no checkpoint may name without permission."""


class Call:
    """Pickles as a call of ``os.system``."""

    def __reduce__(self) -> Any:
        return os.system, ("true",)


def load(value: Any) -> Any:
    """Return a program that saves and loads an object."""

    def run(lib: Any) -> None:
        file = io.BytesIO()
        lib.save(value, file)
        file.seek(0)
        lib.load(file)

    return run


class Stream:
    """A file that has no position."""

    def read(self, size: int = -1) -> bytes:
        return b""

    def readline(self) -> bytes:
        return b""


def save_two_types(lib: Any) -> None:
    x = lib.ones(2, dtype=lib.complex64)
    lib.save([x, x.imag], io.BytesIO())


PROGRAMS: Programs = {
    "You can only torch.load from a file that is seekable": lambda lib: lib.load(Stream()),
    "was not an allowed global by default": load(Custom()),
    "add_safe_globals": load(Custom()),
    "Weights only load failed": load(Custom()),
    "whose module posix is blocked": load(Call()),
    "Cannot save multiple tensors or storages that view the same data as different types": (
        save_two_types
    ),
}


@pytest.mark.parametrize("phrase", PROGRAMS)
def test_phrases(phrase: str) -> None:
    check(PROGRAMS, phrase)
