"""Fixtures of the tests of stores."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.storage.faults import open_files
from tests.storage.gate import Setup
from tests.storage.runs import Calls

RunPython = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run_python() -> RunPython:
    """Run code in a new Python process, with the same import path and warnings as errors."""

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


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    """The calls by which stores in `tmp_path` move arrays; no file of theirs is left open."""
    made = Calls(monkeypatch, tmp_path)
    yield made
    made.open.set()
    assert not open_files(tmp_path), "a file is still open"
