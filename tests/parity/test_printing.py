"""Tensors as text."""

from typing import Any

import numpy as np
import pytest

from tests.parity.conftest import constant, leaf

NUMBERS: list[Any] = [
    0.408,
    [0.408, -1.8476],
    [1, 2, -30],
    [1.5, 1000],
    [1e-5, 1],
    [1e-5, 0.1],
    [1e9, 2],
    [123456.0, 1],
    [float("nan"), 1.5, -float("inf")],
    [0, -0.5],
    [0, 0],
    [[1.25, -2], [3, 10]],
    [],
]


@pytest.mark.parametrize("numbers", NUMBERS, ids=str)
def test_numbers_alike(lib: Any, numbers: Any) -> None:
    torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
    assert repr(constant(lib, numbers, dtype=lib.float32)) == repr(torch.tensor(numbers).float())


def test_printing(lib: Any) -> None:
    x = leaf(lib, 0.40796, -1.5, dtype=lib.float32)
    assert repr(x) == "tensor([ 0.4080, -1.5000], requires_grad=True)"
    assert repr(x * 2) == "tensor([ 0.8159, -3.0000], grad_fn=<MulBackward0>)"
    assert repr(lib.tensor([True, False])) == "tensor([ True, False])"
    assert repr(lib.tensor([3, -10])) == "tensor([  3, -10])"


def test_of_many_the_ends_tell_the_format(lib: Any) -> None:
    values = np.full((40, 50), 0.5)
    values[20, 20] = 1e12
    lines = repr(constant(lib, values, dtype=lib.float32)).splitlines()
    assert len(lines) == 7
    assert lines[0].split() == [
        "tensor([[0.5000,",
        "0.5000,",
        "0.5000,",
        "...,",
        *["0.5000,"] * 2,
        "0.5000],",
    ]
