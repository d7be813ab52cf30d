"""Products of float32 by AMX in two parts: below a stated error, and for finite numbers alone."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import kernels
from offgrad.kernels import _bfloat16_tiles, _products, _split_products
from offgrad.kernels._products import matmul
from offgrad.nn import functional as F
from tests.forked import run_in_child

SHAPES = [
    (64, 64, 64), (65, 70, 99), (96, 512, 160), (100, 1100, 300), (300, 600, 1100), (257, 256, 66),
    (64, 3000, 1700),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _in_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if _bfloat16_tiles.instructions() != "amx" or kernels.backend() != "numba":
        pytest.skip("this CPU, or this backend, has no AMX")
    monkeypatch.setattr(_products, "DIRECT_COST", 0)
    kernels.allow_split_products(True)
    yield
    kernels.allow_split_products(False)


def _in_full(a: Any, b: Any, bias: Any = None) -> Any:
    kernels.allow_split_products(False)
    out = _product(a, b, bias)
    kernels.allow_split_products(True)
    return out


def _product(a: Any, b: Any, bias: Any = None) -> Any:
    shape = *np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]
    out = np.full(shape, np.nan, np.float32)
    matmul(a, b, out, bias)
    return out


def _check(a: Any, b: Any, bias: Any = None) -> Any:
    out = _product(a, b, bias)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    sizes = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    if bias is not None:
        exact, sizes = exact + bias, sizes + np.abs(bias)
    error = np.abs(out - exact) / sizes
    assert error.max() < 2.0**-16
    assert not np.array_equal(out, _in_full(a, b, bias))
    return out


def _sample(rng: np.random.Generator, shape: tuple[int, ...], order: str) -> Any:
    if order == "s":
        return rng.normal(size=(shape[0], 2 * shape[1])).astype(np.float32)[:, ::2]
    if order == "t":
        return rng.normal(size=shape[::-1]).astype(np.float32).T
    return rng.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("orders", ["nn", "nt", "tn", "tt", "ss"])
def test_values(shape: tuple[int, int, int], orders: str, rng: np.random.Generator) -> None:
    n, k, m = shape
    a, b = _sample(rng, (n, k), orders[0]), _sample(rng, (k, m), orders[1])
    out = _check(a, b)
    np.testing.assert_array_equal(_check(a.copy(), b.copy()), out)
    _check(a, b, rng.normal(size=m).astype(np.float32))


@pytest.mark.parametrize("exponent", [-90, -60, 60, 100])
def test_sizes_of_numbers(exponent: int, rng: np.random.Generator) -> None:
    a, b = (rng.normal(size=(128, 128)).astype(np.float32) for _ in range(2))
    _check(a * np.float32(2.0**exponent), b * np.float32(2.0 ** min(0, -exponent)))


@pytest.mark.parametrize("batches", [((3,), (3,)), ((2, 3), (2, 3)), ((4, 1), (2,)), ((), (5,))])
def test_batches(batches: Any, rng: np.random.Generator) -> None:
    a = rng.normal(size=(*batches[0], 130, 165)).astype(np.float32)
    b = rng.normal(size=(*batches[1], 165, 90)).astype(np.float32)
    _check(a, b)


def test_nothing_is_written_around(rng: np.random.Generator) -> None:
    a, b = (rng.normal(size=each).astype(np.float32) for each in ((150, 600), (600, 99)))
    wide = np.zeros((150, 120), np.float32)
    matmul(a, b, wide[:, 5:104])
    np.testing.assert_array_equal(wide[:, 5:104], _check(a, b))
    assert not wide[:, :5].any()
    assert not wide[:, 104:].any()


def test_bits_depend_on_no_threads(rng: np.random.Generator) -> None:
    a, b = (rng.normal(size=each).astype(np.float32) for each in ((600, 700), (700, 1700)))
    before, results = kernels.get_num_threads(), set()
    try:
        for threads in (1, 2, 5):
            kernels.set_num_threads(threads)
            results.add(_product(a, b).tobytes())
    finally:
        kernels.set_num_threads(before)
    assert len(results) == 1


def test_rows_and_columns_do_not_depend_on_one_another(rng: np.random.Generator) -> None:
    a, b = (rng.normal(size=each).astype(np.float32) for each in ((300, 600), (600, 900)))
    whole = _check(a, b)
    np.testing.assert_array_equal(_check(a[17:181], b[:, 40:801]), whole[17:181, 40:801])


@pytest.mark.parametrize(
    ("place", "number"),
    [*product(("a", "b", "bias"), (np.inf, -np.inf, np.nan)), ("a", 3.4e38), ("b", -3.4e38)],
)
def test_numbers_without_parts(place: str, number: float, rng: np.random.Generator) -> None:
    a, b, bias = (
        (1e-3 * rng.normal(size=each)).astype(np.float32) for each in ((150, 600), (600, 99), 99)
    )
    {"a": a[149], "b": b[:, 98], "bias": bias}[place][70] = number
    np.testing.assert_array_equal(_product(a, b, bias), _in_full(a, b, bias))


def test_results_beyond_float32(rng: np.random.Generator) -> None:
    a = np.full((64, 64), 1e30, np.float32)
    assert np.isposinf(_product(a, a)).all()


def test_other_dtypes_and_small_products_have_full_precision(rng: np.random.Generator) -> None:
    for dtype, side in ((np.float64, 200), (np.float32, 20)):
        a, b = (rng.normal(size=(side, side)).astype(dtype) for _ in range(2))
        out, full = np.empty_like(a), np.empty_like(a)
        matmul(a, b, out)
        kernels.allow_split_products(False)
        matmul(a, b, full)
        kernels.allow_split_products(True)
        np.testing.assert_array_equal(out, full)


def test_without_amx_products_have_full_precision(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    a, b = (rng.normal(size=(200, 200)).astype(np.float32) for _ in range(2))
    monkeypatch.setattr(_split_products, "instructions", lambda: "avx512")
    np.testing.assert_array_equal(_product(a, b), _in_full(a, b))


def test_in_a_forked_process(rng: np.random.Generator) -> None:
    a, b = (rng.normal(size=(200, 200)).astype(np.float32) for _ in range(2))
    before = _check(a, b)
    run_in_child(lambda: np.testing.assert_array_equal(_product(a, b), before))


@pytest.mark.parametrize("policy", ["disk", "recompute", "recompute,then=disk"])
def test_policies_give_the_same_bits(policy: str) -> None:
    def gradients(policy: str) -> list[bytes]:
        generator = offgrad.Generator().manual_seed(0)
        x, w, v = (offgrad.randn(128, 128, generator=generator).requires_grad_() for _ in range(3))
        with offgrad.offload(policy):
            loss = (F.gelu(x @ w) @ v.T).sin().sum()
        return [each.numpy().tobytes() for each in offgrad.autograd.grad(loss, (x, w, v))]

    before = gradients("keep")
    assert gradients(policy) == before
    kernels.allow_split_products(False)
    assert gradients("keep") != before
