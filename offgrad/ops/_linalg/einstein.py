"""Einstein's summation convention by permutations, sums and products of matrices."""

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad.autograd.tensor_base import TensorBase, describe
from offgrad.ops._core.autocast import lower_precision, own_precision
from offgrad.ops._core.dtypes import check_tensor
from offgrad.ops._linalg.products import bmm, check_factors, dot, mm
from offgrad.ops._shape.diagonals import diagonal

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["einsum"]

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def einsum(equation: Any, *operands: Any) -> "Tensor":
    """Return the sum of products of the operands' elements given by an equation.

    Args:
        equation: letters for the dimensions of each operand, ``...`` for those that broadcast, and
            after ``->`` those of the result: ``"bij,bjk->bik"``. Without ``->`` the result has the
            letters that occur once, in alphabetical order.
        *operands: the tensors, or one sequence of them. Without an equation: operands and lists of
            numbers for their dimensions in turn, then optionally a list for the result.

    Raises:
        RuntimeError: if the equation is invalid or the operands do not fit it.
    """
    if not isinstance(equation, str):
        equation, operands = _from_lists((equation, *operands))
    elif len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    text = equation.replace(" ", "")
    inputs, arrow, output = text.partition("->")
    terms = inputs.split(",")
    if len(terms) != len(operands):
        more = "more" if len(operands) > len(terms) else "fewer"
        raise RuntimeError(
            f"einsum: {more} operands were provided than specified in the equation: got "
            f"{len(operands)} for {equation!r}"
        )
    for each in operands:
        check_tensor(each, "einsum")
    ellipsis = max(_ellipsis_ndim(term, each) for term, each in zip(terms, operands, strict=True))
    # Numbers stand for the broadcast dimensions, counted from the last.
    labels = [_labels(term, each) for term, each in zip(terms, operands, strict=True)]
    if arrow:
        result = _output(output, ellipsis, labels, equation)
    else:
        seen = [label for each in labels for label in each if isinstance(label, str)]
        result = [*range(ellipsis - 1, -1, -1), *sorted(x for x in set(seen) if seen.count(x) == 1)]
    tensors = [_without_repeats(*each) for each in zip(operands, labels, strict=True)]
    return _contract(tensors, result, equation)


def _from_lists(arguments: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """Return the equation for operands and lists of numbers in turn, and the operands."""
    count = len(arguments) // 2
    operands, lists = arguments[: 2 * count : 2], arguments[1 : 2 * count : 2]
    if not count or not all(isinstance(each, TensorBase) for each in operands):
        raise ValueError("einsum: an equation, or tensors and lists of numbers in turn, are needed")

    def term(numbers: Sequence[Any]) -> str:
        if not all(each is Ellipsis or 0 <= each < len(_LETTERS) for each in numbers):
            raise ValueError(f"einsum: numbers must be from 0 to 51, got {list(numbers)}")
        return "".join("..." if each is Ellipsis else _LETTERS[each] for each in numbers)

    equation = ",".join(term(each) for each in lists)
    if len(arguments) % 2:
        equation += "->" + term(arguments[-1])
    return equation, operands


def _ellipsis_ndim(term: str, operand: "Tensor") -> int:
    """Return the number of the operand's dimensions under ``...``; check the term."""
    letters = term.replace("...", "", 1)
    if not all(each in _LETTERS for each in letters):
        raise RuntimeError(f"einsum: a term is made of letters and one '...', got {term!r}")
    free = operand._array.ndim - len(letters)
    if free < 0 or (free and "..." not in term):
        raise RuntimeError(
            f"einsum: the number of subscripts in the equation, {term!r}, does not match the "
            f"number of dimensions of a {describe(operand)}"
        )
    return free


def _labels(term: str, operand: "Tensor") -> list[Any]:
    before, dots, after = term.partition("...")
    free = _ellipsis_ndim(term, operand) if dots else 0
    return [*before, *range(free - 1, -1, -1), *after]


def _output(output: str, ellipsis: int, labels: list[list[Any]], equation: str) -> list[Any]:
    before, dots, after = output.partition("...")
    result = [*before, *(range(ellipsis - 1, -1, -1) if dots else ()), *after]
    known = {label for each in labels for label in each}
    if len(set(result)) != len(result) or not set(result) <= known:
        raise RuntimeError(
            f"einsum: the result must name dimensions of operands, each once, got {equation!r}"
        )
    return result


def _without_repeats(tensor: "Tensor", labels: list[Any]) -> "tuple[Tensor, list[Any]]":
    """Return the diagonal over dimensions with the same label."""
    while len(set(labels)) != len(labels):
        label = next(each for each in labels if labels.count(each) > 1)
        first = labels.index(label)
        second = labels.index(label, first + 1)
        if tensor._array.shape[first] != tensor._array.shape[second]:
            raise RuntimeError(
                f"einsum: the dimensions {label!r} of one operand must have the same size, got a "
                f"{describe(tensor)}"
            )
        tensor = diagonal(tensor, 0, first, second)
        labels = [each for at, each in enumerate(labels) if at not in (first, second)] + [label]
    return tensor, labels


def _contract(
    tensors: "list[tuple[Tensor, list[Any]]]", result: list[Any], equation: str
) -> "Tensor":
    """Multiply from left to right; sum over each label at its last use."""
    sizes: dict[Any, int] = {}
    for tensor, labels in tensors:
        for label, size in zip(labels, tensor._array.shape, strict=True):
            if sizes.setdefault(label, size) == 1:
                sizes[label] = size
            elif size not in (1, sizes[label]):
                raise RuntimeError(
                    f"einsum: subscript {label} has size {size} in a {describe(tensor)}, which "
                    f"does not broadcast with previously seen size {sizes[label]}, in {equation!r}"
                )
    uses = [label for _, labels in tensors for label in labels]
    single = {label for label in uses if uses.count(label) == 1}.difference(result)
    tensors = [_summed(*each, single) for each in tensors]
    tensor, labels = tensors[0]
    for position in range(1, len(tensors)):
        later = {label for _, each in tensors[position + 1 :] for label in each}
        pair = (tensor, labels), tensors[position]
        if position == len(tensors) - 1 and _is_second_first(labels, pair[1][1], result):
            pair = pair[::-1]  # so that the result has the order of the memory
        tensor, labels = _multiply(*pair[0], *pair[1], later.union(result))
    order = [labels.index(label) for label in result]
    if order != sorted(order):
        tensor = tensor.permute(order)
    shape = tuple(sizes[label] for label in result)
    return tensor if tensor._array.shape == shape else tensor.expand(shape)


def _is_second_first(first: list[Any], second: list[Any], result: list[Any]) -> bool:
    """Whether labels of the second operand alone come in the result before those of the first."""
    own = [label in second for label in result if (label in first) != (label in second)]
    return bool(own) and own[0]


def _summed(tensor: "Tensor", labels: list[Any], over: set[Any]) -> "tuple[Tensor, list[Any]]":
    """Return the sum over the labels in `over`."""
    gone = [at for at, label in enumerate(labels) if label in over]
    if not gone:
        return tensor, labels
    return tensor.sum(gone), [label for label in labels if label not in over]


def _can_be_outer(a: "Tensor", b: "Tensor") -> bool:
    """Return whether the outer product may be one of matrices: of one dtype, but no bools."""
    return bool(a._array.dtype == b._array.dtype != np.bool_)


# As in PyTorch, `autocast` casts what is summed over, and no outer product, as of the positions
# and frequencies of rotary embeddings.
_dot, _outer = lower_precision(dot), own_precision(mm)


def _multiply(
    a: "Tensor", labels_a: list[Any], b: "Tensor", labels_b: list[Any], kept: set[Any]
) -> "tuple[Tensor, list[Any]]":
    """Return the product of two operands, summed over shared labels outside `kept`."""
    shape_a = dict(zip(labels_a, a._array.shape, strict=True))
    shape_b = dict(zip(labels_b, b._array.shape, strict=True))
    # A shared dimension of size 1 broadcasts: it is left out, and the other operand alone has its
    # label; if that is summed over, the other operand is summed first.
    unequal = {x for x in labels_a if x in shape_b and shape_a[x] != shape_b[x]}
    ones_a = {label for label in unequal if shape_a[label] == 1}
    ones_b = unequal - ones_a
    a, labels_a = _summed(a, labels_a, ones_a | (ones_b - kept))
    b, labels_b = _summed(b, labels_b, ones_b | (ones_a - kept))
    shared = [label for label in labels_a if label in labels_b]
    batch = [label for label in shared if label in kept]
    inner = [label for label in shared if label not in kept]
    only_a = [label for label in labels_a if label not in shared]
    only_b = [label for label in labels_b if label not in shared]
    if inner:
        check_factors("einsum", a, b)
    elif not _can_be_outer(a, b) or batch or not only_a or not only_b:
        labels = [*labels_a, *only_b] if only_a else labels_b
        return _aligned(a, labels_a, labels) * _aligned(b, labels_b, labels), labels
    common = [shape_a[label] for label in batch]

    def arranged(
        tensor: "Tensor", labels: list[Any], sizes: dict[Any, int], *groups: list[Any]
    ) -> "Tensor":
        order = [label for group in groups for label in group]
        if order != labels:
            tensor = tensor.permute([labels.index(label) for label in order])
        return _shaped(tensor, [prod(sizes[label] for label in group) for group in groups])

    if inner and not (batch or only_a or only_b):
        return _dot(
            arranged(a, labels_a, shape_a, inner), arranged(b, labels_b, shape_b, inner)
        ), []
    batches = [batch] if batch else []
    left = arranged(a, labels_a, shape_a, *batches, only_a, inner)
    right = arranged(b, labels_b, shape_b, *batches, inner, only_b)
    product = (bmm if batch else mm if inner else _outer)(left, right)
    shape = [*common, *(shape_a[label] for label in only_a), *(shape_b[label] for label in only_b)]
    return _shaped(product, shape), [*batch, *only_a, *only_b]


def _shaped(tensor: "Tensor", shape: list[int]) -> "Tensor":
    return tensor if tensor._array.shape == tuple(shape) else tensor.reshape(shape)


def _aligned(tensor: "Tensor", labels: list[Any], all_labels: list[Any]) -> "Tensor":
    """Return a view with the dimensions `all_labels`, of size 1 where the tensor has none."""
    order = [labels.index(label) for label in all_labels if label in labels]
    sizes = [
        tensor._array.shape[labels.index(label)] if label in labels else 1 for label in all_labels
    ]
    permuted = tensor if order == sorted(order) else tensor.permute(order)
    return permuted if len(order) == len(sizes) else permuted.view(sizes)
