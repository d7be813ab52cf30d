"""torch.linalg beyond values and derivatives: singular matrices, ranks, errors, shapes."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")

SINGULAR = [[1.0, 2.0], [2.0, 4.0]]
BATCH = [[[1.0, 0.0], [0.0, 2.0]], SINGULAR, [[1.0, 1.0], [0.0, 0.0]]]

RESULTS: dict[str, Callable[[Any], Any]] = {
    "inv_ex": lambda m: m.linalg.inv_ex(m.tensor(BATCH))[1],
    "solve_ex": lambda m: m.linalg.solve_ex(m.tensor(BATCH), m.ones(3, 2, 1))[1],
    "solve_ex regular": lambda m: m.linalg.solve_ex(m.tensor(BATCH), m.ones(3, 2, 1))[0][:1],
    "cholesky_ex": lambda m: m.linalg.cholesky_ex(m.tensor([[[1.0, 0], [0, -1]]] * 2))[1],
    "det singular": lambda m: m.det(m.tensor(BATCH)),
    "slogdet singular": lambda m: m.linalg.slogdet(m.tensor([[0.0, 0], [0, 1]])),
    "logdet negative": lambda m: m.logdet(m.tensor([[-1.0, 0], [0, 1]])),
    "rank": lambda m: m.linalg.matrix_rank(m.tensor(BATCH)),
    "rank hermitian": lambda m: m.linalg.matrix_rank(m.tensor(SINGULAR), hermitian=True),
    "rank atol": lambda m: m.linalg.matrix_rank(m.tensor([[2.0, 0], [0, 0.5]]), atol=1.0, rtol=0.0),
    "pinv singular": lambda m: m.linalg.pinv(m.tensor(BATCH)),
    "pinv hermitian": lambda m: m.linalg.pinv(m.tensor([[2.0, 1], [1, 0.5]]), hermitian=True),
    "pinv rtol": lambda m: m.linalg.pinv(m.tensor([[2.0, 0], [0, 0.5]]), rtol=0.5),
    "lstsq gelsd": lambda m: m.linalg.lstsq(
        m.tensor([[1.0, 0], [0, 2], [1, 1]]), m.tensor([[1.0], [2], [4]]), driver="gelsd"
    ),
    "lu_factor pivots": lambda m: m.linalg.lu_factor(m.tensor([[0.0, 1], [2, 3], [4, 4]])),
    "lu_factor unpivoted": lambda m: m.linalg.lu_factor(m.tensor([[2.0, 1], [4, 5]]), pivot=True),
    "lu": lambda m: m.linalg.lu(m.tensor([[0.0, 1], [2, 3], [4, 4]])),
    "lu_unpack": lambda m: m.lu_unpack(*m.linalg.lu_factor(m.tensor([[0.0, 1], [2, 3]]))),
    "triangular zero": lambda m: m.linalg.solve_triangular(
        m.tensor([[1.0, 1], [0, 0]]), m.ones(2, 1), upper=True
    ),
    "qr r": lambda m: m.linalg.qr(m.tensor([[3.0, 1], [4, 2]]), mode="r")[1].abs(),
    "qr complete": lambda m: m.linalg.qr(m.ones(3, 1), mode="complete")[1].abs(),
    "svd some": lambda m: m.svd(m.tensor([[3.0, 0], [0, 2], [0, 0]]))[1],
    "norms": lambda m: [
        m.linalg.norm(m.arange(6.0).reshape(2, 3), *each)
        for each in [(), (2, 1), (float("inf"),), ("fro",), ("nuc", (0, 1)), (1, (1, 0), True)]
    ],
    "vector norms": lambda m: m.linalg.vector_norm(m.arange(6.0).reshape(2, 3), 3, (0, 1), True),
    "frobenius": lambda m: m.norm(m.arange(6.0).reshape(2, 3), "fro"),
    "cond 1": lambda m: m.linalg.cond(m.tensor(BATCH), 1),
    "matrix_power 0": lambda m: m.matrix_power(m.ones(2, 2, 2), 0),
    "out": lambda m: m.linalg.inv(m.tensor([[2.0]]), out=m.empty(1, 1)),
    "methods": lambda m: (m.eye(2) * 3).inverse().det().reshape(1).cpu(),
    "diagonal": lambda m: m.linalg.diagonal(m.arange(4).reshape(2, 2), offset=1),
}

ERRORS: dict[str, Callable[[Any], Any]] = {
    "singular inverse": lambda m: m.linalg.inv(m.tensor(SINGULAR)),
    "singular solve": lambda m: m.linalg.solve(m.tensor(BATCH), m.ones(3, 2, 1)),
    "not positive": lambda m: m.linalg.cholesky(m.tensor([[1.0, 0], [0, -1]])),
    "not square": lambda m: m.linalg.det(m.ones(2, 3)),
    "integers": lambda m: m.linalg.inv(m.ones(2, 2, dtype=m.int64)),
    "half": lambda m: m.linalg.inv(m.ones(2, 2, dtype=m.float16)),
    "a vector": lambda m: m.linalg.svd(m.ones(2)),
    "qr mode": lambda m: m.linalg.qr(m.ones(2, 2), mode="raw"),
    "shapes": lambda m: m.linalg.solve(m.eye(2), m.ones(3, 1)),
    "dtypes": lambda m: m.linalg.solve(m.eye(2), m.ones(2, 1, dtype=m.float64)),
    "matrix_norm order": lambda m: m.linalg.matrix_norm(m.eye(2), 3),
    "driver": lambda m: m.linalg.lstsq(m.eye(2), m.ones(2, 1), driver="x"),
    "tensorinv": lambda m: m.linalg.tensorinv(m.ones(2, 3), 1),
    "lu_unpack pivots": lambda m: m.lu_unpack(m.eye(3), m.zeros(3, dtype=m.int32)),
    "lu_solve pivots": lambda m: m.linalg.lu_solve(
        m.eye(3), m.full((3,), 9, dtype=m.int32), m.ones(3, 1)
    ),
    "qr r backward": lambda m: (
        m.linalg.qr(m.eye(2, requires_grad=True), mode="r")[1].sum().backward()
    ),
    "phases": lambda m: (
        m.linalg.eigh(m.tensor([[2, 1j], [-1j, 1]], requires_grad=True))[1].sum().abs().backward()
    ),
}


def flat(result: Any) -> list[Any]:
    return [each for part in result for each in flat(part)] if isinstance(
        result, tuple | list
    ) else [result]  # fmt: skip


@pytest.mark.parametrize("name", RESULTS)
def test_results_are_those_of_torch(name: str) -> None:
    mine, theirs = flat(RESULTS[name](offgrad)), flat(RESULTS[name](torch))
    for a, b in zip(mine, theirs, strict=True):
        assert a.detach().numpy().dtype == b.numpy().dtype
        np.testing.assert_allclose(a.numpy(), b.numpy(), 1e-5, 1e-6)


@pytest.mark.parametrize(
    "pivots", [[0, 0, 0], [1, 2, 4], [1, 2, -3], [1, -2, -3], [-4, -4, 3], [1, 2]]
)
def test_ldl_solve_refuses_pivots_outside_of_the_matrix(pivots: list[int]) -> None:
    """LAPACK would read and write outside."""
    with pytest.raises(RuntimeError, match=r"ldl_solve: (pivots must|each matrix needs)"):
        offgrad.linalg.ldl_solve(
            offgrad.eye(3), offgrad.tensor(pivots, dtype=offgrad.int32), offgrad.ones(3, 1)
        )


def test_shapes_of_ldl_factors() -> None:
    x, b = offgrad.empty(2, 3, 3, device="meta"), offgrad.empty(3, 1, device="meta")
    factors, pivots = offgrad.linalg.ldl_factor(x)
    assert (factors.shape, pivots.shape, pivots.dtype) == ((2, 3, 3), (2, 3), offgrad.int32)
    assert offgrad.linalg.ldl_solve(factors, pivots, b).shape == (2, 3, 1)


@pytest.mark.parametrize("name", ERRORS)
def test_errors_have_torch_s_class(name: str) -> None:
    with pytest.raises(RuntimeError) as theirs:
        ERRORS[name](torch)
    with pytest.raises(RuntimeError) as mine:
        ERRORS[name](offgrad)
    assert type(mine.value).__name__.strip("_") == type(theirs.value).__name__.strip("_")


def test_decompositions_are_named_tuples() -> None:
    for name in ("qr", "svd", "eigh", "eig", "slogdet", "lu_factor", "lu"):
        mine = getattr(offgrad.linalg, name)(offgrad.eye(2))
        theirs = getattr(torch.linalg, name)(torch.eye(2))
        fields = {each for each in dir(theirs) if not each.startswith(("_", "n_"))}
        for field in fields - set(dir(tuple)):
            assert hasattr(mine, field), (name, field)


def test_gradient_of_a_singular_determinant() -> None:
    x = offgrad.tensor(SINGULAR, requires_grad=True, dtype=offgrad.float64)
    offgrad.det(x).backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), [[4, -2], [-2, 1]], atol=1e-12)


EMPTY = [(0, 0), (2, 0, 0), (0, 3), (3, 0), (2, 3, 0)]


@pytest.mark.parametrize("shape", EMPTY, ids=str)
def test_matrices_without_elements(shape: tuple[int, ...]) -> None:
    square = shape[-1] == shape[-2]
    calls: dict[str, Any] = {
        "cond": lambda m, x: m.linalg.cond(x),
        **{
            f"norm {order}": lambda m, x, order=order: m.linalg.matrix_norm(x, order)
            for order in (1, 2, math.inf, "nuc", "fro")
            if shape[-2:] != (0, 3) or order != 1  # which counts columns
        },
        "solutions": lambda m, x: m.linalg.lstsq(x, m.ones(*shape[:-1], 2)),
    }
    if square:
        calls |= {name: lambda m, x, name=name: getattr(m.linalg, name)(x)
                  for name in ("lu", "lu_factor", "cholesky", "cholesky_ex")}  # fmt: skip
    for name, call in calls.items():
        mine, theirs = (call(m, m.ones(*shape)) for m in (offgrad, torch))
        if not isinstance(mine, tuple):
            mine, theirs = (mine,), (theirs,)
        for have, want in zip(mine, theirs, strict=True):
            assert (*have.shape,) == (*want.shape,), name
            assert have.tolist() == want.tolist(), name


def test_residuals_are_those_of_torch() -> None:
    for driver in (None, "gelsy", "gels", "gelsd", "gelss"):
        mine, theirs = (
            m.linalg.lstsq(m.eye(4)[:, :2], m.ones(4, 2), driver=driver) for m in (offgrad, torch)
        )
        for have, want in zip(mine, theirs, strict=True):
            assert (*have.shape,) == (*want.shape,)
            assert have.reshape(-1).tolist() == pytest.approx(want.reshape(-1).tolist(), abs=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize(
    ("of_a", "of_b"),
    [
        ((300, 300), (300, 5)),
        ((2, 300, 300), (300, 1)),
        ((300, 300), (4, 300, 2)),
        ((2, 1, 256, 256), (3, 256, 2)),
        ((300, 300), (300, 0)),
        ((0, 300, 300), (300, 2)),
    ],
)
def test_large_systems(of_a: tuple[int, ...], of_b: tuple[int, ...], dtype: str) -> None:
    """Compared with NumPy: PyTorch's LAPACK can hang in a process of many threads."""
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=shape) for shape in (of_a, of_b))
    a = (a + 20 * np.eye(of_a[-1])).swapaxes(-1, -2)
    ours = [offgrad.tensor(each, dtype=getattr(offgrad, dtype)) for each in (a, b)]
    before = [each.clone() for each in ours]
    for result, expected in (
        (offgrad.linalg.solve(*ours), np.linalg.solve(a, b)),
        (offgrad.linalg.inv(ours[0]), np.linalg.inv(a)),
    ):
        assert result.is_contiguous()
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-3, atol=1e-4)
    assert all(map(offgrad.equal, ours, before))


def test_large_singular_matrices() -> None:
    matrices = offgrad.eye(300).repeat(2, 1, 1)
    matrices[1, 7, 7] = 0
    with pytest.raises(offgrad.linalg.LinAlgError, match="pivot 8 of its LU factors is zero"):
        offgrad.linalg.inv(matrices)
    solution, info = offgrad.linalg.solve_ex(matrices, offgrad.ones(300, 1))
    assert info.tolist() == [0, 8]
    assert solution[0].eq(1).all()
    assert solution[1].isnan().all()
