"""Ctrl-C in a training step leaves modes, hooks and calls as they were."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.autograd.interrupted_steps import STEPS
from tests.processes import start_python

ROOT = Path(__file__).parents[2]
PROGRAM = "import sys; from tests.autograd import interrupted_steps as s; s.main(*sys.argv[1:])"

STRIDE = "1" if os.environ.get("OFFGRAD_STRESS") else "23"
"""Of the instants tried; all take minutes."""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", STEPS)
def test_every_instant(name: str) -> None:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "storage")])
    child = start_python(
        PROGRAM,
        name,
        STRIDE,
        env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    output, errors = child.communicate(timeout=1100)
    assert child.returncode == 0, errors[-4000:]
    assert int(output) > 100
