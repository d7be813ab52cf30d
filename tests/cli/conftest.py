"""The command line as users run it: in a separate process."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import start_python

Offgrad = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Offgrad:
    """Start ``offgrad`` in an empty folder, with its spill directory there, too."""
    (tmp_path / "spill").mkdir()

    def begin(*arguments: str, **variables: str) -> "subprocess.Popen[str]":
        environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
        environment |= {
            "PYTHONPATH": os.pathsep.join(sys.path),
            "OFFGRAD_SPILL_DIR": str(tmp_path / "spill"),
            "PYTHONUNBUFFERED": "1",
            **variables,
        }
        return start_python(
            "from offgrad.cli import main; main()",
            *arguments,
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    return begin


@pytest.fixture
def run(start: Offgrad) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Run ``offgrad`` to its end."""

    def finish(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        process = start(*arguments, **variables)
        try:
            output, errors = process.communicate()  # pytest-timeout ends it
        except BaseException:
            process.kill()
            raise
        return subprocess.CompletedProcess(arguments, process.returncode, output, errors)

    return finish
