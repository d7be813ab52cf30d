"""Names that few programs use, compared with PyTorch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad.autograd import gradcheck, gradgradcheck

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")

NUMBERS: dict[str, Any] = {
    "sym_max": lambda m: [m.sym_max(1, 2.0), m.sym_max(3, 2), m.sym_min(1, 2.0), m.sym_min(1, 2)],
    "sym_int": lambda m: [m.sym_int(3.7), m.sym_int(-3.7), m.sym_float(3), m.sym_sqrt(4)],
    "sym_sum": lambda m: [m.sym_sum([1, 2, 3]), m.sym_sum(1, 2), m.sym_ite(True, 1, 2)],
    "sym_not": lambda m: [m.sym_not(True), m.sym_not(0), m.sym_fresh_size(3)],
    "sym_constrain_range": lambda m: [m.sym_constrain_range(3, min=1, max=5)],
    "SymInt": lambda m: [isinstance(3, m.SymInt), isinstance(3.0, m.SymFloat)],
    "hash_tensor": lambda m: [
        m.hash_tensor(m.tensor([1.5, -2.0, 0.0])).item(),
        m.hash_tensor(m.tensor([1.5, -2.0], dtype=m.float16)).item(),
        m.tensor([[1, 2, 3], [4, 5, -6]]).hash_tensor(1).tolist(),
        m.hash_tensor(m.tensor([[True, True]]), dim=(0, 1), keepdim=True).tolist(),
    ],
    "cudnn_is_acceptable": lambda m: [m.cudnn_is_acceptable(m.ones(1))],
    "airy_ai": lambda m: m.special.airy_ai(m.tensor([0.0, 1, -3, 9])).tolist(),
    "spherical_bessel_j0": lambda m: m.special.spherical_bessel_j0(
        m.tensor([0.0, 0.05, 1, -3, 100, float("inf")], dtype=m.float64)
    ).tolist(),
    "batch_norm_update_stats": lambda m: _updated(m),
    "assert_int_or_pair": lambda m: [m.nn.functional.assert_int_or_pair((1, 2), "n", "{}")],
    "boolean_dispatch": lambda m: [
        m.nn.functional.boolean_dispatch(
            "x", 1, False, lambda *a, **k: 1, lambda *a, **k: 2, "", "f"
        )(*args, **options)
        for args, options in (((0,), {}), ((0, True), {}), ((0,), {"x": False}))
    ],
    "GRID_SAMPLE": lambda m: [
        m.nn.functional.GRID_SAMPLE_INTERPOLATION_MODES["bicubic"],
        m.nn.functional.GRID_SAMPLE_PADDING_MODES["border"],
        m.nn.functional.BroadcastingList2[int] is None,
    ],
    "factory_kwargs": lambda m: [
        sorted(m.nn.factory_kwargs({"device": "cpu", "factory_kwargs": {"dtype": None}})),
        m.nn.factory_kwargs(None),
    ],
    "LinearCrossEntropyOptions": lambda m: [
        repr(m.nn.LinearCrossEntropyOptions(batch_chunk_size=4)),
        m.nn.LinearCrossEntropyOptions() == m.nn.LinearCrossEntropyOptions(),
    ],
}


def _updated(m: Any) -> Any:
    x, mean, variance = m.arange(12.0).reshape(2, 3, 2) ** 2, m.zeros(3), m.ones(3)
    found = m.batch_norm_update_stats(x, mean, variance, 0.25)
    return [each.tolist() for each in (*found, mean, variance)]


@pytest.mark.parametrize("name", NUMBERS)
def test_results(name: str) -> None:
    mine: Any = NUMBERS[name](offgrad)
    theirs: Any = NUMBERS[name](torch)
    if any(isinstance(each, float) for each in theirs):
        np.testing.assert_allclose(mine, theirs, rtol=2e-6, atol=1e-12)
        assert [*map(type, mine)] == [*map(type, theirs)]
    elif name == "batch_norm_update_stats":
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)
    else:
        assert mine == theirs


F: Any = offgrad.nn.functional
ERRORS: dict[str, tuple[Any, Any]] = {
    "sym_constrain_range": (RuntimeError, lambda m: m.sym_constrain_range(3, min=4, max=5)),
    "hash mode": (RuntimeError, lambda m: m.hash_tensor(m.ones(1), mode=1)),
    "hash of nothing": (RuntimeError, lambda m: m.hash_tensor(m.ones(0))),
    "binomial dtype": (ValueError, lambda m: m.binomial(m.tensor([1]), m.tensor([0.5]))),
    "pair": (AssertionError, lambda m: m.nn.functional.assert_int_or_pair((1, 2, 3), "n", "{}")),
    "factory": (TypeError, lambda m: m.nn.factory_kwargs({"devic": 1})),
    "options": (ValueError, lambda m: m.nn.LinearCrossEntropyOptions(chunking_method="x")),
    "policy": (ValueError, lambda m: m.nn.LinearCrossEntropyOptions(acc_policy="x")),
    "pca q": (ValueError, lambda m: m.pca_lowrank(m.ones(3, 2), q=4)),
    "pca niter": (ValueError, lambda m: m.pca_lowrank(m.ones(3, 2), niter=-1)),
    "lobpcg rows": (ValueError, lambda m: m.lobpcg(m.eye(4), k=2)),
    "ldl of oblong": (RuntimeError, lambda m: m.linalg.ldl_factor(m.ones(2, 3))),
    "ormqr": (RuntimeError, lambda m: m.ormqr(m.ones(3, 2), m.ones(2), m.ones(2, 2))),
    "file": (RuntimeError, lambda m: m.from_file("/nowhere/at/all", size=3)),
    "offsets": (RuntimeError, lambda m: m.nn.functional.grouped_mm(m.ones(2, 2), m.ones(1, 2, 2))),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    kind, call = ERRORS[name]
    for m in (offgrad, torch):
        with pytest.raises(kind):
            call(m)


def test_loops_carry_gradients() -> None:
    # Not beside PyTorch's, which compile, and switch off the checks of distributions.
    x = offgrad.ones(2, requires_grad=True)
    taken = [offgrad.cond(p, lambda a: a + 1, lambda a: a - 1, (x,)) for p in (x[:1] > 0, False)]
    assert [each.tolist() for each in taken] == [[2, 2], [0, 0]]
    count, y = offgrad.while_loop(
        lambda i, a: i < 3, lambda i, a: (i + 1, a * 2), (offgrad.tensor(0), x)
    )
    (grad,) = offgrad.autograd.grad(y.sum(), x)
    assert count.item() == 3
    assert grad.tolist() == [8, 8]
    with pytest.raises(RuntimeError, match="same shapes"):
        offgrad.while_loop(lambda a: True, lambda a: a[:1], (x,))
    with pytest.raises(RuntimeError, match="one element"):
        offgrad.cond(x, lambda: 1, lambda: 2)


def test_indefinite_factors() -> None:
    rng = np.random.default_rng(0)
    for hermitian in (False, True):
        a = rng.standard_normal((2, 4, 4)) + 1j * rng.standard_normal((2, 4, 4))
        a = a + (a.conj() if hermitian else a).swapaxes(1, 2)
        found = []
        for m in (offgrad, torch):
            factors = m.linalg.ldl_factor(m.tensor(a), hermitian=hermitian)
            solution = m.linalg.ldl_solve(
                factors.LD, factors.pivots, m.ones(2, 4, 1, dtype=m.complex128), hermitian=hermitian
            )
            found.append((*factors, solution))
        for mine, theirs in zip(*found, strict=True):
            np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-6)
        np.testing.assert_allclose(a @ found[0][2].numpy(), 1, rtol=1e-6)
    singular = offgrad.zeros(2, 2)
    assert offgrad.linalg.ldl_factor_ex(singular).info.item() == 1
    with pytest.raises(offgrad.linalg.LinAlgError):
        offgrad.linalg.ldl_factor(singular)


def test_products_with_reflections() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((4, 3)), rng.standard_normal((4, 4))
    for left in (True, False):
        for transpose in (True, False):
            found = []
            for m in (offgrad, torch):
                vectors, tau = m.geqrf(m.tensor(a))
                found.append(m.ormqr(vectors, tau, m.tensor(b), left, transpose).numpy())
            np.testing.assert_allclose(found[0], found[1], rtol=1e-7)


def test_low_rank() -> None:
    rng = np.random.default_rng(2)
    a = rng.standard_normal((7, 3)) @ rng.standard_normal((3, 5))
    for make in (offgrad.tensor, lambda x: offgrad.tensor(x).to_sparse()):
        for wide in (False, True):
            x = make(a.T.copy() if wide else a)
            u, s, v = offgrad.svd_lowrank(x, q=4)
            np.testing.assert_allclose((u * s) @ v.mT, a.T if wide else a, atol=1e-10)
            centred = (a.T if wide else a) - (a.T if wide else a).mean(0)
            u, s, v = offgrad.pca_lowrank(x, q=4)
            np.testing.assert_allclose((u * s) @ v.mT, centred, atol=1e-10)
            np.testing.assert_allclose(
                s.numpy()[:3], torch.pca_lowrank(torch.tensor(centred), 4)[1].numpy()[:3]
            )


def test_eigenpairs() -> None:
    rng = np.random.default_rng(3)
    root = rng.standard_normal((12, 12))
    a, b = root @ root.T + np.eye(12), np.diag(np.arange(1.0, 13))
    for largest in (True, False):
        for second in (None, b):
            x = offgrad.tensor(a)
            other = None if second is None else offgrad.tensor(second)
            values, vectors = offgrad.lobpcg(x, 2, other, largest=largest)
            expected = torch.lobpcg(
                torch.tensor(a),
                2,
                None if second is None else torch.tensor(second),
                niter=200,
                largest=largest,
            )[0]
            np.testing.assert_allclose(values.numpy(), expected.numpy(), rtol=1e-3)
            right = vectors if other is None else other @ vectors
            np.testing.assert_allclose(x @ vectors, right * values, atol=1e-8)
        sparse, _ = offgrad.lobpcg(offgrad.tensor(a).to_sparse(), 1, largest=largest, tol=1e-8)
        plain, _ = offgrad.lobpcg(offgrad.tensor(a), 1, largest=largest)
        np.testing.assert_allclose(sparse.numpy(), plain.numpy(), rtol=1e-3)


def test_binomial() -> None:
    offgrad.manual_seed(0)
    count, prob = offgrad.full((2000,), 20.0), offgrad.full((2000,), 0.3, requires_grad=True)
    sample = offgrad.binomial(count, prob)
    assert abs(float(sample.mean()) - 6) < 0.3
    assert float(sample.max()) <= 20
    (grad,) = offgrad.autograd.grad(sample.sum(), prob)
    assert not grad.any()


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    shared = offgrad.from_file(path, shared=True, size=4)
    shared[1] = 3
    for m in (offgrad, torch):
        private = m.from_file(str(path), size=3)
        private[0] = 5
        assert private.tolist() == [5, 3, 0]
    assert offgrad.from_file(path, size=2, dtype=offgrad.float32).tolist() == [0, 3]


def test_products_of_groups() -> None:
    rng = np.random.default_rng(4)
    shapes = {
        ((6, 4), (2, 4, 8)): [2, 6],
        ((2, 4, 8), (2, 8, 4)): None,
        ((4, 8), (8, 4)): [4, 8],
        ((2, 4, 8), (8, 16)): [4, 16],
    }
    for (left, right), ends in shapes.items():
        a, b = (rng.standard_normal(each).astype(np.float32) for each in (left, right))
        found = []
        for m in (offgrad, torch):
            offs = None if ends is None else m.tensor(ends, dtype=m.int32)
            found.append(m.nn.functional.grouped_mm(m.tensor(a), m.tensor(b), offs=offs).numpy())
        np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-6)


def test_products_of_scaled_numbers() -> None:
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((2, 16, 32)).astype(np.float32)
    found: dict[str, list[Any]] = {"TensorWise": [], "RowWise": []}
    for m in (offgrad, torch):
        x, y = (m.tensor(each).to(m.float8_e4m3fn) for each in (a, b))
        rows = m.arange(16.0)[:, None] + 1
        for name, scales in (
            ("TensorWise", (m.tensor(2.0), m.tensor(0.5))),
            ("RowWise", (rows, rows.t())),
        ):
            kind = getattr(m.nn.functional.ScalingType, name)
            product = m.nn.functional.scaled_mm(
                x, y.t(), scales[0], kind, scales[1], kind, output_dtype=m.bfloat16
            )
            found[name].append(product.float().numpy())
    for mine, theirs in found.values():
        np.testing.assert_allclose(mine, theirs, rtol=1e-2)


def test_an_optimizer_on_other_parameters() -> None:
    results = []
    for m in (offgrad, torch):
        weight: Any = m.ones(2, requires_grad=True)
        optimizer = m.optim.Adam([weight])
        weight.grad = m.ones(2)
        optimizer.step()
        before = weight.detach().clone()
        other: Any = m.full((2,), 5.0, requires_grad=True)
        other.grad = m.ones(2)
        state = optimizer.state_dict()
        state = {**state, "state": {0: {k: v.clone() for k, v in state["state"][0].items()}}}
        with m.optim.swap_in_optimizer_params_and_state(optimizer, {"w": other}, state):
            optimizer.step()
        assert bool((weight == before).all())
        assert optimizer.param_groups[0]["params"][0] is weight
        results.append([*other.tolist(), float(state["state"][0]["step"])])
    np.testing.assert_allclose(results[0], results[1])


def test_derivatives_of_special_functions() -> None:
    x = offgrad.tensor(
        [-3.0, -0.05, 0.0, 0.05, 0.5, 2.0], dtype=offgrad.float64, requires_grad=True
    )
    for function in (offgrad.special.airy_ai, offgrad.special.spherical_bessel_j0):
        assert gradcheck(function, x)
        assert gradgradcheck(function, x)


WINDOWS: list[tuple[str, dict[str, Any]]] = [
    *(
        (name, {})
        for name in ["bartlett", "blackman", "cosine", "hamming", "hann", "nuttall", "kaiser"]
    ),
    ("exponential", {"tau": 0.5}),
    ("exponential", {"center": 1.0, "sym": False}),
    ("gaussian", {"std": 2.0}),
    ("general_cosine", {"a": [0.46, 0.23, 0.31]}),
    ("general_hamming", {"alpha": 0.6, "sym": False}),
    ("kaiser", {"beta": 3.0, "sym": False}),
]


@pytest.mark.parametrize(("name", "options"), WINDOWS)
def test_windows(name: str, options: dict[str, Any]) -> None:
    for size in (0, 1, 2, 7):
        mine, theirs = (
            getattr(m.signal.windows, name)(size, dtype=m.float64, **options)
            for m in (offgrad, torch)
        )
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), atol=1e-12)
    assert getattr(offgrad.windows, name)(3, requires_grad=True, **options).requires_grad
    for m in (offgrad, torch):
        with pytest.raises(ValueError, match="negative"):
            getattr(m.signal.windows, name)(-1, **options)
