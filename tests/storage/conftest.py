"""What the tests of stores share."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator

import pytest

from tests.storage.gate import Setup

RunPython = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run_python() -> RunPython:
    """Run code in a Python of its own, with the same import path and warnings as errors."""

    def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-Werror", "-c", textwrap.dedent(code), *map(str, arguments)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    return run


@pytest.fixture
def setups() -> Iterator[list[Setup]]:
    """Gates that are opened, and stores that are closed, afterwards."""
    made: list[Setup] = []
    yield made
    for setup in made:
        setup.backend.open.set()
        setup.store.close()
        assert setup.backend.closed


@pytest.fixture
def setup(setups: list[Setup]) -> Setup:
    """A store with one thread behind a gate."""
    setups.append(Setup())
    return setups[0]
