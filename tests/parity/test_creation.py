"""Tensors from data: shapes, dtypes and refusals."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.parity.conftest import raises

Call = Callable[[Any], Any]


def one(lib: Any, value: Any, dtype: str) -> Any:
    return lib.tensor(value, dtype=getattr(lib, dtype))


DTYPES: dict[str, tuple[Call, str]] = {
    "a float64 tensor": (lambda lib: lib.tensor([one(lib, 1, "float64")]), "float64"),
    "a float16 tensor": (lambda lib: lib.tensor([one(lib, 1, "float16")]), "float16"),
    "an int32 tensor": (lambda lib: lib.tensor([one(lib, 1, "int32")]), "int32"),
    "a uint8 tensor": (lambda lib: lib.tensor([one(lib, 1, "uint8")]), "uint8"),
    "a bool tensor": (lambda lib: lib.tensor([one(lib, 1, "bool")]), "bool"),
    "a complex128 tensor": (lambda lib: lib.tensor([one(lib, 1, "complex128")]), "complex128"),
    "a tensor behind a number": (lambda lib: lib.tensor([2.0, one(lib, 1, "float64")]), "float64"),
    "a tensor behind an integer": (lambda lib: lib.tensor([2, one(lib, 1, "float64")]), "float64"),
    "an integer behind a tensor": (lambda lib: lib.tensor([one(lib, 1, "int32"), 2]), "int64"),
    "two integer tensors": (
        lambda lib: lib.tensor([one(lib, 1, "int32"), one(lib, 1, "int8")]),
        "int32",
    ),
    "an integer and a float tensor": (
        lambda lib: lib.tensor([one(lib, 1, "int64"), one(lib, 1, "float16")]),
        "float16",
    ),
    "tensors in nested lists": (
        lambda lib: lib.tensor([[one(lib, 1, "float32")], [one(lib, 1, "float64")]]),
        "float64",
    ),
    "a tuple": (lambda lib: lib.tensor((one(lib, 1, "float64"),)), "float64"),
    "np.float64": (lambda lib: lib.tensor([np.float64(1)]), "float64"),
    "np.float64 in the middle": (lambda lib: lib.tensor([[1.0, np.float64(1)], [1, 2]]), "float64"),
    "np.float32": (lambda lib: lib.tensor([np.float32(1)]), "float32"),
    "np.float16": (lambda lib: lib.tensor([np.float16(1)]), "float16"),
    "np.float16 and a float": (lambda lib: lib.tensor([np.float16(1), 1.0]), "float32"),
    "np.int32": (lambda lib: lib.tensor([np.int32(1)]), "int32"),
    "np.int32 and an integer": (lambda lib: lib.tensor([3, np.int32(1)]), "int64"),
    "np.int8 and np.int32": (lambda lib: lib.tensor([np.int8(1), np.int32(1)]), "int32"),
    "np.bool_": (lambda lib: lib.tensor([np.bool_(True)]), "bool"),
    "np.complex64": (lambda lib: lib.tensor([np.complex64(1)]), "complex64"),
    "np.complex128": (lambda lib: lib.tensor([np.complex128(1)]), "complex128"),
    "np.float64 and a complex": (lambda lib: lib.tensor([1j, np.float64(1)]), "complex128"),
    "a float64 array": (lambda lib: lib.tensor([np.ones(2), np.ones(2)]), "float64"),
    "an int32 array": (lambda lib: lib.tensor([np.ones(2, np.int32)]), "int32"),
    "an array and a list": (lambda lib: lib.tensor([[1, 2], np.ones(2)]), "float64"),
    "floats": (lambda lib: lib.tensor([1.0]), "float32"),
    "integers": (lambda lib: lib.tensor([1]), "int64"),
    "bools": (lambda lib: lib.tensor([True]), "bool"),
    "bools and integers": (lambda lib: lib.tensor([True, 2]), "int64"),
    "integers and floats": (lambda lib: lib.tensor([1, 2.0]), "float32"),
    "integers and complex numbers": (lambda lib: lib.tensor([1, 2j]), "complex64"),
    "nothing": (lambda lib: lib.tensor([[], []]), "float32"),
    "as_tensor of a tensor": (lambda lib: lib.as_tensor([one(lib, 1, "float64")]), "float64"),
    "as_tensor of np.float64": (lambda lib: lib.as_tensor([np.float64(1)]), "float64"),
    "as_tensor of a number": (lambda lib: lib.as_tensor(np.float64(1)), "float64"),
    "new_tensor of np.float64": (lambda lib: lib.ones(1).new_tensor([np.float64(1)]), "float32"),
    "full of a float64 tensor": (lambda lib: lib.full((2,), one(lib, 1, "float64")), "float32"),
    "full of an int32 tensor": (lambda lib: lib.full((2,), one(lib, 1, "int32")), "int64"),
    "full of a bool tensor": (lambda lib: lib.full((2,), one(lib, 1, "bool")), "bool"),
    "full of np.float64": (lambda lib: lib.full((2,), np.float64(1)), "float32"),
    "full of np.int32": (lambda lib: lib.full((2,), np.int32(1)), "int64"),
    "full of a complex": (lambda lib: lib.full((2,), 1j), "complex64"),
    "arange of an integer tensor": (lambda lib: lib.arange(one(lib, 3, "int64")), "int64"),
    "arange of an int32 tensor": (lambda lib: lib.arange(one(lib, 3, "int32")), "int64"),
    "arange of integer tensors": (lambda lib: lib.arange(1, one(lib, 3, "int64"), 1), "int64"),
    "arange of a float64 tensor": (lambda lib: lib.arange(one(lib, 3, "float64")), "float32"),
    "arange of np.int32": (lambda lib: lib.arange(np.int32(3)), "int64"),
    "arange of np.float64": (lambda lib: lib.arange(np.float64(3)), "float32"),
    "linspace of tensors": (
        lambda lib: lib.linspace(one(lib, 0, "float64"), one(lib, 1, "int64"), 3),
        "float32",
    ),
    "linspace of a complex tensor": (
        lambda lib: lib.linspace(one(lib, 1j, "complex64"), 1, 3),
        "complex64",
    ),
}


# PyTorch says that it is slow.
array_lists = pytest.mark.filterwarnings("ignore:Creating a tensor from a list of numpy.ndarrays")


@array_lists
@pytest.mark.parametrize("case", DTYPES)
def test_dtype(lib: Any, case: str) -> None:
    call, dtype = DTYPES[case]
    found = call(lib).dtype
    assert found == getattr(lib, dtype)


VALUES: dict[str, tuple[Call, Any]] = {
    "tensors": (lambda lib: lib.tensor([2, one(lib, 1.5, "float64")]), [2.0, 1.5]),
    "a tensor of one element": (lambda lib: lib.tensor([one(lib, [[1.5]], "float64")]), [1.5]),
    "arrays": (lambda lib: lib.tensor([np.arange(2), [3, 4]]), [[0, 1], [3, 4]]),
    "a negative number as uint8": (lambda lib: one(lib, [-1, -255], "uint8"), [255, 1]),
    "floats as int64": (lambda lib: one(lib, [1.5, -1.5], "int64"), [1, -1]),
    "the largest integers": (lambda lib: lib.tensor([2**63 - 1, -(2**63)]), [2**63 - 1, -(2**63)]),
    "too large a float": (lambda lib: lib.tensor([1e300]), [float("inf")]),
    "arange rounds down": (lambda lib: lib.arange(0, 5.5, dtype=lib.int64), [0, 1, 2, 3, 4]),
    "arange of a rounded step": (
        lambda lib: lib.arange(0.5, 5.5, 1.5, dtype=lib.int64),
        [0, 1, 2, 3, 4],
    ),
    "full of a negative number": (lambda lib: lib.full((1,), -1, dtype=lib.uint8), [255]),
    "zeros of a tensor": (lambda lib: lib.zeros(lib.tensor(2)), [0.0, 0.0]),
    "zeros of NumPy's numbers": (lambda lib: lib.zeros((np.int64(1), 1)), [[0.0]]),
}


@array_lists
@pytest.mark.parametrize("case", VALUES)
def test_values(lib: Any, case: str) -> None:
    call, expected = VALUES[case]
    assert call(lib).tolist() == expected


REFUSED: dict[str, tuple[Call, type[Exception]]] = {
    "tensors of several elements": (lambda lib: lib.tensor([lib.ones(2)]), ValueError),
    "sequences of different lengths": (lambda lib: lib.tensor([[1], [1, 2]]), ValueError),
    "too large an integer": (lambda lib: lib.tensor([2**63]), ValueError),
    "far too large an integer": (lambda lib: lib.tensor(2**70), ValueError),
    "300 as uint8": (lambda lib: one(lib, [300], "uint8"), RuntimeError),
    "nan as int64": (lambda lib: one(lib, [float("nan")], "int64"), RuntimeError),
    "a complex as float32": (lambda lib: one(lib, [1j], "float32"), TypeError),
    "text": (lambda lib: lib.tensor("a"), TypeError),
    "full of a vector": (lambda lib: lib.full((2,), lib.ones(1)), TypeError),
    "full of a list": (lambda lib: lib.full((2,), [1.0, 2.0]), TypeError),
    "full of None": (lambda lib: lib.full((2,), None), TypeError),
    "full of a size": (lambda lib: lib.full(2, 1.0), TypeError),
    "full of a negative size": (lambda lib: lib.full((-2,), 1.0), RuntimeError),
    "full of 300 as uint8": (lambda lib: lib.full((2,), 300, dtype=lib.uint8), RuntimeError),
    "full of a complex as float": (lambda lib: lib.full_like(lib.ones(1), 1j), RuntimeError),
    "full of 1e300 as float32": (lambda lib: lib.full_like(lib.ones(1), 1e300), RuntimeError),
    "arange of a vector": (lambda lib: lib.arange(lib.tensor([3])), TypeError),
    "arange of an array": (lambda lib: lib.arange(np.array(3)), TypeError),
    "arange of infinity": (lambda lib: lib.arange(float("inf")), RuntimeError),
    "arange of nan": (lambda lib: lib.arange(float("nan")), RuntimeError),
    "arange of bools": (lambda lib: lib.arange(2, dtype=lib.bool), NotImplementedError),
    "arange of complex": (lambda lib: lib.arange(2, dtype=lib.complex64), NotImplementedError),
    "arange to a complex": (lambda lib: lib.arange(lib.tensor(2j)), RuntimeError),
    "linspace of a vector": (lambda lib: lib.linspace(lib.zeros(1), 1, 3), RuntimeError),
    "linspace of a bool": (lambda lib: lib.linspace(0, 1, True), TypeError),
    "linspace of a float": (lambda lib: lib.linspace(0, 1, 3.0), TypeError),
    "linspace of complex as float": (
        lambda lib: lib.linspace(0, 1j, 3, dtype=lib.float32),
        RuntimeError,
    ),
    "zeros of a float": (lambda lib: lib.zeros(2.0), TypeError),
    "zeros of a float in a tuple": (lambda lib: lib.zeros((2.0,)), TypeError),
    "zeros of a float tensor": (lambda lib: lib.zeros(lib.tensor(2.0)), TypeError),
    "zeros of a bool": (lambda lib: lib.zeros(True), TypeError),
    "zeros of an array": (lambda lib: lib.zeros(np.array([2, 3])), TypeError),
    "zeros of a vector": (lambda lib: lib.zeros(lib.tensor([2, 3])), TypeError),
    "zeros of text": (lambda lib: lib.zeros("a"), TypeError),
    "zeros of nothing": (lambda lib: lib.zeros(), TypeError),
    "empty of nothing": (lambda lib: lib.empty(), TypeError),
    "rand of nothing": (lambda lib: lib.rand(), TypeError),
    "new_zeros of nothing": (lambda lib: lib.ones(1).new_zeros(), TypeError),
    "new_ones of a float": (lambda lib: lib.ones(1).new_ones(2.0), TypeError),
    "zeros of a negative size": (lambda lib: lib.zeros(-1), RuntimeError),
    "randn of a negative size": (lambda lib: lib.randn(2, -1), RuntimeError),
    "eye of a negative size": (lambda lib: lib.eye(-1), RuntimeError),
    "eye of a float": (lambda lib: lib.eye(2.0), TypeError),
    "zeros_like of a list": (lambda lib: lib.zeros_like([1.0]), TypeError),
    "zeros_like of an array": (lambda lib: lib.zeros_like(np.ones(1)), TypeError),
    "randint without a size": (lambda lib: lib.randint(3), TypeError),
    "randint of a size": (lambda lib: lib.randint(3, 2), TypeError),
    "randint below a float": (lambda lib: lib.randint(1.5, (2,)), TypeError),
    "randperm of a float": (lambda lib: lib.randperm(3.0), TypeError),
    "randperm of a negative number": (lambda lib: lib.randperm(-1), RuntimeError),
    "multinomial of none": (lambda lib: lib.multinomial(lib.ones(2), 0), RuntimeError),
    "multinomial of too many": (lambda lib: lib.multinomial(lib.ones(2), 3), RuntimeError),
    "tril_indices of a float": (lambda lib: lib.tril_indices(2.0, 3), TypeError),
    "tril_indices of a negative size": (lambda lib: lib.tril_indices(-2, 3), RuntimeError),
    "triu_indices as float": (
        lambda lib: lib.triu_indices(2, 3, dtype=lib.float32),
        NotImplementedError,
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(lib: Any, case: str) -> None:
    call, error = REFUSED[case]
    with raises(error):
        call(lib)
