"""Sums of many 16-bit floats are added in float32 and rounded once; large tensors of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad.nn import functional as F

Call = Callable[[Any, Any], Any]

COUNT = 6000
RNG = np.random.default_rng(0)
VALUES = (RNG.random(COUNT) + 0.5).astype(np.float32)
INDEX = RNG.integers(0, 2, COUNT)
ROUNDING = {"float16": 2e-3, "bfloat16": 1e-2}


def _wide(index: Any) -> Any:
    return index[:, None].expand(-1, 40)


def _classes(x: Any) -> tuple[Any, Any]:
    return x.reshape(-1, 4), offgrad.arange(COUNT // 4) % 4


SUMS: dict[str, Call] = {
    "index_add": lambda x, i: x.new_zeros(2).index_add(0, i, x),
    "index_add of a few entries": lambda x, i: x.new_zeros(2 * COUNT + 1).index_add(0, i, x),
    "index_add of a few columns": lambda x, i: x.new_zeros(3, 500).index_add(
        1, i[:200], _wide(x)[:3, :1].expand(-1, 200)
    ),
    "index_add of rows": lambda x, i: x.new_zeros(2, 40).index_add(0, i, _wide(x)),
    "index_put": lambda x, i: x.new_zeros(2).index_put((i,), x, accumulate=True),
    "index_put of places": lambda x, i: x.new_zeros(2, 2).index_put((i, 1 - i), x, accumulate=True),
    "scatter_add": lambda x, i: x.new_zeros(2).scatter_add(0, i, x),
    "scatter_add of rows": lambda x, i: x.new_zeros(2, 40).scatter_add(0, _wide(i), _wide(x)),
    "scatter_reduce, sum": lambda x, i: x.new_zeros(2).scatter_reduce(0, i, x, "sum"),
    "scatter_reduce, mean": lambda x, i: x.new_zeros(2).scatter_reduce(0, i, x, "mean"),
    "index_reduce, mean": lambda x, i: x.new_ones(2).index_reduce(0, i, x, "mean"),
    "put": lambda x, i: x.new_zeros(2).put(i, x, accumulate=True),
    "trace": lambda x, i: x[:1500].diag().trace(),
    "cross_entropy, mean": lambda x, i: F.cross_entropy(*_classes(x)),
    "cross_entropy, sum": lambda x, i: F.cross_entropy(*_classes(x), reduction="sum"),
    "cross_entropy, weights": lambda x, i: F.cross_entropy(*_classes(x), weight=x[:4]),
    "cross_entropy, smooth": lambda x, i: F.cross_entropy(*_classes(x), label_smoothing=0.3),
    "cross_entropy of planes": lambda x, i: F.cross_entropy(x.view(2, 4, -1), i[:1500].view(2, -1)),
    "nll_loss": lambda x, i: F.nll_loss(*_classes(x)),
    "native_layer_norm": lambda x, i: offgrad.native_layer_norm(x, (COUNT,), None, None, 1e-5)[1],
    "native_group_norm": lambda x, i: offgrad.native_group_norm(
        x, None, None, 1, 2, COUNT // 2, 1, 1e-5
    )[2],
}
GATHERED: dict[str, Call] = {
    "index": lambda x, i: x[i],
    "index of rows": lambda x, i: x[:, None].expand(-1, 4)[i],
    "index of places": lambda x, i: x[:, None].expand(-1, 2)[i, 1 - i],
    "gather": lambda x, i: x.gather(0, i),
    "gather of rows": lambda x, i: _wide(x)[:, :4].gather(0, _wide(i)[:, :4]),
    "index_select": lambda x, i: x.index_select(0, i),
    "embedding": lambda x, i: F.embedding(i, x[:, None]),
    "take": lambda x, i: x.take(i),
    "as_strided": lambda x, i: x.as_strided((COUNT, 2), (0, 1)),
    "expand": lambda x, i: x.expand(COUNT, 2) * 1,
    "repeat": lambda x, i: x.repeat(COUNT),
}


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("name", SUMS)
def test_sums(name: str, dtype: str) -> None:
    x, index = offgrad.tensor(VALUES).to(getattr(offgrad, dtype)), offgrad.tensor(INDEX)
    result = SUMS[name](x, index)
    assert result.dtype == x.dtype
    expected = SUMS[name](x.double(), index).numpy()
    np.testing.assert_allclose(result.double().numpy(), expected, rtol=ROUNDING[dtype])


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("name", GATHERED)
def test_gradients_of_what_is_read_often(name: str, dtype: str) -> None:
    index, grads = offgrad.tensor(INDEX), []
    for each in (getattr(offgrad, dtype), offgrad.float64):
        x = offgrad.tensor(VALUES[:2]).to(each).requires_grad_()
        GATHERED[name](x, index).sum().backward()
        assert x.grad is not None
        assert x.grad.dtype == each
        grads.append(x.grad.double().numpy())
    np.testing.assert_allclose(grads[0], grads[1], rtol=ROUNDING[dtype])


PICKED: dict[str, Call] = {
    "gather": lambda x, i: x.gather(1, i),
    "max": lambda x, i: x.max(1).values,
    "sort": lambda x, i: x.sort(0).values,
    "topk": lambda x, i: x.topk(50).values,
    "kthvalue": lambda x, i: x.kthvalue(3).values,
    "median": lambda x, i: x.median(1).values,
    "cummax": lambda x, i: x.cummax(0).values,
    "take": lambda x, i: x.take(i),
    "take_along_dim": lambda x, i: x.take_along_dim(i, 1),
    "max_pool2d": lambda x, i: F.max_pool2d(x[None], 2),
    "grid_sample": lambda x, i: F.grid_sample(
        x[None, None, None], x.new_zeros(1, 9, 9, 9, 3), align_corners=False
    ),
}


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("name", PICKED)
def test_gradients_of_large_tensors(name: str, dtype: str) -> None:
    values = np.random.default_rng(1).permutation(410 * 700).reshape(410, 700) % 2039 / 8
    index, grads = offgrad.tensor(values.astype(np.int64)), []
    for each in (getattr(offgrad, dtype), offgrad.float64):
        x = offgrad.tensor(values).to(getattr(offgrad, dtype)).to(each).requires_grad_()
        PICKED[name](x, index).sum().backward()
        assert x.grad is not None
        grads.append(x.grad.double().numpy())
    np.testing.assert_allclose(grads[0], grads[1], rtol=ROUNDING[dtype], atol=1e-3)
