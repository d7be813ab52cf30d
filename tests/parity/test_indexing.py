"""Indices: lists of lists, repeated and single indices, dtypes; reading, assigning, gradients."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.parity.conftest import constant, leaf, raises

Call = Callable[[Any, Any], Any]


def matrix(lib: Any) -> Any:
    return lib.arange(9.0).reshape(3, 3)


# Lists that are read as one index for each dimension, and the same index as a tuple.
NESTED: dict[str, tuple[Call, Any]] = {
    "lists": (lambda lib, x: [[0, 1], [2, 2]], ([0, 1], [2, 2])),
    "one list": (lambda lib, x: [[0, 1]], ([0, 1],)),
    "a list and an integer": (lambda lib, x: [[0, 1], 2], ([0, 1], 2)),
    "an integer and a list": (lambda lib, x: [0, [2, 2]], (0, [2, 2])),
    "tuples": (lambda lib, x: [(0, 1), (2, 2)], ([0, 1], [2, 2])),
    "arrays": (lambda lib, x: [np.array([0, 1]), np.array([2, 2])], ([0, 1], [2, 2])),
    "tensors": (lambda lib, x: [lib.tensor([0, 1]), lib.tensor([2, 2])], ([0, 1], [2, 2])),
    "a tensor": (lambda lib, x: [lib.tensor([0, 1])], ([0, 1],)),
    "tensors without dimensions": (lambda lib, x: [lib.tensor(0), lib.tensor(1)], (0, 1)),
    "a slice": (lambda lib, x: [slice(0, 2), 1], (slice(0, 2), 1)),
    "None": (lambda lib, x: [None, 0], (None, 0)),
    "an ellipsis": (lambda lib, x: [..., 0], (..., 0)),
    "lists of bools": (lambda lib, x: [[True, False, True], [True, True, False]], ([0, 2], [0, 1])),
    "a deeper list": (lambda lib, x: [[[0, 1], [2, 2]]], ([[0, 1], [2, 2]],)),
}


@pytest.mark.parametrize("case", NESTED)
def test_a_list_of_lists_is_one_index_for_each_dimension(lib: Any, case: str) -> None:
    index, same = NESTED[case]
    x = matrix(lib)
    with pytest.warns(UserWarning, match="tuple"):
        found = x[index(lib, x)]
    assert found.tolist() == x[same].tolist()
    assigned, expected = matrix(lib), matrix(lib)
    expected[same] = -1.0
    with pytest.warns(UserWarning, match="tuple"):
        assigned[index(lib, x)] = -1.0
    assert assigned.tolist() == expected.tolist()


FLAT: dict[str, tuple[Any, list[Any]]] = {
    "integers": ([0, 2], [0, 2]),
    "bools": ([True, False, True], [0, 2]),
    "an array": (np.array([0, 2]), [0, 2]),
    "an array of int16": (np.array([0, 2], np.int16), [0, 2]),
    "a range": (range(0, 3, 2), [0, 2]),
    "a tuple in a tuple": (((0, 2),), [0, 2]),
    "a list in a tuple": (([0, 2],), [0, 2]),
    "nothing": ([], []),
}


@pytest.mark.parametrize("case", FLAT)
def test_a_list_of_numbers_is_one_index(lib: Any, case: str) -> None:
    index, rows = FLAT[case]
    x = matrix(lib)
    assert x[index].tolist() == [x[row].tolist() for row in rows]
    x[index] = -1.0
    expected = matrix(lib).tolist()
    for row in rows:
        expected[row] = [-1.0] * 3
    assert x.tolist() == expected


def test_a_long_list_of_lists_is_one_index(lib: Any) -> None:
    assert lib.zeros(2, 3)[[[0]] * 32].shape == (32, 1, 3)


def test_the_gradient_of_a_list_of_lists(lib: Any) -> None:
    x = leaf(lib, [[1.0, 2], [3, 4]])
    with pytest.warns(UserWarning, match="tuple"):
        found = x[[[0, 0], [1, 1]]]
    found.sum().backward()
    assert x.grad.tolist() == [[0, 2], [0, 0]]


REFUSED: dict[str, tuple[Call, type[Exception]]] = {
    "int16": (lambda lib, x: x[lib.tensor([0], dtype=lib.int16)], IndexError),
    "a float tensor": (lambda lib, x: x[lib.tensor([0.0])], IndexError),
    "more lists than dimensions": (lambda lib, x: x[([0], [0], [0])], IndexError),
    "a slice from a float": (lambda lib, x: x[1.0:], TypeError),
    "a slice to a float tensor": (lambda lib, x: x[: lib.tensor(1.0)], TypeError),
    "gather at int16": (
        lambda lib, x: x.gather(0, lib.tensor([[0]], dtype=lib.int16)),
        RuntimeError,
    ),
    "scatter at uint8": (
        lambda lib, x: x.scatter(0, lib.tensor([[0]], dtype=lib.uint8), 1.0),
        RuntimeError,
    ),
    "take at int32": (lambda lib, x: x.take(lib.tensor([0], dtype=lib.int32)), RuntimeError),
    "put at int32": (
        lambda lib, x: x.put(lib.tensor([0], dtype=lib.int32), lib.ones(1)),
        RuntimeError,
    ),
    "take_along_dim at int32": (
        lambda lib, x: x.take_along_dim(lib.tensor([[0]], dtype=lib.int32), 0),
        RuntimeError,
    ),
    "index_fill at int32": (
        lambda lib, x: x.index_fill(0, lib.tensor([0], dtype=lib.int32), 1.0),
        IndexError,
    ),
    "index_fill of a complex tensor": (
        lambda lib, x: x.index_fill(0, lib.tensor([0]), lib.tensor(1j)),
        RuntimeError,
    ),
    "index_copy at int32": (
        lambda lib, x: x.index_copy(0, lib.tensor([0], dtype=lib.int32), lib.ones(1, 3)),
        RuntimeError,
    ),
    "index_copy of too few": (
        lambda lib, x: x.index_copy(0, lib.tensor([0, 1]), lib.ones(1, 3)),
        IndexError,
    ),
    "index_copy of a number for a row": (
        lambda lib, x: x.index_copy(0, lib.tensor([0]), lib.tensor(1.0)),
        RuntimeError,
    ),
    "index_add of a number for a row": (
        lambda lib, x: x.index_add(0, lib.tensor([0]), lib.tensor(1.0)),
        RuntimeError,
    ),
    "a number as the source of put": (lambda lib, x: x.put(lib.tensor([0]), 1.0), TypeError),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(lib: Any, case: str) -> None:
    call, error = REFUSED[case]
    with raises(error):
        call(lib, matrix(lib))


def test_an_index_without_dimensions_is_one_element(lib: Any) -> None:
    # The elements beyond it keep their values.
    x, one = constant(lib, 1, 2, 3), lib.tensor(1)
    assert x.gather(0, one).tolist() == 2
    assert x.scatter(0, one, 9.0).tolist() == [1, 9, 3]
    assert x.scatter(0, one, constant(lib, 8, 7, 6)).tolist() == [1, 8, 3]
    assert x.scatter_add(0, one, constant(lib, 8, 7, 6)).tolist() == [1, 10, 3]
    assert x.scatter(0, lib.tensor([1]), constant(lib, 9)).tolist() == [1, 9, 3]
    assert x.clone().scatter_(0, one, 9.0).tolist() == [1, 9, 3]
    scalar = constant(lib, 5)
    assert scalar.scatter(0, lib.tensor([0, 0]), 9.0).tolist() == 9
    assert scalar.gather(0, lib.tensor([0, 0])).tolist() == [5, 5]


def test_gradients_at_an_index_without_dimensions(lib: Any) -> None:
    x = leaf(lib, 1, 2, 3)
    (grad,) = lib.autograd.grad(x.gather(0, lib.tensor(1)), x)
    assert grad.tolist() == [0, 1, 0]
    (grad,) = lib.autograd.grad(x.scatter(0, lib.tensor(1), 9.0).sum(), x)
    assert grad.tolist() == [1, 0, 1]
    source = leaf(lib, 5)
    result = x.scatter(0, lib.tensor([2]), source)
    grads = lib.autograd.grad((result * constant(lib, 10, 20, 30)).sum(), (x, source))
    assert [each.tolist() for each in grads] == [[10, 20, 0], 30]


FILLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "index_fill": lambda x, index, value: x.index_fill(0, index, value),
    "index_fill_": lambda x, index, value: x.clone().index_fill_(0, index, value),
}


@pytest.mark.parametrize("name", FILLS)
def test_a_repeated_index_gives_the_value_its_gradient_once(lib: Any, name: str) -> None:
    x, value = leaf(lib, 1, 2, 3, 4), leaf(lib, 9)
    result = FILLS[name](x, lib.tensor([1, 3, 1]), value)
    assert result.tolist() == [1, 9, 3, 9]
    grads = lib.autograd.grad((result * constant(lib, 1, 10, 100, 1000)).sum(), (x, value))
    assert [each.tolist() for each in grads] == [[1, 0, 100, 0], 1010]


def test_a_repeated_index_of_columns(lib: Any) -> None:
    x, value = leaf(lib, [[1.0, 2], [3, 4]]), leaf(lib, 9)
    result = x.index_fill(-1, lib.tensor([0, 0]), value)
    (grad,) = lib.autograd.grad(result.sum(), value)
    assert grad.tolist() == 2


def test_index_fill_counts_negative_indices_from_the_end(lib: Any) -> None:
    x = constant(lib, 1, 2, 3)
    assert x.index_fill(0, lib.tensor([-1, 0]), 9.0).tolist() == [9, 2, 9]
    assert x.take_along_dim(lib.tensor([-1, 0]), 0).tolist() == [3, 1]
    with raises(IndexError):
        x.index_fill(0, lib.tensor([-4]), 9.0)


# Dtypes of a tensor and of the values assigned to it.
PAIRS = [
    ("float32", "float64"),
    ("float64", "float32"),
    ("float32", "int64"),
    ("int64", "float32"),
    ("int64", "bool"),
    ("bool", "int64"),
    ("complex64", "float32"),
    ("float32", "complex64"),
]

ASSIGNMENTS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "assignment": lambda lib, x, v: x.__setitem__(lib.tensor([0]), v),
    "assignment at a list": lambda lib, x, v: x.__setitem__([0], v),
    "index_put": lambda lib, x, v: x.index_put((lib.tensor([0]),), v),
    "index_put_": lambda lib, x, v: x.index_put_((lib.tensor([0]),), v),
    "accumulating": lambda lib, x, v: x.index_put((lib.tensor([0]),), v, accumulate=True),
}


@pytest.mark.parametrize(("dtype", "other"), PAIRS)
@pytest.mark.parametrize("name", ASSIGNMENTS)
@pytest.mark.parametrize("shape", [(), (1,)])
def test_values_at_index_tensors_have_the_tensors_dtype(
    lib: Any, name: str, dtype: str, other: str, shape: tuple[int, ...]
) -> None:
    x = lib.zeros(2, dtype=getattr(lib, dtype))
    with raises(RuntimeError):
        ASSIGNMENTS[name](lib, x, lib.ones(shape, dtype=getattr(lib, other)))
    assert x.tolist() == [0, 0]


@pytest.mark.parametrize(("dtype", "other"), PAIRS[:-1])
@pytest.mark.parametrize("index", [0, slice(1), ..., "mask"])
def test_values_at_views_and_one_value_at_a_mask_convert(
    lib: Any, index: Any, dtype: str, other: str
) -> None:
    x = lib.zeros(2, dtype=getattr(lib, dtype))
    x[lib.tensor([True, False]) if index == "mask" else index] = lib.ones(
        (), dtype=getattr(lib, other)
    )
    assert x.dtype == getattr(lib, dtype)
    assert x.tolist() == [1, 1 if index is ... else 0]


def test_several_values_at_a_mask_do_not_convert(lib: Any) -> None:
    with raises(RuntimeError):
        lib.zeros(2)[lib.tensor([True, True])] = lib.ones(2, dtype=lib.float64)
