"""Every example runs in a separate process, with warnings as errors."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted(Path(__file__).parents[2].joinpath("examples").glob("*.py"))


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-Werror", str(path)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert not done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("train_larger_than_memory.py", "--limit", "foo"),
        ("train_larger_than_memory.py", "--layers", "0"),
        ("train_larger_than_memory.py", "--width", "100"),
        ("profile_memory.py", "no folder"),
        ("models/vit.py", "--offload", "foo"),
        ("models/vit.py", "--batch", "-1"),
    ],
    ids=" ".join,
)
def test_wrong_arguments_end_without_a_traceback(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    script, *rest = arguments
    done = subprocess.run(
        [sys.executable, str(EXAMPLES[0].parent / script), *rest],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert rest[-1] in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
