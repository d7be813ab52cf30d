"""The models of `examples/models` give PyTorch's losses, and the same ones under every policy."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "models"
MODELS = sorted(each.stem for each in FOLDER.glob("*.py") if each.stem != "common")

# Runs all models in one process, as scripts; prints a line before each.
_RUN = """
import runpy, sys
folder, *arguments = sys.argv[1:]
sys.path.insert(0, folder)
for name in {models}:
    print("model", name)
    sys.argv = [name, "--steps", "3", *arguments]
    runpy.run_path(f"{{folder}}/{{name}}.py", run_name="__main__")
"""


def losses(cwd: Path, *arguments: str) -> dict[str, list[str]]:
    """Return the losses that each model prints with `arguments`."""
    strict = [] if "--torch" in arguments else ["-Werror"]
    done = subprocess.run(
        [sys.executable, *strict, "-c", _RUN.format(models=MODELS), str(FOLDER), *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    parts = re.split(r"^model (\w+)\n", done.stdout, flags=re.M)[1:]
    return {
        name: re.findall(r"-?\d+\.\d{6}", text)
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    }


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return losses(tmp_path_factory.mktemp("kept"))


@pytest.mark.slow
def test_losses_are_those_of_torch(kept: dict[str, list[str]], tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="compares with torch, which is not installed")
    theirs = losses(tmp_path, "--torch")
    assert list(kept) == list(theirs) == MODELS
    for name in MODELS:
        assert len(kept[name]) >= 3, name
        mine, expected = (np.array(each[name], float) for each in (kept, theirs))
        np.testing.assert_allclose(mine, expected, rtol=1e-4, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["disk", "recompute"])
def test_losses_do_not_depend_on_the_policy(
    policy: str, kept: dict[str, list[str]], tmp_path: Path
) -> None:
    assert losses(tmp_path, "--offload", policy) == kept
