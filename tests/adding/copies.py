"""Copies of the package, for tests that add something to it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]

Edits = Mapping[str, list[tuple[str, str]]]
"""By file, the lines to insert and the line before them; "" is the end of a file, or a new one."""


def run_in_copy(folder: Path, edits: Edits, program: str) -> None:
    """Copy the package to `folder`, insert lines, and run a program that must print "done"."""
    ignore = shutil.ignore_patterns("*.nbi", "*.nbc", "__pycache__")
    for name in ("offgrad", "storage"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    for name, insertions in edits.items():
        _insert(folder / name, insertions)
    paths = os.pathsep.join([str(folder), str(folder / "storage")])
    result = subprocess.run(
        [sys.executable, "-Werror", "-c", program, str(folder)],
        env=os.environ | {"PYTHONPATH": paths, "OFFGRAD_SPILL_DIR": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "done\n"


def _insert(path: Path, insertions: list[tuple[str, str]]) -> None:
    text = path.read_text() if path.exists() else ""
    for line, new in insertions:
        if line:
            assert text.count(f"{line}\n") == 1, f"{path.name}: {line!r} must occur once"
            text = text.replace(f"{line}\n", f"{line}\n{new}")
        else:
            text += new
    path.write_text(text)
