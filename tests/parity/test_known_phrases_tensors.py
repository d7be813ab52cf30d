"""Phrases of PyTorch's errors of functions of tensors, and the classes of these errors."""

import re
from collections.abc import Callable
from typing import Any

import pytest


def deleted(lib: Any) -> None:
    del lib.ones(2)[0]


def masked_assignment(lib: Any) -> None:
    lib.ones(3)[lib.tensor([True, False])] = 1


def assigned(lib: Any, index: Any, value: Any) -> None:
    lib.ones(3)[index] = value


def in_itself() -> Any:
    data: list[Any] = []
    data.append(data)
    return data


def plus_equal(lib: Any) -> None:
    x = lib.tensor([1])
    x += 1.5


INPLACE: dict[str, Callable[[Any], Any]] = {
    "unsupported operation": lambda lib: lib.ones(1).expand(3).add_(1),
    "single memory location": lambda lib: lib.ones(1).expand(3).mul_(2),
    "result type Float can't be cast to the desired output type Long": plus_equal,
    "result type Double can't be cast to the desired output type Int": lambda lib: lib.tensor(
        [1], dtype=lib.int32
    ).mul_(lib.ones(1, dtype=lib.float64)),
    "output with shape [3] doesn't match the broadcast shape [2, 3]": lambda lib: lib.ones(3).add_(
        lib.ones(2, 3)
    ),
    "value cannot be converted to type": lambda lib: lib.ones(2).masked_fill_(
        lib.tensor([True, False]), 1j
    ),
}
INDEXING: dict[str, Callable[[Any], Any]] = {
    "Dimension out of range (expected to be in range of [-2, 1], but got 5)": lambda lib: lib.ones(
        2, 2
    ).sum(5),
    "Dimension out of range (expected to be in range of [-1, 0], but got 2)": lambda lib: lib.ones(
        2
    ).transpose(0, 2),
    "index 5 is out of bounds for dimension 0 with size 2": lambda lib: lib.ones(2)[5],
    "index 5 is out of bounds for dimension 1 with size 3": lambda lib: lib.ones(2, 3)[:, 5],
    "index 7 is out of bounds for dimension 0 with size 3": lambda lib: lib.ones(3)[
        lib.tensor([0, 7])
    ],
    "too many indices for tensor of dimension 2": lambda lib: lib.ones(2, 2)[0, 0, 0],
    "value tensor of shape [2] cannot be broadcast to indexing result of shape [3]": (
        lambda lib: assigned(lib, lib.tensor([0, 1, 2]), lib.ones(2))
    ),
    "The shape of the mask [2] at index 0 does not match the shape of the indexed tensor [2, 3] at "
    "index 1": lambda lib: lib.ones(2, 3)[:, lib.tensor([True, False])],
    "indexing tensors could not be broadcast together with shapes [2], [3]": lambda lib: lib.ones(
        3, 3
    )[lib.tensor([0, 1]), lib.tensor([0, 1, 2])],
    "The shape of the mask [3] at index 0 does not match the shape of the indexed tensor [2] at "
    "index 0": lambda lib: lib.ones(2)[lib.tensor([True, False, True])],
    "The shape of the mask [2] at index 0": masked_assignment,
    "invalid index of a 0-dim tensor": lambda lib: lib.ones(())[0],
    "slice indices must be": lambda lib: lib.ones(2)["a":],
    "step must be greater than zero": lambda lib: lib.ones(2)[::-1],
    "tensors used as indices must be long, int, byte or bool tensors": lambda lib: lib.ones(2)[
        lib.ones(1)
    ],
    "Index put requires the source and destination dtypes match": lambda lib: lib.ones(
        3
    ).index_put_((lib.tensor([0]),), lib.ones(1, dtype=lib.float64)),
    "does not support deleting items": deleted,
    "select(): index 4 out of range for tensor of size [3] at dimension 0": lambda lib: lib.ones(
        3
    ).select(0, 4),
    "only supports boolean masks": lambda lib: lib.ones(2).masked_scatter(
        lib.tensor([1, 0]), lib.ones(2)
    ),
    "expected BoolTensor for mask": lambda lib: lib.ones(2).masked_select(lib.tensor([1, 0])),
    "out of range for dimension 0": lambda lib: lib.ones(3).kthvalue(4),
    "selected index k out of range": lambda lib: lib.ones(3).topk(4),
    "index out of range in self": lambda lib: lib.ones(3).index_select(0, lib.tensor([3])),
    "index 3 is out of bounds for dimension 0 with size 3": lambda lib: lib.ones(3).gather(
        0, lib.tensor([3])
    ),
    "Expected self.dtype to be equal to src.dtype": lambda lib: lib.ones(3).scatter(
        0, lib.tensor([0]), lib.ones(1, dtype=lib.float64)
    ),
    "Index tensor must have the same number of dimensions as": lambda lib: lib.ones(3).gather(
        0, lib.tensor([[0]])
    ),
    "Expected dtype int32/int64 for index": lambda lib: lib.ones(3).gather(0, lib.ones(1)),
    "Size does not match at dimension 0": lambda lib: lib.ones(1, 1).gather(
        1, lib.tensor([[0], [0]])
    ),
    "exceeds dimension size (3)": lambda lib: lib.ones(3).narrow(0, 2, 2),
    "boundaries tensor must be 1 dimension": lambda lib: lib.bucketize(lib.ones(2), lib.ones(2, 2)),
}
SHAPES: dict[str, Callable[[Any], Any]] = {
    "The expanded size of the tensor (2) must match the existing size (3) at non-singleton "
    "dimension 0": lambda lib: lib.ones(3).expand(2),
    "must be greater or equal to the number of dimensions in the tensor": lambda lib: lib.ones(
        2, 2
    ).expand(2),
    "Sizes of tensors must match except in dimension 1": lambda lib: lib.cat(
        [lib.ones(2, 2), lib.ones(3, 2)], 1
    ),
    "Expected size 2 but got size 3 for tensor number 1 in the list": lambda lib: lib.cat(
        [lib.ones(2, 2), lib.ones(3, 2)], 1
    ),
    "Tensors must have same number of dimensions: got 2 and 1": lambda lib: lib.cat(
        [lib.ones(2, 2), lib.ones(2)]
    ),
    "zero-dimensional tensor": lambda lib: lib.cat([lib.ones(()), lib.ones(())]),
    "expected a non-empty list of Tensors": lambda lib: lib.cat([]),
    "stack expects a non-empty TensorList": lambda lib: lib.stack([]),
    "hstack expects a non-empty TensorList": lambda lib: lib.hstack([]),
    "vstack expects a non-empty TensorList": lambda lib: lib.vstack([]),
    "mismatch in length of strides and shape": lambda lib: lib.ones(4).as_strided((2, 2), (1,)),
    "view size is not compatible with input tensor's size and stride": lambda lib: (
        lib.ones(2, 3).t().view(6)
    ),
    "Use .reshape(...) instead": lambda lib: lib.ones(2, 3).t().view(6),
    "because the unspecified dimension size -1 can be any value": lambda lib: lib.ones(0).view(
        -1, 0
    ),
    "only one dimension can be inferred": lambda lib: lib.ones(4).reshape(-1, -1),
    "invalid shape dimension -2": lambda lib: lib.ones(4).reshape(-2, 2),
    "only supported on matrices": lambda lib: lib.ones(3).mT,
    "supported on matrices": lambda lib: lib.ones(2, 2, 2).H,
    "expects a tensor with <= 2 dimensions": lambda lib: lib.ones(2, 2, 2).t(),
    "appears multiple times in the list of dims": lambda lib: lib.ones(2, 2).sum((0, 0)),
    "appears multiple times": lambda lib: lib.ones(2, 2).flip(0, 0),
    "duplicate dims are not allowed": lambda lib: lib.ones(2, 2).permute(0, 0),
    "number of dimensions in the tensor input does not match the length of the desired ordering": (
        lambda lib: lib.ones(2, 2).permute(0)
    ),
    "split_with_sizes expects split_sizes to sum exactly to 4": lambda lib: lib.ones(4).split(
        [1, 2]
    ),
    "expects `chunks` to be greater than 0": lambda lib: lib.ones(4).chunk(0),
    "start_dim cannot come after end_dim": lambda lib: lib.ones(2, 2, 2).flatten(2, 0),
    "Dimension specified as 0 but tensor has no dimensions": lambda lib: lib.ones(()).unbind(),
    "diagonal dimensions cannot be identical": lambda lib: lib.ones(2, 2).diagonal(0, 1, 1),
    "input tensor must have at least 2 dimensions": lambda lib: lib.ones(2).tril(),
    "expected a matrix": lambda lib: lib.ones(2).trace(),
    "Input must be >= 2-d": lambda lib: lib.ones(2).fliplr(),
    "Input must be >= 1-d": lambda lib: lib.ones(()).flipud(),
    "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor": (
        lambda lib: lib.ones(2, 2).repeat(2)
    ),
    "don't multiply up to the size of dim": lambda lib: lib.ones(4).unflatten(0, (3, 2)),
    "Invalid source or destination dims": lambda lib: lib.ones(2, 2).movedim((0, 1), (0,)),
}


@pytest.mark.parametrize("phrase", [*INPLACE, *INDEXING, *SHAPES])
def test_phrases(lib: Any, phrase: str) -> None:
    program = (INPLACE | INDEXING | SHAPES)[phrase]
    with pytest.raises((RuntimeError, TypeError, ValueError, IndexError), match=re.escape(phrase)):
        program(lib)
