"""Results of several tensors print as PyTorch's, under the name of the operation."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest

import offgrad

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")

CASES: dict[str, Callable[[Any, Any], Any]] = {
    "max": lambda m, x: m.max(x, 1),
    "min": lambda m, x: x.min(dim=0, keepdim=True),
    "sort": lambda m, x: x.sort(descending=True),
    "topk": lambda m, x: x.topk(2),
    "kthvalue": lambda m, x: x.kthvalue(1),
    "median": lambda m, x: x.median(1),
    "nanmedian": lambda m, x: x.nanmedian(1),
    "mode": lambda m, x: m.mode(x),
    "cummax": lambda m, x: x.cummax(0),
    "cummin": lambda m, x: x.cummin(0),
    "aminmax": lambda m, x: m.aminmax(x),
    "frexp": lambda m, x: m.frexp(x),
    "histogram": lambda m, x: m.histogram(x, 2),
    "linalg_eigh": lambda m, x: m.linalg.eigh(m.diag(x[0])),
    "linalg_slogdet": lambda m, x: m.linalg.slogdet(m.diag(x[0])),
    "linalg_inv_ex": lambda m, x: m.linalg.inv_ex(m.diag(x[0])),
}


@pytest.mark.parametrize("name", CASES)
def test_results_print_alike(name: str) -> None:
    found, expected = (
        CASES[name](m, m.tensor([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]])) for m in (offgrad, torch)
    )
    assert repr(found) == repr(expected)
    assert isinstance(found, getattr(offgrad.return_types, name))
    assert repr(pickle.loads(pickle.dumps(found))) == repr(expected)


def test_a_tensor_says_that_it_is_one() -> None:
    assert str(type(offgrad.ones(1))) == "<class 'offgrad.Tensor'>"
    assert pickle.loads(pickle.dumps(offgrad.Tensor)) is offgrad.Tensor
