"""Tensors as text, compared with PyTorch's."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import offgrad


def _with(m: Any, call: Callable[[Any], Any], **options: Any) -> str:
    m.set_printoptions(**options)
    try:
        return repr(call(m))
    finally:
        m.set_printoptions(profile="default")


def _grid(m: Any) -> Any:
    return m.arange(2400.0).view(40, 60) / 7


CALLS: dict[str, Callable[[Any], Any]] = {
    "summary": lambda m: _grid(m),
    "summary of integers": lambda m: m.arange(3000),
    "summary of three dimensions": lambda m: m.arange(2000).view(10, 20, 10) - 5,
    "summary of complex": lambda m: m.arange(1100).to(m.complex64) * (1 - 2j),
    "long rows": lambda m: m.arange(40.0) * 1.5,
    "long rows of integers": lambda m: m.arange(60).view(2, 30) * 1000,
    "three dimensions": lambda m: m.arange(8.0).view(2, 2, 2),
    "four dimensions": lambda m: m.zeros(2, 1, 2, 2),
    "exponents": lambda m: m.tensor([1e-6, 1.0, 123456.789]),
    "large integers as floats": lambda m: m.tensor([1e9, 2.0, float("inf")]),
    "not finite": lambda m: m.tensor([float("nan"), 1.0, -float("inf")]),
    "only nan": lambda m: m.tensor([float("nan"), 0.0]),
    "scalar": lambda m: (m.tensor(2.0), m.tensor(0.1), m.tensor(3), m.tensor(True)),
    "dtype": lambda m: m.arange(3, dtype=m.int16),
    "half": lambda m: m.tensor([0.1, 2], dtype=m.float16),
    "bfloat16": lambda m: m.tensor([0.1, 2], dtype=m.bfloat16),
    "double": lambda m: m.tensor([0.1, 2], dtype=m.float64, requires_grad=True),
    "complex": lambda m: m.tensor([1 + 2j, -0.5 - 1j]),
    "complex integers": lambda m: m.tensor([1 + 2j, 3j]),
    "complex128": lambda m: m.tensor(1 + 2j, dtype=m.complex128),
    "bool": lambda m: m.tensor([[True, False]]),
    "empty": lambda m: (m.empty(0), m.empty(0, 3), m.empty(2, 0, dtype=m.int64)),
    "empty integers": lambda m: m.empty(0, dtype=m.int64, requires_grad=False),
    "grad_fn": lambda m: m.ones(2, requires_grad=True) * 2,
    "long grad_fn": lambda m: (m.ones(9, requires_grad=True) * 1.25).log_softmax(0),
    "parameter": lambda m: m.nn.Parameter(m.ones(2, 2)),
    "precision": lambda m: _with(m, lambda m: m.tensor([1.23456789]), precision=8),
    "threshold": lambda m: _with(m, _grid, threshold=10, edgeitems=1),
    "width": lambda m: _with(m, lambda m: m.arange(30), linewidth=40),
    "short": lambda m: _with(m, _grid, profile="short"),
    "full": lambda m: _with(m, lambda m: m.arange(1100), profile="full"),
    "exponents asked for": lambda m: _with(m, lambda m: m.tensor([1.0, 2.5]), sci_mode=True),
    "exponents declined": lambda m: _with(m, lambda m: m.tensor([1e-6, 1.0]), sci_mode=False),
    "str": lambda m: str(m.tensor([1.5, 2])),
    "format": lambda m: (f"{m.tensor(1.5):.2f}", f"{m.tensor([1.5])}"),
    "strided": lambda m: m.arange(6).view(2, 3).t(),
}


@pytest.fixture(autouse=True)
def default_options() -> Iterator[None]:
    yield
    offgrad.set_printoptions(profile="default")


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_text_on_both(same: Any, call: Callable[[Any], Any]) -> None:
    same(call)
