"""`%load_ext offgrad`, without a kernel; `tests/examples/test_notebooks.py` has one."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import offgrad
from offgrad.profiler import Profile

pytest.importorskip("IPython", reason="IPython is not installed")


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A shell that keeps no history, in which the extension is loaded."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # a shell replaces it
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    shell.user_ns["offgrad"] = offgrad
    shell.run_line_magic("load_ext", "offgrad")
    yield shell
    shell.reset()
    InteractiveShell.clear_instance()


CELL = """
x = offgrad.ones(512, 512, requires_grad=True)
loss = x.exp().sum()
loss.backward()
{name}.step()
loss.item() > 0
"""


@pytest.mark.slow
def test_it_shows_the_profile_and_returns_the_last_value(
    shell: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    cell = CELL.format(name="mine")
    line = f"--policy 'pool,min=0' --name mine --report {page}"
    assert shell.run_cell_magic("offgrad_profile", line, cell) is True
    found = shell.user_ns["mine"]
    assert isinstance(found, Profile)
    assert found.peak_nbytes >= 2 << 20
    assert len(found.to_dict()["steps"]) == 1
    assert "<!doctype html>" in page.read_text()
    assert "<OffloadSession pool, from 0 B: 1 tensor saved" in capsys.readouterr().out
    lines = [each["line"] for each in found.to_dict()["peak"]["contents"]]
    assert any(":3" in each and "ipython" in each for each in lines), lines
    assert shell.run_cell_magic("offgrad_profile", "", "a = 1\n") is None
    assert shell.user_ns["a"] == 1


@pytest.mark.slow
def test_wrong_arguments_are_usage_errors_and_errors_of_the_cell_its_own(shell: Any) -> None:
    from IPython.core.error import UsageError

    for line in ("--policy nonsense", "--nothing"):
        with pytest.raises(UsageError):
            shell.run_cell_magic("offgrad_profile", line, "1")
    with pytest.raises(ZeroDivisionError):
        shell.run_cell_magic("offgrad_profile", "--policy keep", "1 / 0")
    with pytest.raises(SyntaxError):
        shell.run_cell_magic("offgrad_profile", "", "1 +")
    assert "--policy" in shell.find_cell_magic("offgrad_profile").__doc__
