"""The ranges of random numbers, as in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", [offgrad.float16, offgrad.bfloat16])
def test_16_bit_floats_are_below_one(dtype: Any) -> None:
    offgrad.manual_seed(0)
    largest = 1 - offgrad.finfo(dtype).eps / 2
    for sample in (
        offgrad.rand(200_000, dtype=dtype),
        offgrad.rand_like(offgrad.empty(200_000, dtype=dtype)),
        offgrad.empty(200_000, dtype=dtype).uniform_(),
    ):
        assert sample.max().item() == largest
        assert sample.min().item() == 0
        assert abs(sample.double().mean().item() - 0.5) < 0.005
    assert offgrad.empty(200_000, dtype=dtype).exponential_().isfinite().all()


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "randint": lambda lib, kind: lib.randint(0, 300, (5,), dtype=kind),
    "randint that fits": lambda lib, kind: lib.randint(0, 2, (5,), dtype=kind),
    "randint below zero": lambda lib, kind: lib.randint(-1, 2, (5,), dtype=kind),
    "randint of many": lambda lib, kind: lib.randint(0, 100_000, (5,), dtype=kind),
    "randint_like": lambda lib, kind: lib.randint_like(lib.ones(3, dtype=kind), 300),
    "random_": lambda lib, kind: lib.ones(3, dtype=kind).random_(0, 300),
    "randperm": lambda lib, kind: lib.randperm(300, dtype=kind),
    "randperm of many": lambda lib, kind: lib.randperm(3000, dtype=kind),
    "randperm of none": lambda lib, kind: lib.randperm(0, dtype=kind),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int64", "float16", "float32", "bool"])
def test_numbers_that_a_dtype_lacks_are_refused(dtype: str, call: str) -> None:
    if dtype == "bool" and "randperm" in call:
        pytest.skip("PyTorch has none of bools")
    outcomes = []
    for lib in (torch, offgrad):
        try:
            outcomes.append(CALLS[call](lib, getattr(lib, dtype)))
        except RuntimeError as error:
            outcomes.append(error)
    theirs, ours = outcomes
    assert isinstance(ours, RuntimeError) == isinstance(theirs, RuntimeError), (ours, theirs)
    if "randperm" in call and not isinstance(ours, RuntimeError):
        assert len({*ours.tolist()}) == len(theirs)


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1, 2**64 - 1, -(2**63), -1, 0])
def test_seeds(seed: int) -> None:
    for has_own in (False, True):
        outcomes = []
        for lib in (torch, offgrad):
            source: Any = lib.Generator() if has_own else lib
            try:
                outcomes.append(source.manual_seed(seed).initial_seed() % 2**64)
            except (RuntimeError, ValueError) as error:
                outcomes.append(isinstance(error, (RuntimeError, ValueError)))
        assert outcomes[0] == outcomes[1]


def test_numpy_numbers_as_exponents() -> None:
    for exponent in (np.float16(0.1), np.float32(2), np.float64(0.5), np.int64(3)):
        grads = []
        for lib in (torch, offgrad):
            x = lib.tensor([0.001, 2.0], requires_grad=True)
            (x**exponent).sum().backward()
            grads.append(x.grad.tolist())
        np.testing.assert_allclose(grads[1], grads[0], rtol=1e-5)


def test_addcdiv_by_a_tensor_without_dimensions() -> None:
    grads = []
    for lib in (torch, offgrad):
        x = lib.tensor([1.0, 2.0], requires_grad=True)
        lib.addcdiv(x, x, x * x, value=lib.tensor(2.0)).sum().backward()
        grads.append(x.grad.tolist())
    np.testing.assert_allclose(grads[1], grads[0], rtol=1e-6)


@pytest.mark.filterwarnings("ignore:The reduce argument")
def test_scatter_multiplies() -> None:
    results = []
    for lib in (torch, offgrad):
        index = lib.tensor([[0, 1], [1, 1]])
        x = lib.arange(1.0, 7).reshape(2, 3)
        source = lib.tensor([[2.0, 3.0], [5.0, 7.0]])
        results.append(
            [
                x.scatter(1, index, source, reduce="multiply").tolist(),
                x.scatter(0, index, 3.0, reduce="multiply").tolist(),
                x.clone().scatter_(1, index, source, reduce="multiply").tolist(),
                x.long().scatter(1, index, 2, reduce="multiply").tolist(),
            ]
        )
        with pytest.raises(RuntimeError, match="reduce"):
            x.scatter(1, index, source, reduce="mean")
    assert results[0] == results[1]


MASKS: dict[str, Callable[[Any], Any]] = {
    "tensor": lambda lib: lib.tensor(True),
    "false": lambda lib: lib.tensor(False),
    "bool": lambda lib: True,
    "none": lambda lib: (None, lib.tensor(True)),
}


@pytest.mark.parametrize("value", [2.0, [3.0]])
@pytest.mark.parametrize("mask", MASKS)
def test_masks_of_tensors_without_dimensions(mask: str, value: Any) -> None:
    results = []
    for lib in (torch, offgrad):
        x, y = lib.tensor(1.5, requires_grad=True), lib.tensor(value, requires_grad=True)
        changed = x * 2
        at = MASKS[mask](lib)
        changed[at] = y
        picked = changed[at]
        (changed.sum() * 3 + picked.pow(2).sum()).backward()
        results.append([changed.tolist(), picked.tolist(), x.grad.tolist(), y.grad.tolist()])
    assert results[0] == results[1]
