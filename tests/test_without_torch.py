"""Tests that compare with PyTorch are skipped where it is not installed; the others run."""

import os
import subprocess
import sys
from pathlib import Path

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import pytest
options = ["--collect-only", "-qq", "-p", "no:xdist", "-p", "no:cacheprovider"]
sys.exit(pytest.main([*options, "tests"]))
"""


def test_all_tests_are_collected() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        cwd=Path(__file__).parents[1],
        env={key: value for key, value in os.environ.items() if key != "PYTEST_ADDOPTS"},
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
