"""Products of bfloat16 by the CPU's instructions: sums in float32, one rounding, any shape."""

import os
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from offgrad import kernels
from offgrad.kernels import _bfloat16_products, _bfloat16_tiles
from offgrad.kernels._bfloat16_tiles import available, fastest, instructions
from offgrad.kernels._products import matmul
from tests.forked import run_in_child

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
SHAPES = [
    (1, 1, 1), (0, 40, 40), (40, 0, 40), (32, 32, 32), (33, 33, 33), (61, 95, 35), (96, 64, 64),
    (97, 512, 160), (100, 70, 50), (200, 129, 97), (700, 160, 300), (64, 3000, 40), (31, 900, 900),
]  # fmt: skip


def _names() -> list[str]:
    found = available(_bfloat16_tiles._target()[1])
    return [each for each in found if each != "amx" or _bfloat16_tiles._has_permission()]


@pytest.fixture(params=["amx", "avx512", "float32"])
def name(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Multiply with these instructions."""
    chosen = "" if request.param == "float32" else request.param
    if chosen and (chosen not in _names() or kernels.backend() != "numba"):
        pytest.skip(f"this CPU, or this backend, has no {request.param}")
    monkeypatch.setattr(_bfloat16_products, "instructions", lambda: chosen)
    return chosen


def _sample(rng: np.random.Generator, shape: tuple[int, ...], order: str) -> Any:
    if order == "t":
        return rng.normal(size=shape[::-1]).astype(BFLOAT16).T
    return rng.normal(size=shape).astype(BFLOAT16)


def _check(a: Any, b: Any, bias: Any = None) -> Any:
    exact = np.matmul(a.astype(np.float64), b.astype(np.float64))
    sizes = np.matmul(np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64)))
    if bias is not None:
        exact = exact + bias.astype(np.float64)
        sizes = sizes + np.abs(bias.astype(np.float64))
    out = np.full(exact.shape, np.nan, BFLOAT16)
    matmul(a, b, out, bias)
    # Half a last digit of bfloat16 beside the error of float32 sums.
    bound = np.abs(exact) * 2.0**-8 * 1.01 + sizes * 2.0**-24 * (4 + np.sqrt(a.shape[-1])) + 1e-37
    assert (np.abs(out.astype(np.float64) - exact) <= bound).all()
    return out


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("orders", ["nn", "nt", "tn", "tt"])
def test_values(
    name: str, shape: tuple[int, int, int], orders: str, rng: np.random.Generator
) -> None:
    n, k, m = shape
    a, b = _sample(rng, (n, k), orders[0]), _sample(rng, (k, m), orders[1])
    _check(a, b)
    _check(a, b, rng.normal(size=m).astype(BFLOAT16))


def test_panels_in_groups(
    name: str, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    a, b, bias = (rng.normal(size=each).astype(BFLOAT16) for each in ((99, 70), (70, 333), (333,)))
    whole = _check(a, b, bias)
    monkeypatch.setattr(_bfloat16_products, "_MAX_PANELS_NBYTES", 3 * 96 * 64)
    np.testing.assert_array_equal(_check(a, b, bias), whole)
    monkeypatch.setattr(_bfloat16_products, "_MAX_PANELS_NBYTES", 1)
    np.testing.assert_array_equal(_check(a, b, bias), whole)


@pytest.mark.parametrize("batches", [((3,), (3,)), ((2, 3), (2, 3)), ((4, 1), (2,)), ((), (5,))])
def test_batches(name: str, batches: Any, rng: np.random.Generator) -> None:
    a = rng.normal(size=(*batches[0], 70, 65)).astype(BFLOAT16)
    b = rng.normal(size=(*batches[1], 65, 90)).astype(BFLOAT16)
    _check(a, b)
    if len(batches[0]) == 2 == len(batches[1]):
        strided = [each.swapaxes(0, 1).copy().swapaxes(0, 1) for each in (a, b)]
        np.testing.assert_array_equal(_check(*strided), _check(a, b))


@pytest.mark.parametrize("step", [2, 3])
def test_strides(name: str, step: int, rng: np.random.Generator) -> None:
    a = rng.normal(size=(150, 260)).astype(BFLOAT16)[:, ::step]
    b = rng.normal(size=(130 * step, 99)).astype(BFLOAT16)[::step][: a.shape[1]]
    out, wide = np.empty((150, 99), BFLOAT16), np.zeros((150, 120), BFLOAT16)
    matmul(a, b, out)
    matmul(a, b, wide[:, 5:104])
    np.testing.assert_array_equal(wide[:, 5:104], out)
    assert not wide[:, :5].any()
    assert not wide[:, 104:].any()
    _check(a, b)


def test_bits_depend_on_no_threads(name: str, rng: np.random.Generator) -> None:
    a, b = rng.normal(size=(600, 300)).astype(BFLOAT16), rng.normal(size=(300, 500))
    before, results = kernels.get_num_threads(), set()
    try:
        for threads in (1, 2, 5):
            kernels.set_num_threads(threads)
            out = np.empty((600, 500), BFLOAT16)
            matmul(a, b.astype(BFLOAT16), out)
            results.add(out.tobytes())
    finally:
        kernels.set_num_threads(before)
    assert len(results) == 1


def test_rows_do_not_depend_on_one_another(name: str, rng: np.random.Generator) -> None:
    a = rng.normal(size=(130, 96)).astype(BFLOAT16)
    b = rng.normal(size=(96, 80)).astype(BFLOAT16)
    whole, part = np.empty((130, 80), BFLOAT16), np.empty((130, 80), BFLOAT16)
    matmul(a, b, whole)
    a[7], a[128, 3], a[50, 0] = np.nan, np.inf, -np.inf
    matmul(a, b, part)
    changed = np.zeros(130, bool)
    changed[[7, 128, 50]] = True
    np.testing.assert_array_equal(part[~changed], whole[~changed])
    assert np.isnan(part[7].astype(np.float32)).all()
    assert np.isinf(part[[50, 128]].astype(np.float32)).all()


def test_sums_are_float32(name: str) -> None:
    a = np.ones((64, 4096), BFLOAT16)
    out = np.empty((64, 64), BFLOAT16)
    matmul(a, np.ones((4096, 64), BFLOAT16), out)
    assert (out == 4096).all()
    a[:, 1:] *= BFLOAT16.type(2.0**-9)  # each is lost beside 1 in bfloat16
    matmul(a, np.ones((4096, 64), BFLOAT16), out)
    assert (out == 9).all()


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ("", []),
        ("+avx512f,+avx512bw", []),
        ("+avx512f,+avx512bf16,-amx-bf16,-amx-tile", ["avx512"]),
        ("+avx512f,+avx512bf16,+amx-tile,-amx-bf16", ["avx512"]),
        ("+amx-tile,+amx-bf16,+avx512bf16", []),
        ("+avx512f,+amx-tile,+amx-bf16", []),  # AMX's sums are rounded by AVX512-BF16
        ("+avx512f,+avx512bf16,+amx-tile,+amx-bf16", ["amx", "avx512"]),
    ],
)
def test_never_instructions_that_the_cpu_lacks(features: str, expected: list[str]) -> None:
    assert available(features) == expected


def test_avx512_is_chosen_where_it_is_faster() -> None:
    assert fastest("znver5", ["avx512"]) == "avx512"
    assert fastest("cooperlake", ["avx512"]) == ""
    assert fastest("emeraldrapids", ["amx", "avx512"]) == "amx"
    assert fastest("znver3", []) == ""


def _ask(**environment: str) -> str:
    code = (
        "import warnings; warnings.simplefilter('always')\n"
        "from offgrad.kernels import _bfloat16_tiles as t; print(t.instructions() or 'none')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip() + done.stderr


def test_the_choice_can_be_overridden() -> None:
    assert _ask(OFFGRAD_BFLOAT16="float32") == "none"
    for each in _names():
        assert _ask(OFFGRAD_BFLOAT16=each) == each
    text = _ask(OFFGRAD_BFLOAT16="mmx")
    assert text.startswith("none")
    assert "OFFGRAD_BFLOAT16 must be one of" in text
    assert "'mmx'" in text
    assert _ask(OFFGRAD_KERNELS="numpy") == "none"


def test_numba_without_the_features_uses_none() -> None:
    assert _ask(NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="") == "none"


def test_a_forked_child_multiplies(rng: np.random.Generator) -> None:
    a, b = (rng.normal(size=(96, 96)).astype(BFLOAT16) for _ in range(2))
    expected = _check(a, b)

    def in_child() -> None:
        np.testing.assert_array_equal(_check(a, b), expected)

    run_in_child(in_child)


def test_instructions_are_shown() -> None:
    import offgrad

    config = offgrad.show_config("dicts")
    assert config is not None
    assert config["Kernels"]["bfloat16 products"] == (instructions() or "in float32")
