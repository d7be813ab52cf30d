"""What the README shows works, and what it points to is there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("program", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_programs_run(program: str, tmp_path: Path) -> None:
    run = [sys.executable, "-c", program]
    subprocess.run(run, check=True, cwd=tmp_path, timeout=120, stdout=subprocess.DEVNULL)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#]+)", README))
def test_links_lead_somewhere(target: str) -> None:
    assert target.startswith("https://") or (ROOT / target).exists()


def test_there_are_two_commands() -> None:
    for name in ("main", "tests"):
        assert re.search(rf"<!-- {name} -->\n```bash\n[^\n]+\n```", README)
