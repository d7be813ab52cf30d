"""Updates at an index with arguments at the limits: empty, without dimensions, of another shape."""

from collections.abc import Callable
from typing import Any

import pytest

TAKEN: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "index_copy_ nothing": (
        lambda lib: lib.zeros(2).index_copy_(0, lib.zeros(0).long(), lib.zeros(0)),
        [0, 0],
    ),
    "index_put_ of one value of any shape by a mask": (
        lambda lib: lib.zeros(3).index_put_((lib.tensor([True, False, True]),), lib.ones(1, 1)),
        [1, 0, 1],
    ),
    "a large integer beside bfloat16": (
        lambda lib: lib.ones(1, dtype=lib.bfloat16) + 2**63,
        [2.0**63],
    ),
    "scatter_ nothing": (
        lambda lib: lib.zeros(3).scatter_(0, lib.zeros(0).long(), lib.zeros(1, 1)),
        [0, 0, 0],
    ),
    "scatter_ nothing of a matrix": (
        lambda lib: lib.zeros(1, 2).scatter_(0, lib.zeros(0).long(), lib.zeros(1)),
        [[0, 0]],
    ),
    "scatter_ nothing of a number": (
        lambda lib: lib.zeros(1, 2).scatter_(0, lib.zeros(0).long(), 3),
        [[0, 0]],
    ),
    "scatter_add_ nothing": (
        lambda lib: lib.zeros(3).scatter_add_(0, lib.zeros(0).long(), lib.zeros(1, 0)),
        [0, 0, 0],
    ),
    "scatter_reduce_ nothing": (
        lambda lib: lib.zeros(3).scatter_reduce_(
            0, lib.zeros(0).long(), lib.zeros(1, 0), "sum"
        ),
        [0, 0, 0],
    ),
    "scatter_reduce_ a number": (
        lambda lib: lib.ones(3).scatter_reduce_(0, lib.tensor([1]), lib.tensor(5.0), "amax"),
        [1, 5, 1],
    ),
    "scatter_reduce_ at a number": (
        lambda lib: lib.ones(3).scatter_reduce_(0, lib.tensor(1), lib.tensor(5.0), "prod"),
        [1, 5, 1],
    ),
    "scatter_reduce_ into a number": (
        lambda lib: lib.ones(()).scatter_reduce_(0, lib.tensor([0]), lib.tensor([5.0]), "amax"),
        5,
    ),
    "scatter_reduce_ mean of complex numbers": (
        lambda lib: lib.zeros(2).cfloat().scatter_reduce_(
            0, lib.tensor([0]), lib.ones(1).cfloat(), "mean"
        ),
        [0.5, 0],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
def test_taken(lib: Any, name: str) -> None:
    call, expected = TAKEN[name]
    assert call(lib).tolist() == expected


REFUSED: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "index_copy_ nothing into a number": (
        lambda lib: lib.zeros(()).index_copy_(0, lib.zeros(0).long(), lib.tensor(1.0)),
        IndexError,
        "scalar",
    ),
    "index_put_ with further dimensions": (
        lambda lib: lib.zeros(3).index_put_((lib.tensor([0, 1]),), lib.ones(1, 2)),
        RuntimeError,
        r"\[1, 2\]",
    ),
    "index_put_ with further dimensions by a mask": (
        lambda lib: lib.zeros(3).index_put_((lib.tensor([True, False, True]),), lib.ones(1, 2)),
        RuntimeError,
        r"\[1, 2\]",
    ),
    "index_reduce_ of shorter entries": (
        lambda lib: lib.zeros(3, 4).index_reduce_(0, lib.tensor([0]), lib.ones(1, 2), "amax"),
        RuntimeError,
        "source",
    ),
    "index_reduce_ out of range": (
        lambda lib: lib.zeros(3).index_reduce_(0, lib.tensor([5]), lib.ones(1), "amax"),
        IndexError,
        "index out of range in self",
    ),
    "scatter_ with an imaginary part": (
        lambda lib: lib.ones(3).scatter_(0, lib.tensor([0]), 1 + 5j, reduce="add"),
        RuntimeError,
        "without overflow",
    ),
    "scatter_ with a number too large": (
        lambda lib: lib.zeros(3).byte().scatter_(0, lib.tensor([0]), 2**40, reduce="multiply"),
        RuntimeError,
        "without overflow",
    ),
    "assignment by a mask of another shape": (
        lambda lib: lib.zeros(3).__setitem__(lib.tensor([True, False, True]), lib.ones(2, 1)),
        RuntimeError,
        "shape mismatch|cannot put",
    ),
    "scatter_reduce_ of a number at -1": (
        lambda lib: lib.ones(()).scatter_reduce_(0, lib.tensor(-1), lib.tensor(3.0), "amax"),
        RuntimeError,
        "index -1 is out of bounds",
    ),
    "scatter_reduce_ by an order of complex numbers": (
        lambda lib: lib.zeros(2).cfloat().scatter_reduce_(
            0, lib.tensor([0]), lib.ones(1).cfloat(), "amax"
        ),
        NotImplementedError,
        "amax",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(lib: Any, name: str) -> None:
    call, kind, text = REFUSED[name]
    with pytest.raises(kind, match=text):
        call(lib)


def test_empty_vectors_alone_have_gradients(lib: Any) -> None:
    first, second = lib.zeros(0), lib.zeros(0, requires_grad=True)
    lib.cat([first, second]).sum().backward()
    assert list(second.grad.shape) == [0]


@pytest.mark.parametrize("first", [True, False])
def test_empty_vectors_have_gradients(lib: Any, first: bool) -> None:
    empty, full = lib.zeros(0, requires_grad=True), lib.ones(3)
    joined = lib.cat([empty, full] if first else [full, empty])
    assert joined.requires_grad
    joined.sum().backward()
    assert list(empty.grad.shape) == [0]


def test_an_empty_vector_beside_matrices_has_a_gradient(lib: Any) -> None:
    empty, matrix = lib.zeros(0, requires_grad=True), lib.ones(2, 3, requires_grad=True)
    joined = lib.cat([matrix, empty, matrix], dim=1)
    joined.sum().backward()
    assert list(joined.shape) == [2, 6]
    assert list(empty.grad.shape) == [0]
    assert matrix.grad.tolist() == [[2, 2, 2]] * 2
