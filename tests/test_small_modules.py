"""Small modules that scripts ask: onnx, __config__, backends.mha, hub of a folder, quasirandom."""

import sys
from pathlib import Path
from typing import Any

import pytest

import offgrad as og
from offgrad.nn.modules.transformer import _get_activation_fn, _get_clones

HUBCONF = '''
"""A repository."""
import helper

def model(width, scale=1):
    """Return a model."""
    return helper.SCALE * width * scale

_private = len
'''


def test_a_model_is_not_exported() -> None:
    assert not og.onnx.is_in_onnx_export()
    with pytest.raises(RuntimeError, match="exports no graphs"):
        og.onnx.export(None, (), "model.onnx")


def test_the_machine_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert "BLAS" in og.__config__.show()
    assert str(og.get_num_threads()) in og.__config__.parallel_info()
    assert capsys.readouterr().out == ""


def test_the_flag_of_fast_attention_is_kept() -> None:
    mha = og.backends.mha
    assert mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        assert not mha.get_fastpath_enabled()
    finally:
        mha.set_fastpath_enabled(True)


def test_names_of_types_and_helpers_that_libraries_import() -> None:
    assert isinstance(og.float32, og.types._dtype)
    assert isinstance(og.device("cpu"), og.types._device)
    assert isinstance(og.strided, og.types._layout)
    og._C._log_api_usage_once("event")
    assert _get_activation_fn("relu")(og.tensor([-1.0])).item() == 0
    with pytest.raises(RuntimeError, match="relu/gelu"):
        _get_activation_fn("tanh")
    assert len(_get_clones(og.nn.Linear(1, 1), 3)) == 3
    utils = og.distributions.utils
    assert utils._standard_normal((2, 3), og.float64, "cpu").shape == (2, 3)
    assert utils._sum_rightmost(og.ones(2, 3, 4), 2).tolist() == [12, 12]


def test_hub_loads_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "hubconf.py").write_text(HUBCONF)
    (tmp_path / "helper.py").write_text("SCALE = 10\n")
    folder, path = str(tmp_path), list(sys.path)
    try:
        assert og.hub.load(folder, "model", 3, source="local", scale=2, verbose=False) == 60
        assert og.hub.list(folder, source="local") == ["model"]
        assert og.hub.help(folder, "model", source="local") == "Return a model."
        with pytest.raises(RuntimeError, match="Cannot find callable other"):
            og.hub.load(folder, "other", source="local")
    finally:
        sys.modules.pop("helper", None)
    assert sys.path == path
    with pytest.raises(RuntimeError, match=r"hubconf\.py"):
        og.hub.load(str(tmp_path / "none"), "model", source="local")
    with pytest.raises(RuntimeError, match="downloads nothing"):
        og.hub.load("owner/repository", "model")


@pytest.mark.parametrize("dimension", [1, 3, 50])
def test_points_of_sobol(dimension: int) -> None:
    torch = pytest.importorskip("torch")
    engines: list[Any] = [m.quasirandom.SobolEngine(dimension) for m in (og, torch)]
    for count in (1, 6, 0):
        have, want = (engine.draw(count) for engine in engines)
        assert have.tolist() == want.tolist()
        assert list(have.shape) == list(want.shape)
    for engine in engines:
        engine.fast_forward(5)
    have, want = (
        engine.draw(3, dtype=m.float64) for engine, m in zip(engines, (og, torch), strict=True)
    )
    assert have.tolist() == want.tolist()
    assert repr(engines[0]) == repr(engines[1])
    assert engines[0].reset().draw_base2(3).tolist() == engines[1].reset().draw_base2(3).tolist()
    for engine in engines:
        with pytest.raises(ValueError, match="balance"):
            engine.draw_base2(2)


def test_scrambled_points_are_even_and_repeat() -> None:
    engine = og.quasirandom.SobolEngine(2, scramble=True, seed=5)
    points = engine.draw(64)
    assert engine.reset().draw(64).tolist() == points.tolist()
    cells = (points * 8).long()
    assert len(cells.unique(dim=0)) == 64  # one in each of 8x8 cells
    out = og.empty(0)
    assert engine.draw(2, out=out) is out
    assert out.shape == (2, 2)
    assert repr(engine) == "SobolEngine(dimension=2, scramble=True, seed=5)"
    og.manual_seed(1)
    first = og.quasirandom.SobolEngine(1, scramble=True).draw(3).tolist()
    og.manual_seed(1)
    assert og.quasirandom.SobolEngine(1, scramble=True).draw(3).tolist() == first
    with pytest.raises(ValueError, match="from 0 on"):
        engine.draw(-1)
    with pytest.raises(ValueError, match="dimensionality"):
        og.quasirandom.SobolEngine(0)
