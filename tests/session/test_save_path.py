"""The path of a saved tensor from its operation to the write queue is short."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_files_and_returns_on_the_path() -> None:
    """Run in a separate process, so that the profiler counts no other calls."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "storage")])
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.trace_save"],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found = re.search(r"(\d+) files, \d+ hops, (\d+) returns", result.stdout)
    assert found is not None, result.stdout
    files, returns = map(int, found.groups())
    assert 8 < files <= 16, result.stdout
    assert returns <= 12, result.stdout
