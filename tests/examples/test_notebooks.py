"""Every notebook of `examples` runs from its first cell to its last."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted(Path(__file__).parents[2].joinpath("examples").glob("*.ipynb"))

# In a process of its own: the client of a kernel keeps threads and sockets.
RUN = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
nbformat.write(notebook, "done.ipynb")
"""


def test_there_are_notebooks_without_outputs() -> None:
    assert NOTEBOOKS
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text())["cells"]
        assert not any(each.get("outputs") for each in cells), f"{path.name}: clear all outputs"


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(path)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "IPYTHONDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    cells = json.loads((tmp_path / "done.ipynb").read_text())["cells"]
    outputs = [output for each in cells for output in each.get("outputs", ())]
    assert not [each for each in outputs if each.get("name") == "stderr"]
    shown = ["".join(each.get("data", {}).get("text/html", "")) for each in outputs]
    assert sum(map(bool, shown)) == 6
    assert any("at the peak" in each for each in shown)
    assert any("<td" in each and ">disk<" in each for each in shown)
    assert "<!doctype html>" in (tmp_path / "report.html").read_text()
