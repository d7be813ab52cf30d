"""Factors and solutions of many small matrices at once, beside those of LAPACK."""

from typing import Any

import numpy as np
import pytest
from scipy.linalg import lapack

import offgrad
from offgrad.ops._linalg import small_matrices

COUNT = 200


def positive(n: int, dtype: Any, count: int = COUNT) -> Any:
    rng = np.random.default_rng(n)
    x = rng.normal(size=(count, n, n))
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.normal(size=x.shape)
    return (x @ x.swapaxes(-1, -2).conj() + n * np.eye(n)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("n", [1, 3, 8])
def test_cholesky(n: int, dtype: Any) -> None:
    x = positive(n, dtype)
    assert small_matrices.are_many_and_small(x)
    factor, info = small_matrices.cholesky(x + np.triu(np.ones((n, n)), 1))
    np.testing.assert_allclose(factor, np.linalg.cholesky(x), 1e-12, 1e-12)
    assert not info.any()
    upper = offgrad.linalg.cholesky(offgrad.from_numpy(x), upper=True).numpy()
    np.testing.assert_allclose(upper.swapaxes(-1, -2).conj() @ upper, x, 1e-12, 1e-12)


def test_matrices_that_are_not_positive() -> None:
    x = positive(3, np.float64)
    x[5, 1, 1] = -4
    x[7, 0, 0] = -1
    factor, info = offgrad.linalg.cholesky_ex(offgrad.from_numpy(x))
    assert info.nonzero().reshape(-1).tolist() == [5, 7]
    assert info[[5, 7]].tolist() == [2, 1]
    alone = offgrad.linalg.cholesky_ex(offgrad.from_numpy(x[5].copy()))
    assert factor[5].tolist() == alone.L.tolist()
    with pytest.raises(RuntimeError, match="Batch element 5"):
        offgrad.linalg.cholesky(offgrad.from_numpy(x))


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (5, 2), (2, 5), (8, 8)])
def test_lu(shape: tuple[int, int], dtype: Any) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(10, 20, *shape)).astype(dtype)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.normal(size=x.shape)
    x[1, 2] = 0
    x[3, 4, :, 0] = 0
    factor, pivots, info = small_matrices.lu(x)
    routine = lapack.zgetrf if np.dtype(dtype).kind == "c" else lapack.dgetrf
    for place in np.ndindex(10, 20):
        want, exchanges, failed = routine(x[place])
        np.testing.assert_allclose(factor[place], want, 1e-12, 1e-12)
        assert pivots[place].tolist() == (exchanges + 1).tolist()
        assert info[place] == failed
    p, lower, upper = offgrad.linalg.lu(offgrad.from_numpy(x))
    np.testing.assert_allclose((p @ lower @ upper).numpy(), x, 1e-12, 1e-12)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("unitriangular", [False, True])
def test_triangular_systems(upper: bool, unitriangular: bool) -> None:
    a, b = positive(4, np.float64), np.random.default_rng(1).normal(size=(COUNT, 4, 3))
    options: dict[str, Any] = {"upper": upper, "unitriangular": unitriangular}
    found = offgrad.linalg.solve_triangular(*map(offgrad.from_numpy, (a, b)), **options).numpy()
    for place in range(0, COUNT, 37):
        pair = (offgrad.from_numpy(each[place].copy()) for each in (a, b))
        alone = offgrad.linalg.solve_triangular(*pair, **options).numpy()
        np.testing.assert_allclose(found[place], alone, 1e-12, 1e-12)
    triangle = np.triu(a) if upper else np.tril(a)
    if unitriangular:
        np.einsum("bii->bi", triangle)[...] = 1
    np.testing.assert_allclose(triangle @ found, b, 1e-10, 1e-10)


def test_a_zero_on_a_diagonal_gives_infinities() -> None:
    a, b = positive(3, np.float64), np.ones((COUNT, 3, 1))
    a[0, 0, 0] = 0
    found = offgrad.linalg.solve_triangular(*map(offgrad.from_numpy, (a, b)), upper=False)
    assert found[0, 0].isinf()
    assert found[1:].isfinite().all()


def test_gradients_of_batches_are_those_of_single_matrices() -> None:
    x: Any = offgrad.from_numpy(positive(3, np.float64)).requires_grad_()
    chosen: Any = x[7].detach().clone().requires_grad_()
    vector = offgrad.arange(3.0, dtype=offgrad.float64).reshape(3, 1)
    for value in (x, chosen):
        offgrad.cholesky_solve(vector.expand(*value.shape[:-1], 1), offgrad.linalg.cholesky(value))[
            ..., 0, 0
        ].sum().backward()
    np.testing.assert_allclose(x.grad[7].numpy(), chosen.grad.numpy(), 1e-10, 1e-12)


def test_few_or_large_or_empty_matrices_are_not_meant() -> None:
    for shape in ((10, 3, 3), (2000, 65, 65), (2000, 0, 3)):
        assert not small_matrices.are_many_and_small(np.empty(shape))
