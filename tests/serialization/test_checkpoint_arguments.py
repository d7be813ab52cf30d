"""checkpoint.save and load: what they refuse, before anything is written or loaded."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import checkpoint, nn


@pytest.mark.parametrize(
    ("step", "error", "words"),
    [(-1, ValueError, "from 0, got -1"), ("3", TypeError, "an int, got a str"),
     (1.5, TypeError, "an int, got a float")],
)  # fmt: skip
def test_a_step_is_a_number_of_steps(
    step: Any, error: type[Exception], words: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        checkpoint.save(tmp_path / "new", step=step, x=1)
    assert not list(tmp_path.iterdir())


def test_numpy_s_integers_are_steps(tmp_path: Path) -> None:
    assert checkpoint.save(tmp_path, step=np.int64(7), x=1).path.name == "checkpoint-00000007.pt"  # type: ignore[arg-type]
    assert checkpoint.load(tmp_path)["step"] == 7


def test_a_folder_needs_a_step(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="give step="):
        checkpoint.save(tmp_path, x=1)
    assert not list(tmp_path.iterdir())


def test_objects_are_loaded_or_none_is(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    checkpoint.save(tmp_path / "file", model=nn.Linear(2, 2), count=3)
    before = model.weight.clone()
    with pytest.raises(TypeError, match="but count has the type int; load"):
        checkpoint.load(tmp_path / "file", model=model, count=3)
    assert model.weight.equal(before)
    assert checkpoint.load(tmp_path / "file", model=model)["count"] == 3
    assert not model.weight.equal(before)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="does not exist"):
        checkpoint.save(tmp_path / "none" / "file", x=offgrad.ones(2))


def test_a_save_says_where_it_is(tmp_path: Path) -> None:
    save = checkpoint.save(tmp_path, step=3, x=1, background=True)
    save.wait()
    assert repr(save) == f"<Save of {tmp_path / 'checkpoint-00000003.pt'}: written>"
