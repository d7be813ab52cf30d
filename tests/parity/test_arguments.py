"""Arguments that an operation refuses: floats and bools for integers, none at all, other dtypes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.parity.conftest import raises

Call = Callable[[Any, Any], Any]

# Calls with a matrix [3, 3] of 0. to 8. and an argument that must be an integer.
INTEGERS: dict[str, Call] = {
    "narrow from": lambda x, n: x.narrow(0, n, 1),
    "narrow length": lambda x, n: x.narrow(0, 1, n),
    "narrow dim": lambda x, n: x.narrow(n, 1, 1),
    "select": lambda x, n: x.select(0, n),
    "select dim": lambda x, n: x.select(n, 0),
    "roll": lambda x, n: x.roll(n, 0),
    "roll dim": lambda x, n: x.roll(1, n),
    "roll dims": lambda x, n: x.roll((1,), (n,)),
    "repeat": lambda x, n: x.repeat(n, 1),
    "repeat of a tuple": lambda x, n: x.repeat((1, n)),
    "tile": lambda x, n: x.tile((n,)),
    "repeat_interleave": lambda x, n: x.repeat_interleave(n),
    "repeat_interleave dim": lambda x, n: x.repeat_interleave(2, n),
    "unsqueeze": lambda x, n: x.unsqueeze(n),
    "squeeze": lambda x, n: x.squeeze(n),
    "squeeze of a tuple": lambda x, n: x.squeeze((n,)),
    "chunk": lambda x, n: x.chunk(n),
    "chunk dim": lambda x, n: x.chunk(1, n),
    "split": lambda x, n: x.split(n),
    "split sections": lambda x, n: x.split([n, 2]),
    "split_with_sizes": lambda x, n: x.split_with_sizes((n, 2)),
    "unsafe_split": lambda x, n: x.unsafe_split(n),
    "unsafe_split_with_sizes": lambda x, n: x.unsafe_split_with_sizes((2, n)),
    "unsafe_chunk": lambda x, n: x.unsafe_chunk(n),
    "tensor_split": lambda x, n: x.tensor_split(n),
    "tensor_split indices": lambda x, n: x.tensor_split((n,)),
    "hsplit indices": lambda x, n: x.hsplit((n,)),
    "unbind": lambda x, n: x.unbind(n),
    "permute": lambda x, n: x.permute(n, 0),
    "permute of a tuple": lambda x, n: x.permute((0, n)),
    "transpose": lambda x, n: x.transpose(n, 0),
    "swapaxes": lambda x, n: x.swapaxes(0, n),
    "movedim": lambda x, n: x.movedim(n, 0),
    "movedim of tuples": lambda x, n: x.movedim((n,), (0,)),
    "flip": lambda x, n: x.flip(n),
    "flip of a tuple": lambda x, n: x.flip((n,)),
    "rot90": lambda x, n: x.rot90(n),
    "rot90 dims": lambda x, n: x.rot90(1, (0, n)),
    "view": lambda x, n: x.view(n, 9),
    "view of a tuple": lambda x, n: x.view((n, 9)),
    "reshape": lambda x, n: x.reshape(n, 9),
    "reshape of a tuple": lambda x, n: x.reshape((9, n)),
    "flatten": lambda x, n: x.flatten(n),
    "flatten end": lambda x, n: x.flatten(0, n),
    "unflatten": lambda x, n: x.unflatten(0, (3, n)),
    "expand": lambda x, n: x.expand(n, 3, 3),
    "expand of a tuple": lambda x, n: x.expand((n, 3, 3)),
    "broadcast_to": lambda x, n: x.broadcast_to((n, 3, 3)),
    "diagonal": lambda x, n: x.diagonal(n),
    "diagonal dim": lambda x, n: x.diagonal(0, 0, n),
    "diag": lambda x, n: x.diag(n),
    "diag_embed": lambda x, n: x.diag_embed(n),
    "diagflat": lambda x, n: x.diagflat(n),
    "tril": lambda x, n: x.tril(n),
    "triu": lambda x, n: x.triu(n),
    "unfold": lambda x, n: x.unfold(0, n, 1),
    "unfold step": lambda x, n: x.unfold(0, 1, n),
    "as_strided": lambda x, n: x.as_strided((n,), (1,)),
    "as_strided stride": lambda x, n: x.as_strided((2,), (n,)),
    "as_strided offset": lambda x, n: x.as_strided((2,), (1,), n),
    "sum": lambda x, n: x.sum(n),
    "sum of a tuple": lambda x, n: x.sum((n,)),
    "mean": lambda x, n: x.mean(n),
    "prod": lambda x, n: x.prod(n),
    "amax": lambda x, n: x.amax(n),
    "max": lambda x, n: x.max(n),
    "argmax": lambda x, n: x.argmax(n),
    "median": lambda x, n: x.median(n),
    "kthvalue": lambda x, n: x.kthvalue(n),
    "topk": lambda x, n: x.topk(n),
    "sort": lambda x, n: x.sort(n),
    "cumsum": lambda x, n: x.cumsum(n),
    "cummax": lambda x, n: x.cummax(n),
    "logcumsumexp": lambda x, n: x.logcumsumexp(n),
    "diff dim": lambda x, n: x.diff(1, n),
    "logsumexp": lambda x, n: x.logsumexp(n),
    "softmax": lambda x, n: x.softmax(n),
    "all": lambda x, n: x.all(n),
    "count_nonzero": lambda x, n: x.count_nonzero(n),
    "select_scatter": lambda x, n: x.select_scatter(x[0], 0, n),
    "slice_scatter": lambda x, n: x.slice_scatter(x[1:], 0, n),
    "diagonal_scatter": lambda x, n: x.diagonal_scatter(x[0, :2], n),
    "as_strided_scatter": lambda x, n: x.as_strided_scatter(x[0, :1], (n,), (1,)),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers(lib: Any, name: str) -> None:
    x = lib.arange(9.0).reshape(3, 3)
    INTEGERS[name](x, 1)
    INTEGERS[name](x, lib.tensor(1))
    if name != "split":  # PyTorch wants Python's integers there
        INTEGERS[name](x, np.int64(1))
    for other in (1.0, "1"):
        with raises(TypeError):
            INTEGERS[name](x, other)


# PyTorch takes bools in a tuple, unless they come first.
BOOLS_IN_TUPLES = {
    "permute of a tuple",
    "repeat of a tuple",
    "reshape of a tuple",
    "rot90 dims",
    "unflatten",
    "unsafe_split_with_sizes",
}


@pytest.mark.parametrize("name", sorted(INTEGERS.keys() - BOOLS_IN_TUPLES))
def test_bools_are_no_integers(lib: Any, name: str) -> None:
    x = lib.arange(9.0).reshape(3, 3)
    with raises(TypeError):
        INTEGERS[name](x, True)


REFUSED: dict[str, tuple[Callable[[Any], Any], type[Exception]]] = {
    "narrow from a float tensor": (
        lambda lib: lib.ones(3).narrow(0, lib.tensor(1.0), 1),
        RuntimeError,
    ),
    "narrow from a vector": (lambda lib: lib.ones(3).narrow(0, lib.tensor([1]), 1), RuntimeError),
    "select of a float tensor": (lambda lib: lib.ones(3).select(0, lib.tensor(1.0)), TypeError),
    "repeat of a vector": (lambda lib: lib.ones(3, 3).repeat(lib.tensor([2, 1])), TypeError),
    "split of a vector": (lambda lib: lib.ones(3).split(lib.tensor([1, 2])), TypeError),
    "view of nothing": (lambda lib: lib.ones(1).view(), TypeError),
    "reshape of nothing": (lambda lib: lib.ones(1).reshape(), TypeError),
    "expand of nothing": (lambda lib: lib.ones(1).expand(), TypeError),
    "repeat of nothing": (lambda lib: lib.ones(1).repeat(), TypeError),
    "tile of nothing": (lambda lib: lib.ones(1).tile(), TypeError),
    "permute of nothing": (lambda lib: lib.tensor(1.0).permute(), TypeError),
    "flip of nothing": (lambda lib: lib.ones(1).flip(), TypeError),
    "flip of nothing, the function": (lambda lib: lib.flip(lib.ones(1)), TypeError),
    "H of a vector": (lambda lib: lib.ones(2).H, RuntimeError),
    "H of matrices": (lambda lib: lib.ones(2, 2, 2).H, RuntimeError),
    "mT of a vector": (lambda lib: lib.ones(2).mT, RuntimeError),
    "mH of a vector": (lambda lib: lib.ones(2).mH, RuntimeError),
    "t of matrices": (lambda lib: lib.ones(2, 2, 2).t(), RuntimeError),
    "meshgrid of none": (lambda lib: lib.meshgrid([]), RuntimeError),
    "meshgrid of floats and doubles": (
        lambda lib: lib.meshgrid(lib.ones(2), lib.ones(2).double(), indexing="ij"),
        RuntimeError,
    ),
    "meshgrid of floats and integers": (
        lambda lib: lib.meshgrid(lib.ones(2), lib.ones(2).long(), indexing="ij"),
        RuntimeError,
    ),
    "cat of a tensor": (lambda lib: lib.cat(lib.ones(2, 2)), TypeError),
    "stack of a tensor": (lambda lib: lib.stack(lib.ones(2, 2)), TypeError),
    "hstack of a tensor": (lambda lib: lib.hstack(lib.ones(2, 2)), TypeError),
    "vstack of a tensor": (lambda lib: lib.vstack(lib.ones(2, 2)), TypeError),
    "cat of none": (lambda lib: lib.cat([]), ValueError),
    "hstack of none": (lambda lib: lib.hstack([]), RuntimeError),
    "dstack of none": (lambda lib: lib.dstack([]), RuntimeError),
    "column_stack of none": (lambda lib: lib.column_stack([]), RuntimeError),
    "another output_size": (
        lambda lib: lib.ones(3).repeat_interleave(2, 0, output_size=5),
        RuntimeError,
    ),
    "tensordot of a float": (
        lambda lib: lib.tensordot(lib.ones(2, 2), lib.ones(2, 2), 1.0),
        RuntimeError,
    ),
    "tensordot of floats": (
        lambda lib: lib.tensordot(lib.ones(2, 2), lib.ones(2, 2), ([0.0], [1])),
        TypeError,
    ),
    "atan2 of a number": (lambda lib: lib.atan2(lib.ones(2), 1.0), TypeError),
    "dist to a number": (lambda lib: lib.ones(2).dist(1.0), TypeError),
    "equal to a number": (lambda lib: lib.equal(lib.ones(2), 1.0), TypeError),
    "argmax of bools": (lambda lib: lib.tensor([True]).argmax(), RuntimeError),
    "argmin of bools": (lambda lib: lib.tensor([True]).argmin(0), RuntimeError),
    "topk of bools": (lambda lib: lib.tensor([True]).topk(1), RuntimeError),
    "kthvalue of bools": (lambda lib: lib.tensor([True]).kthvalue(1), NotImplementedError),
    "median of bools": (lambda lib: lib.tensor([True]).median(), NotImplementedError),
    "trace of bools": (lambda lib: lib.tensor([[True]]).trace(), NotImplementedError),
    "roll of a scalar along a dimension": (lambda lib: lib.tensor(1.0).roll(1, 0), IndexError),
    "view_as of a number": (lambda lib: lib.ones(1).view_as(1), TypeError),
    "expand_as of a number": (lambda lib: lib.ones(1).expand_as(np.float64(1)), TypeError),
    "type_as of a number": (lambda lib: lib.ones(1).type_as(1), TypeError),
    "mm with a number": (lambda lib: lib.mm(lib.ones(1, 1), 1.0), TypeError),
    "outer with a number": (lambda lib: lib.outer(lib.ones(1), 1.0), TypeError),
    "clamp by text": (lambda lib: lib.ones(1).clamp("1"), TypeError),
    "clamp_min by None": (lambda lib: lib.ones(1).clamp_min(None), TypeError),
    "clamp by too large a number": (lambda lib: lib.ones(1).clamp(1e300), RuntimeError),
    "cosine similarity of other sizes": (
        lambda lib: lib.nn.functional.cosine_similarity(lib.ones(2), lib.ones(3), dim=0),
        RuntimeError,
    ),
    "a bool as alpha": (lambda lib: lib.add(lib.ones(2), lib.ones(2), alpha=True), RuntimeError),
    "embedding with padding outside": (
        lambda lib: lib.nn.functional.embedding(lib.tensor([0]), lib.ones(2, 2), padding_idx=5),
        AssertionError,
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(lib: Any, case: str) -> None:
    call, error = REFUSED[case]
    with raises(error):
        call(lib)


def test_no_dimensions(lib: Any) -> None:
    x = lib.tensor([[0.0, 1.0], [2.0, 0.0]])
    assert x.sum(()).tolist() == 3
    assert x.all(()).tolist() == [[False, True], [True, False]]
    assert x.any([]).tolist() == [[False, True], [True, False]]
    assert x.flip(()).tolist() == x.tolist()
    assert lib.tensor(1.0).permute(()).tolist() == 1


# Values that tensors of uint8, int64 and float32 do not hold.
TOO_LARGE = {
    "uint8": [300, -300, 1e9, 2j],
    "int64": [float("nan"), 1e30, 2j],
    "float32": [1e39, 2j],
}

WRITES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "fill_": lambda lib, x, value: x.fill_(value),
    "masked_fill": lambda lib, x, value: x.masked_fill(x == 0, value),
    "masked_fill_": lambda lib, x, value: x.masked_fill_(x == 0, value),
    "index_fill": lambda lib, x, value: x.index_fill(0, lib.tensor([0]), value),
    "scatter": lambda lib, x, value: x.scatter(0, lib.tensor([0]), value),
    "full_like": lambda lib, x, value: lib.full_like(x, value),
    "new_full": lambda lib, x, value: x.new_full((2,), value),
    "assignment": lambda lib, x, value: x.__setitem__(0, value),
    "assignment to a slice": lambda lib, x, value: x.__setitem__(slice(1), value),
    "assignment at a list": lambda lib, x, value: x.__setitem__([0], value),
}


@pytest.mark.parametrize("dtype", TOO_LARGE)
@pytest.mark.parametrize("name", WRITES)
def test_values_that_do_not_fit_are_refused(lib: Any, name: str, dtype: str) -> None:
    for value in TOO_LARGE[dtype]:
        x = lib.zeros(2, dtype=getattr(lib, dtype))
        with raises(RuntimeError):
            WRITES[name](lib, x, value)
        assert x.tolist() == [0, 0]


@pytest.mark.parametrize("name", WRITES)
def test_only_numbers_are_values(lib: Any, name: str) -> None:
    for value in ("a", None):
        with raises(TypeError):
            WRITES[name](lib, lib.zeros(2), value)


def test_negative_numbers_wrap_around_in_unsigned_tensors(lib: Any) -> None:
    x = lib.zeros(2, dtype=lib.uint8)
    assert x.masked_fill(x == 0, -1).tolist() == [255, 255]
    assert x.index_fill(0, lib.tensor([1]), -255).tolist() == [0, 1]
    x[0] = -2
    assert x.tolist() == [254, 0]
    assert (x + 300).tolist() == [42, 44]
