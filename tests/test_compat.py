"""The list of PyTorch's names, what of it offgrad has, and errors for missing names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import offgrad
from offgrad import _compat, _missing
from tests import compat_names

PAGE = Path(__file__).parents[1] / "docs" / "coverage.md"


def test_coverage() -> None:
    found = offgrad.compat.coverage()
    data = found["torch.utils.data"]
    assert data.namespace == "torch.utils.data"
    assert {"DataLoader", "Dataset", "random_split"} <= set(data.present)
    assert "IterDataPipe" in data.missing
    assert data.total == len(_missing.pytorch_names()["torch.utils.data"])
    assert "synchronize" in found["torch.cuda"].refused
    assert "is_available" in found["torch.cuda"].present
    for each in found.values():
        assert each.total == len({*each.present, *each.refused, *each.missing}) > 0


@pytest.mark.slow
def test_the_names_are_pytorchs() -> None:
    torch = pytest.importorskip("torch")
    if torch.__version__.partition("+")[0].rpartition(".")[0] != _missing.PYTORCH:
        pytest.skip(f"the list is of PyTorch {_missing.PYTORCH}")
    # In a process of its own: PyTorch imports further modules in the course of other tests.
    code = "from tests import compat_names; print(compat_names.listing(), end='')"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert compat_names.PATH.read_text() == result.stdout


def test_the_page_is_current() -> None:
    if not PAGE.exists():
        pytest.skip("the page has not been written")
    message = "run python -m offgrad.compat --write docs/coverage.md"
    assert PAGE.read_text() == _compat.page(), message


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _compat.main([])
    assert "| `torch.nn.functional` |" in capsys.readouterr().out
    _compat.main(["--missing"])
    assert "**Missing in `torch.utils.data`**" in capsys.readouterr().out
    _compat.main(["--write", str(tmp_path / "page.md")])
    assert (tmp_path / "page.md").read_text() == _compat.page()


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (
            "utils.data.IterDataPipe",
            r"torch\.utils\.data\.IterDataPipe of PyTorch is not supported",
        ),
        ("nonexistent", r"'nonexistent', and PyTorch 2\.\d+ has no torch\.nonexistent$"),
        (
            "ones(1).reshap",
            r"has no torch\.Tensor\.reshap; the nearest .* offgrad\.Tensor\.reshape",
        ),
        ("nn.Liner", r"the nearest that exists is offgrad\.nn\.Linear"),
        ("linalg.softplus", r"the nearest that exists is offgrad\.softplus"),
        ("hub.wonder", r"offgrad\.hub has no attribute 'wonder'; if PyTorch has, it is not supp"),
    ],
)
def test_missing_names_say_what_there_is(expression: str, message: str) -> None:
    with pytest.raises(AttributeError, match=message) as caught:
        eval(f"offgrad.{expression}")
    assert type(caught.value).__name__ == "AttributeError"


def test_a_missing_name_costs_little_until_it_is_read() -> None:
    error = _missing.no_attribute("offgrad.nn", "Liner")
    assert error.args == ("offgrad.nn", "Liner")
    assert not hasattr(offgrad.ones(1), "shap")
