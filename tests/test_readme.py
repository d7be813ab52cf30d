"""Programs in the READMEs run, and their links lead to files."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "storage/README.md")


def found(pattern: str) -> list[object]:
    """Return the matches of the pattern's group, each with its page."""
    return [
        pytest.param(page, text, id=f"{page}-{number}")
        for page in PAGES
        for number, text in enumerate(
            re.findall(pattern, (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
        )
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("page", "program"), found(r"```python\n(.*?)```"))
def test_programs_run(page: str, program: str, tmp_path: Path) -> None:
    path, empty = tmp_path / "test_program.py", tmp_path / "empty"
    path.write_text(program, encoding="utf-8")
    empty.mkdir()
    is_test = "import pytest\n" in program
    done = subprocess.run(
        [sys.executable, *(["-m", "pytest", "-p", "no:cacheprovider"] if is_test else []), path],
        cwd=empty,
        # PYTEST_ADDOPTS is for this run: a page's own measures no coverage.
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    assert is_test or not list(empty.iterdir())  # hypothesis and pytest leave their own


@pytest.mark.parametrize(("page", "target"), found(r"\]\(([^)#]+)"))
def test_links_lead_somewhere(page: str, target: str) -> None:
    assert target.startswith("https://") or (ROOT / page).parent.joinpath(target).exists()


def test_there_are_two_commands() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in ("main", "tests"):
        assert re.search(rf"<!-- {name} -->\n```bash\n[^\n]+\n```", readme)
