"""Values and gradients of NaN, infinities and too few numbers are torch's."""

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest

import offgrad

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")

Call = Callable[..., Any]
DTYPES = ["float32", "float64"]
ROWS = [
    [1.0, nan, 3.0, 2.0],
    [nan, nan, nan, nan],
    [inf, 1.0, inf, 2.0],
    [0.0, -inf, -inf, 5.0],
    [0.5, 2.0, inf, nan],
]


def _gradients(m: Any, call: Call, tensors: list[Any], dtype: str) -> list[Any]:
    inputs = [m.tensor(each, dtype=getattr(m, dtype), requires_grad=True) for each in tensors]
    result = call(m, *inputs)
    first = result if isinstance(result, m.Tensor) else result[0]
    grads = m.autograd.grad(first, inputs, m.ones_like(first))
    return [each.detach().reshape(-1).tolist() for each in (first, *grads)]


def _compare(call: Call, *tensors: Any, dtype: str) -> None:
    mine, theirs = (_gradients(m, call, list(tensors), dtype) for m in (offgrad, torch))
    for have, want in zip(mine, theirs, strict=True):
        assert have == pytest.approx(want, rel=1e-5, abs=1e-6, nan_ok=True)


REDUCTIONS: dict[str, Call] = {
    "nanmean": lambda m, x: m.nanmean(x, -1),
    "nansum": lambda m, x: m.nansum(x, -1),
    "logcumsumexp": lambda m, x: m.logcumsumexp(x, -1),
    "logcumsumexp of columns": lambda m, x: m.logcumsumexp(x, 0),
    "logsumexp": lambda m, x: m.logsumexp(x, -1),
    "renorm": lambda m, x: m.renorm(x, 2, 0, 1.5),
    "cummax": lambda m, x: m.cummax(x, -1),
    "cummin": lambda m, x: m.cummin(x, -1),
    "sort": lambda m, x: m.sort(x, dim=-1, stable=True),
    "max": lambda m, x: m.max(x, -1),
    "median": lambda m, x: m.median(x, -1),
}


ORDERS: dict[str, Call] = {
    "sort": lambda m, x: m.sort(x, stable=True)[0],
    "places": lambda m, x: m.sort(x, stable=True)[1],
    "descending": lambda m, x: m.sort(x, stable=True, descending=True)[1],
    "argsort": lambda m, x: m.argsort(x, stable=True),
    "msort": lambda m, x: m.msort(x),
    "topk": lambda m, x: m.topk(x, 3)[0],
    "smallest": lambda m, x: m.topk(x, 3, largest=False)[0],
    "kthvalue": lambda m, x: m.kthvalue(x, 2)[0],
    "median": lambda m, x: m.median(x, -1)[0],
    "nanmedian": lambda m, x: m.nanmedian(x, -1)[0],
    "unique": lambda m, x: m.unique(x),
    "cummax": lambda m, x: m.cummax(x, -1)[0],
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", *DTYPES])
@pytest.mark.parametrize("repeated", [1, 400])
@pytest.mark.parametrize("name", ORDERS)
def test_orders(name: str, repeated: int, dtype: str, backend: str) -> None:
    """NumPy has no order of bfloat16 with NaN."""
    mine, theirs = (
        ORDERS[name](m, m.tensor(ROWS * repeated).to(getattr(m, dtype))) for m in (offgrad, torch)
    )
    have, want = (each.float().reshape(-1).tolist() for each in (mine, theirs))
    assert have == pytest.approx(want, nan_ok=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str, dtype: str, backend: str) -> None:
    _compare(REDUCTIONS[name], ROWS, dtype=dtype)


@pytest.mark.parametrize("at", [nan, inf, 0.0, 3.0])
def test_products_of_one_number(at: float) -> None:
    _compare(lambda m, x: m.prod(x), at, dtype="float64")
    _compare(lambda m, x: m.prod(x, 0), at, dtype="float64")
    _compare(lambda m, x: m.cumprod(x, 0), [at], dtype="float64")


@pytest.mark.filterwarnings("ignore:.*degrees of freedom:UserWarning")
@pytest.mark.parametrize("correction", [0, 1, 2])
@pytest.mark.parametrize("at", [3.0, nan, [3.0], [nan], [inf, 1.0], [nan, nan]])
def test_variances_of_too_few(at: Any, correction: int) -> None:
    for name in ("var", "std"):
        for dims in ((), (-1,)):

            def call(m: Any, x: Any, name: str = name, dims: tuple[int, ...] = dims) -> Any:
                return getattr(m, name)(x, *dims, correction=correction)

            _compare(call, at, dtype="float64")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduce", ["amax", "amin", "prod", "mean", "sum"])
def test_scatter_reduce(reduce: str, dtype: str) -> None:
    index = [0, 1, 2, 3, 3, 4, 5, 6, 6]

    def call(m: Any, x: Any, source: Any) -> Any:
        return m.scatter_reduce(x, 0, m.tensor(index), source, reduce)

    base = [1.0, nan, 3.0, 0.0, 5.0, 2.0, 7.0, nan]
    source = [2.0, 1.0, nan, 3.0, 0.0, 6.0, inf, 8.0, 0.0]
    _compare(call, base, source, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_margins_of_nan_and_at_the_kink(dtype: str) -> None:
    scores = [[1.0, 2.0, 3.0], [0.0, -1.0, nan], [inf, 1.0, 2.0], [1.0, 1.0, 0.0]]
    labels = [[0, -1, 1], [1, 2, -1], [-1, 0, 0], [0, 1, 2]]
    for p in (1, 2):
        _compare(
            lambda m, x, p=p: m.nn.functional.multi_margin_loss(
                x, m.tensor([0, 1, 2, 1]), p=p, reduction="none"
            ),
            scores,
            dtype=dtype,
        )
    _compare(
        lambda m, x: m.nn.functional.multilabel_margin_loss(x, m.tensor(labels), reduction="none"),
        scores,
        dtype=dtype,
    )


def test_quantiles_of_nothing() -> None:
    for m in (offgrad, torch):
        for name in ("quantile", "nanquantile"):
            with pytest.raises(RuntimeError, match="non-empty"):
                getattr(m, name)(m.zeros(0, 3), 0.5, dim=-1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("size", [7, 100_000])
def test_interpolations_of_half_round_once(size: int, dtype: str, backend: str) -> None:
    generator = torch.Generator().manual_seed(0)
    given = [
        (torch.rand(size, generator=generator) * scale - 1).to(getattr(torch, dtype))
        for scale in (3, 300, 4)
    ]
    want = torch.lerp(*given)
    have = offgrad.lerp(
        *[offgrad.tensor(each.float().numpy()).to(getattr(offgrad, dtype)) for each in given]
    )
    # The product and the sum may be one operation, which moves a float32's last bit.
    different = (torch.from_numpy(have.float().numpy()) != want.float()).float().mean()
    assert different < 1e-3
