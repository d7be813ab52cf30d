"""Blocks that coverage leaves out."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

WATCHED = """\
def first():
    return 1


def second():
    return 2


def third():
    return 3
"""

PROGRAM = """
import coverage
from tests.tracing import untraced
watch = coverage.Coverage(data_file=None, include=["*/watched.py"])
watch.start()
import watched
watched.first()
with untraced():
    watched.second()
watched.third()
watch.stop()
data = watch.get_data()
print([line for path in data.measured_files() for line in sorted(data.lines(path))])
"""


def test_a_block_that_is_not_traced(tmp_path: Path) -> None:
    pytest.importorskip("coverage")
    (tmp_path / "watched.py").write_text(WATCHED)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"PYTHONPATH": path, "COVERAGE_CORE": "ctrace"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[1, 2, 5, 9, 10]\n", "")
