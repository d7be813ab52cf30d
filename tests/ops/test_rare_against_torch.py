"""Functions of samples, counts, combinations and reductions at an index: the same as torch's."""

from typing import Any

import numpy as np
import pytest

import offgrad

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")

RNG = np.random.default_rng(7)
X = RNG.standard_normal((3, 4))
V = RNG.standard_normal(6)
N = np.where(RNG.random((3, 4)) < 0.3, np.nan, X)
L = RNG.integers(-9, 9, (3, 4))
J = RNG.integers(0, 3, (3, 4))
K = RNG.integers(0, 6, 12)
B = RNG.random((3, 4)) < 0.5
AT = RNG.integers(0, 3, (2, 4))
P = RNG.random((3, 4)) + 0.5
Z = np.where(RNG.random((3, 4)) < 0.4, 0.0, X)
C = X + 1j * RNG.standard_normal((3, 4))

REDUCE = ("sum", "prod", "mean", "amax", "amin")

CALLS = """
    m.quantile(X, 0.3)
    m.quantile(N, 0.3, 1)
    m.nanquantile(N, 0.3, 1)
    X.quantile(0.5)
    m.nanquantile(N, q, 0)
    m.quantile(V, 1.0, 0, True)
    m.quantile(X, q, keepdim=True)
    m.nanquantile(N * m.nan, 0.5, 1)
    m.quantile(X.sum(), 0.2)
    N.nanquantile(0.7)
    m.nanmedian(N)
    m.nanmedian(N, 1)
    m.nanmedian(N, 0, True)
    N.nanmedian(dim=-1)
    m.nanmedian(N * m.nan)
    m.nanmedian(L, 1)
    m.mode(J)
    m.mode(J, 0)
    m.mode(J.double(), 1, True)
    Z.mode(0)
    B.mode()
    m.bincount(K)
    m.bincount(K, minlength=9)
    m.bincount(K, K.float() / 3)
    m.bincount(K, K)
    K.bincount(K.double(), 2)
    m.bincount(K[:0])
    m.bincount(K[:0], None, 3)
    m.histc(X)
    m.histc(X, 5, -1, 1)
    m.histc(X * 0, 4)
    X.histc(bins=3)
    m.histc(N, 3, -1, 1)
    m.histogram(X, 4)
    m.histogram(X, 5, range=(-1, 1))
    m.histogram(X, V.sort().values)
    m.histogram(X, 3, weight=P, density=True)
    X.histogram(2, density=True)
    m.histogramdd(X[:, :2], [2, 3])
    m.histogramdd(X[:, :2], 2, range=(-1.0, 1.0, -2.0, 2.0))
    m.unique_consecutive(J)
    m.unique_consecutive(J, True, True)
    J.unique_consecutive(dim=0)
    m.unique_consecutive(m.tensor([[1, 1], [1, 1], [2, 1]]), True, True, 0)
    m.unique_consecutive(m.tensor([[1, 1, 2], [1, 1, 3]]), dim=1, return_counts=True)
    m.isin(J, m.tensor([0, 2]))
    m.isin(J, 1)
    m.isin(1, J)
    m.isin(J, J[0, :1], invert=True)
    m.unravel_index(K, (3, 4))
    m.unravel_index(K, 12)
    m.unravel_index(K[0], [2, 3, 2])
    m.nonzero_static(B, size=4)
    B.nonzero_static(size=20, fill_value=7)
    f.one_hot(J)
    f.one_hot(J, 5)
    f.one_hot(J[0, 0], 4)
    f.one_hot(J[:0], num_classes=3)
    m.gcd(L, J)
    m.lcm(L, J)
    m.gcd(L, m.tensor(6))
    L.gcd(J)
    L.clone().gcd_(J)
    L.lcm(J)
    L << J
    L >> J
    L << 2
    2 << J
    L >> 1
    -9 >> J
    L << 70
    L >> 70
    m.bitwise_left_shift(L, J)
    m.bitwise_right_shift(L.int(), 2)
    L.clone().bitwise_left_shift_(1)
    m.ldexp(X, J)
    m.ldexp(X, m.tensor(3))
    X.detach().ldexp(L)
    m.ldexp(J, J)
    m.frexp(X)
    m.frexp(X * 1e30)
    Z.float().frexp()
    m.nextafter(X.detach(), Z.detach())
    X.index_reduce(0, m.tensor([1, 1]), Z[:2], 'amax')
    X.clone().scatter_reduce_(0, AT, P[:2], 'amin')
    m.scatter_reduce(V, 0, m.tensor([1, 1, 1]), V[:3], 'amax')
    m.cov(X)
    m.cov(V)
    m.cov(X, correction=0)
    m.cov(C)
    m.cov(L)
    X.cov(correction=2)
    m.cov(X, fweights=m.tensor([1, 2, 0, 3]))
    m.cov(X, aweights=P[0])
    m.cov(X, correction=0, aweights=P[0])
    m.cov(X, fweights=m.tensor([1, 2, 0, 3]), aweights=P[0])
    m.cov(X[:1])
    m.corrcoef(X[:1])
    m.corrcoef(X)
    m.corrcoef(V)
    C.corrcoef()
    m.pdist(X)
    f.pdist(X, 1)
    f.pdist(X, 3.0)
    f.pdist(X, float('inf'))
    m.pdist(X[:1])
    m.renorm(X, 2, 0, 1)
    m.renorm(X, 1, 1, 2.5)
    X.renorm(3, -1, 1.0)
    m.renorm(C, 2, 0, 1.0)
    m.trapezoid(X)
    m.trapezoid(X, dx=0.5, dim=0)
    m.trapezoid(X, V[:4])
    m.trapz(X, P)
    m.trapezoid(X, V[:3], dim=0)
    m.trapezoid(X[:, :1])
    m.trapezoid(X[:, :0])
    m.trapezoid(X[None], P, dim=1)
    m.trapz(V, dx=2)
    m.cumulative_trapezoid(X)
    m.cumulative_trapezoid(X, V[:3], dim=0)
    m.cumulative_trapezoid(V, dx=3)
    m.gradient(X)
    m.gradient(V, spacing=0.5, edge_order=2)
    m.gradient(X, dim=1)
    m.gradient(X, dim=(0, 1), spacing=[2.0, 0.5])
    m.gradient(X, spacing=[P[0, :3].cumsum(0), P[1].cumsum(0)], edge_order=2)
    m.gradient(V, spacing=(P.reshape(-1)[:6].cumsum(0),))
    m.vander(V)
    m.vander(V, 3)
    m.vander(V, 4, True)
    m.vander(L[0])
    m.vander(V, 0)
    m.vander(V, 1)
    m.cartesian_prod(V[:2], P[0])
    m.cartesian_prod(V)
    X.clone().fill_diagonal_(5)
    m.cat([X, X, X]).fill_diagonal_(5, wrap=True)
    m.zeros(3, 3, 3).fill_diagonal_(2)
    X.detach().apply_(lambda v: v * 2 + 1)
    L.t().apply_(lambda v: v // 2)
    X.detach().map_(P.detach(), lambda a, b: a - b)
    L.map2_(J, K[:4], lambda a, b, c: a + b * c)
    m.segment_reduce(V, 'sum', lengths=m.tensor([2, 0, 4]))
    m.segment_reduce(V, 'max', lengths=m.tensor([2, 0, 4]))
    m.segment_reduce(V, 'mean', lengths=m.tensor([2, 0, 4]))
    m.segment_reduce(V, 'mean', lengths=m.tensor([2, 0, 4]), initial=1)
    m.segment_reduce(X, 'prod', offsets=m.tensor([0, 1, 3]))
    m.segment_reduce(X, 'min', lengths=m.tensor([[1, 3], [2, 2], [4, 0]]), axis=1)
    m.cartesian_prod(L[0], J[0], L[1])
    m.combinations(V)
    m.combinations(V, 3)
    m.combinations(V, 2, True)
    m.combinations(V, 0)
    m.combinations(V[:1])
""".strip().splitlines()
CALLS += [
    *(f"m.{w}(X, q{o}, interpolation='{i}')"
      for w in ("quantile", "nanquantile") for o in ("", ", 1", ", 0, True")
      for i in ("linear", "lower", "higher", "midpoint", "nearest")),
    *(f"m.scatter_reduce({x}, 0, AT, P[:2], '{r}', include_self={s})"
      for r in REDUCE for s in (True, False) for x in ("X", "Z")),
    *(f"m.scatter_reduce(P, 0, AT, Z[:2], '{r}')" for r in REDUCE),
    *(f"L.scatter_reduce(1, J[:, :3], L[:, :3], '{r}', include_self=False)" for r in REDUCE),
    *(f"m.index_reduce(X, 1, m.tensor([0, 2, 2]), P[:, :3], '{r}', include_self={s})"
      for r in REDUCE[1:] for s in (True, False)),
    *(f"m.index_reduce(X, 1, AT[0, :0], P[:, :0], '{r}')" for r in REDUCE[1:]),
    *(f"m.scatter_reduce(X, 0, AT[:0], P[:0], '{r}')" for r in REDUCE),
]  # fmt: skip

NAMES = {"X": X, "V": V, "N": N, "L": L, "J": J, "K": K, "B": B, "AT": AT, "P": P, "Z": Z, "C": C}


def flattened(result: Any) -> list[Any]:
    if isinstance(result, tuple | list):
        return [each for one in result for each in flattened(one)]
    return [result]


def defined(tensor: Any) -> Any:
    """Return the tensor with 0 for NaN."""
    array = tensor.detach().resolve_conj().numpy()
    return np.where(np.isnan(array), 0, array)


def outcomes(m: Any, text: str) -> tuple[list[Any], ...]:
    """Return results, and their first and second gradients, as far as torch has them."""
    named = {name: m.tensor(array) for name, array in NAMES.items()}
    leaves = [each for each in named.values() if each.dtype in (m.float64, m.complex128)]
    for each in leaves:
        each.requires_grad_()
    q = m.tensor([0.0, 0.2, 0.5, 1.0], dtype=m.float64)
    results = flattened(eval(text, {"m": m, "f": m.nn.functional, "q": q, **named}))
    outputs = [each for each in results if each.requires_grad]
    firsts, seconds = [], []
    try:
        total = sum(
            (each * each.conj() * (1.5 + i)).real.nansum() for i, each in enumerate(outputs)
        )
        firsts = m.autograd.grad(total, leaves, create_graph=True, allow_unused=True)
        again = [each for each in firsts if each is not None and each.requires_grad]
        squares = sum((each * each.conj()).real.nansum() for each in again)
        seconds = m.autograd.grad(squares, leaves, allow_unused=True)
    except (RuntimeError, TypeError, AttributeError):
        if m is offgrad and "histogram" not in text and "unique" not in text and outputs and firsts:
            raise
    return results, firsts, seconds


@pytest.mark.parametrize("text", [each.strip() for each in CALLS])
@pytest.mark.filterwarnings("ignore")
def test_same_as_torch(text: str) -> None:
    mine, theirs = outcomes(offgrad, text), outcomes(torch, text)
    for have, want in zip(mine[0], theirs[0], strict=True):
        assert str(have.dtype).split(".")[-1] == str(want.dtype).split(".")[-1]
        assert tuple(have.shape) == tuple(want.shape)
        assert np.array_equal(np.isnan(have.detach().numpy()), np.isnan(want.detach().numpy()))
    for some, others in zip(mine, theirs, strict=True):
        for have, want in zip(some, others, strict=False):  # torch may lack second derivatives
            if have is None or want is None:
                other = want if have is None else have
                assert other is None or not defined(other).any()
            else:
                np.testing.assert_allclose(defined(have), defined(want), 1e-9, 1e-9)


ERRORS = """
    m.quantile(L, 0.5)
    m.quantile(X, 1.5)
    m.quantile(X, 0.5, interpolation='x')
    m.quantile(X[:0], 0.5)
    m.quantile(X, q.float())
    m.quantile(X, 0.5, 3)
    m.mode(X[:0], 0)
    m.bincount(J)
    m.bincount(X[0])
    m.bincount(K - 3)
    m.bincount(K, minlength=-1)
    m.bincount(K, K[:2])
    m.histc(X, 0)
    m.histc(X, 3, 2, 1)
    m.histogram(L, 3)
    m.unravel_index(X, (30,))
    m.unravel_index(K, (-3, 4))
    f.one_hot(X)
    f.one_hot(L)
    f.one_hot(J, 1)
    f.one_hot(J[:0])
    m.gcd(X, X)
    m.lcm(B, B)
    X << 1.0
    m.scatter_reduce(X, 0, AT, P[:2], 'median')
    m.scatter_reduce(X, 0, AT, L, 'sum')
    m.scatter_reduce(X, 0, AT + 5, P, 'amax')
    m.scatter_reduce(X, 3, AT, P, 'amax')
    m.scatter_reduce(X, 0, AT, P[:1], 'amax')
    m.index_reduce(X, 0, AT, P[:2], 'amax')
    m.index_reduce(X, 0, AT[0], P, 'sum')
    m.index_reduce(X, 0, AT[0], P, 'amax')
    m.cov(X[None])
    m.cov(X, aweights=P)
    m.cov(X, fweights=P[0])
    m.pdist(V)
    m.pdist(X, -1)
    m.renorm(V, 2, 0, 1)
    m.renorm(X, 0, 0, 1)
    m.trapezoid(X, V)
    m.gradient(X, edge_order=3)
    m.gradient(X[:1])
    m.gradient(X, spacing=[1.0, 2.0, 3.0])
    m.vander(X)
    m.vander(V, -1)
    m.cartesian_prod(X, V)
    m.combinations(X)
    m.combinations(V, -1)
    m.nextafter(L, L)
    m.frexp(L)
    V.fill_diagonal_(1)
    m.zeros(3, 3, 2).fill_diagonal_(1)
    m.ones(3, requires_grad=True).apply_(lambda v: v)
    m.segment_reduce(V, 'sum', lengths=m.tensor([2, 3]))
    m.segment_reduce(V, 'sum')
""".strip().splitlines()


@pytest.mark.parametrize("text", [each.strip() for each in ERRORS])
def test_errors_are_those_of_torch(text: str) -> None:
    raised = []
    for m in (offgrad, torch):
        named = {name: m.tensor(array) for name, array in NAMES.items()}
        q = m.tensor([0.5], dtype=m.float64)
        with pytest.raises(Exception) as info:
            eval(text, {"m": m, "f": m.nn.functional, "q": q, **named})
        raised.append(info.type)
    assert raised[0] is raised[1]
