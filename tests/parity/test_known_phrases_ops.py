"""Phrases of PyTorch's errors of arithmetic, reductions, linear algebra, FFTs and new tensors."""

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.parity.conftest import leaf, raises


def in_itself() -> Any:
    data: list[Any] = []
    data.append(data)
    return data


def complex_ones(lib: Any, *size: int) -> Any:
    return lib.ones(*size, dtype=lib.complex64)


CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "Boolean value of Tensor with more than one value is ambiguous": lambda lib: bool(lib.ones(2)),
    "Boolean value of Tensor with no values is ambiguous": lambda lib: bool(lib.ones(0)),
    "a Tensor with 2 elements cannot be converted to Scalar": lambda lib: lib.ones(2).item(),
    "Only Tensors of floating point and complex dtype can require gradients": lambda lib: (
        lib.tensor([1], requires_grad=True)
    ),
    "Only Tensors created explicitly by the user": lambda lib: copy.deepcopy(leaf(lib, 1) * 2),
    "Use tensor.detach().numpy() instead": lambda lib: leaf(lib, 1).numpy(),
    "expected sequence of length 2 at dim 1 (got 1)": lambda lib: lib.tensor([[1, 2], [3]]),
    "invalid data type 'str'": lambda lib: lib.tensor([None, "a"][1]) if False else lib.tensor("a"),
    "too many dimensions 'str'": lambda lib: lib.tensor(["a"]),
    "Could not infer dtype of": lambda lib: lib.tensor([object()]),
    "Overflow when unpacking long": lambda lib: lib.tensor([2**70]),
    "not a sequence": lambda lib: lib.tensor([[1], 2]),
    "too many dimensions": lambda lib: lib.tensor(in_itself()),
    "Trying to create tensor with negative dimension -1": lambda lib: lib.ones(-1),
    "dtype": lambda lib: lib.ones(2, dtype=str),
    "unsupported range": lambda lib: lib.arange(0, float("inf")),
    "step must be nonzero": lambda lib: lib.arange(0, 3, 0),
    "upper bound and lower bound inconsistent with step sign": lambda lib: lib.arange(0, -3, 2),
    "number of steps must be non-negative": lambda lib: lib.linspace(0, 1, -1),
    "n must be greater or equal to 0, got -1": lambda lib: lib.eye(-1),
    "m must be greater or equal to 0, got -2": lambda lib: lib.eye(1, -2),
    "random_ expects 'from' to be less than 'to'": lambda lib: lib.randint(3, 3, (2,)),
    "Trying to create tensor with negative dimension -2": lambda lib: lib.randperm(-2),
    "expected BoolTensor": lambda lib: lib.masked_select(lib.ones(2), lib.ones(2)),
    "Expected both inputs to be Half, Float or Double tensors": lambda lib: lib.complex(
        lib.ones(1), lib.tensor([1])
    ),
    "Expected object of scalar type Float but got scalar type Double for second argument": (
        lambda lib: lib.complex(lib.ones(1), lib.ones(1, dtype=lib.float64))
    ),
    "normal expects std >= 0.0": lambda lib: lib.normal(-1.0, -1.0, (2,)),
}
ARITHMETIC: dict[str, Callable[[Any], Any]] = {
    "Subtraction, the `-` operator, with two bool tensors is not supported": lambda lib: (
        lib.tensor([True]) - lib.tensor([True])
    ),
    "Subtraction, the `-` operator, with a bool tensor is not supported": lambda lib: (
        lib.ones(1) - lib.tensor([True])
    ),
    "Negation, the `-` operator, on a bool tensor is not supported": lambda lib: (
        -lib.tensor([True])
    ),
    "argument alpha must not be a floating point number": lambda lib: lib.tensor([1]).add(
        lib.tensor([1]), alpha=1.5
    ),
    "Boolean alpha only supported for Boolean results": lambda lib: lib.ones(1).add(1, alpha=True),
    "Integers to negative integer powers are not allowed": lambda lib: lib.tensor([2]) ** -1,
    "ZeroDivisionError": lambda lib: lib.tensor([1]) // 0,
    "expected rounding_mode to be one of None, 'trunc', or 'floor' but found 'x'": lambda lib: (
        lib.ones(1).div(2, rounding_mode="x")
    ),
    "At least one of 'min' or 'max' must not be None": lambda lib: lib.ones(1).clamp(),
    "rtol must be greater than or equal to zero": lambda lib: lib.ones(1).isclose(
        lib.ones(1), rtol=-1.0
    ),
    "order must be non-negative but got -1": lambda lib: lib.ones(2).diff(-1),
    "~ (operator.invert) is only implemented on integer and Boolean-type tensors": lambda lib: (
        ~lib.ones(2)
    ),
    "not implemented for 'Float'": lambda lib: lib.ones(2) & lib.ones(2),
    "not implemented for 'ComplexFloat'": lambda lib: complex_ones(lib, 2) < 1,
    "Order 7 not supported": lambda lib: lib.linalg.matrix_norm(lib.ones(2, 2), 7),
    "must be real number, not str": lambda lib: lib.ones(2).apply_(lambda k: "s"),
}
REDUCTIONS: dict[str, Callable[[Any], Any]] = {
    "argmax(): does not support complex input": lambda lib: complex_ones(lib, 2).argmax(),
    "could not infer output dtype": lambda lib: lib.tensor([1]).mean(),
    "must be either a floating point or complex dtype": lambda lib: lib.tensor([1]).mean(),
    "Expected reduction dim to be specified for input.numel() == 0": lambda lib: lib.ones(0).max(),
    "Expected reduction dim": lambda lib: lib.ones(0).argmax(),
    "to have non-zero size": lambda lib: lib.ones(2, 0).max(1),
    "expected out tensor to have dtype".capitalize(): lambda lib: lib.amax(
        lib.ones(2), 0, out=lib.ones((), dtype=lib.float64)
    ),
    "Expected out tensor to have dtype": lambda lib: lib.gather(
        lib.ones(2), 0, lib.tensor([0]), out=lib.ones(1, dtype=lib.float64)
    ),
    "std and var only support floating point and complex dtypes": lambda lib: lib.tensor([1]).var(),
    "quantile() q must be in the range [0, 1] but got 1.5": lambda lib: lib.ones(2).quantile(1.5),
    "input tensor must be either float or double dtype": lambda lib: lib.tensor([1]).quantile(0.5),
    "only supports": lambda lib: lib.tensor([-1]).bincount(),
    "cannot sample n_sample > prob_dist.size(-1) samples without replacement": lambda lib: lib.ones(
        2
    ).multinomial(3),
    "prob_dist must be 1 or 2 dim": lambda lib: lib.ones(1, 1, 1).multinomial(1),
    "probability tensor contains either": lambda lib: lib.tensor([-1.0]).multinomial(1),
}
LINALG: dict[str, Callable[[Any], Any]] = {
    "must be batches of square matrices": lambda lib: lib.linalg.inv(lib.ones(2, 3)),
    "must have at least 2 dimensions": lambda lib: lib.linalg.inv(lib.ones(2)),
    "input matrix is singular": lambda lib: lib.linalg.inv(lib.zeros(2, 2)),
    "matrix is singular": lambda lib: lib.linalg.solve(lib.zeros(2, 2), lib.ones(2)),
    "is not positive-definite": lambda lib: lib.linalg.cholesky(-lib.eye(2)),
    "1D tensors expected": lambda lib: lib.ones(2, 2).dot(lib.ones(2)),
    "inconsistent tensor size": lambda lib: lib.ones(2).dot(lib.ones(3)),
    "expected both vectors to have same dtype": lambda lib: lib.ones(2).dot(
        lib.ones(2, dtype=lib.float64)
    ),
    "batch1 must be a 3D tensor": lambda lib: lib.ones(2, 2).bmm(lib.ones(2, 2)),
    "Expected size for first two dimensions of batch2 tensor to be: [2, 4] but got: [2, 5]": (
        lambda lib: lib.ones(2, 3, 4).bmm(lib.ones(2, 5, 2))
    ),
    "mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)": lambda lib: lib.ones(2, 3).mm(
        lib.ones(2, 3)
    ),
    "size mismatch, got input (2), mat (2x3), vec (2)": lambda lib: lib.ones(2, 3).mv(lib.ones(2)),
    "must be a matrix": lambda lib: lib.ones(2).mm(lib.ones(2)),
    "both arguments to matmul need to be at least 1D": lambda lib: lib.ones(()).matmul(lib.ones(2)),
    "inputs dimension -1 must have length 3": lambda lib: lib.linalg.cross(
        lib.ones(2), lib.ones(2)
    ),
    "must have the same dtype": lambda lib: lib.ones(2, 2).addmm(
        lib.ones(2, 2), lib.ones(2, 2, dtype=lib.float64)
    ),
    "contracted dimensions need to match": lambda lib: lib.tensordot(
        lib.ones(2, 3), lib.ones(2, 3), 1
    ),
    "subscript i has size 3": lambda lib: lib.einsum("i,i", lib.ones(2), lib.ones(3)),
    "fewer operands were provided than specified in the equation": lambda lib: lib.einsum(
        "ij,jk", lib.ones(2, 3)
    ),
    "more operands were provided than specified in the equation": lambda lib: lib.einsum(
        "ij", lib.ones(2, 3), lib.ones(2)
    ),
    "the number of subscripts in the equation": lambda lib: lib.einsum("ijk", lib.ones(2, 3)),
    "Invalid number of data points": lambda lib: lib.fft.fft(lib.ones(2), 0),
    "rfft expects a real input tensor": lambda lib: lib.fft.rfft(complex_ones(lib, 2)),
    "FFT dims must be unique": lambda lib: lib.fft.fftn(lib.ones(2, 2), dim=(0, 0)),
    "Tensor list must have at least one tensor": lambda lib: lib._foreach_add([], 1),
    "Tensor lists must have the same number of tensors": lambda lib: lib._foreach_add(
        [lib.ones(1)], [lib.ones(1), lib.ones(1)]
    ),
}


MORE: dict[str, Callable[[Any], Any]] = {
    "Index is supposed to be a vector": lambda lib: lib.ones(2).index_select(0, lib.tensor([[0]])),
    "Number of indices (1) should be equal to": lambda lib: lib.ones(2).index_add(
        0, lib.tensor([0]), lib.ones(2)
    ),
    "index 3 is out of bounds for dimension 0 with size 2": lambda lib: lib.ones(2).index_fill(
        0, lib.tensor([3]), 1
    ),
    "expected to have the same dtype": lambda lib: lib.ones(2).index_copy(
        0, lib.tensor([0]), lib.ones(1, dtype=lib.float64)
    ),
    "Expected a long tensor for index": lambda lib: lib.ones(2).take(lib.ones(1)),
    "out of range: ": lambda lib: lib.ones(2).take(lib.tensor([5])),
    "maximum size for tensor at dimension 0 is 3": lambda lib: lib.ones(3).unfold(0, 5, 1),
    "are out of bounds for storage of": lambda lib: lib.ones(2).as_strided((3,), (1,)),
    "shifts and dimensions must align": lambda lib: lib.ones(3).roll((1, 2), (0,)),
    "split expects split_size be non-negative": lambda lib: lib.ones(2).split(-1),
    "chunk expects at least a 1-dimensional tensor": lambda lib: lib.ones(()).chunk(2),
    "hsplit requires a tensor with at least 1 dimension": lambda lib: lib.ones(()).hsplit(2),
    "split along dimension 0, but the size of the dimension 5 is not divisible": (
        lambda lib: lib.ones(5, 1).vsplit(2)
    ),
    "where expected condition to be a boolean tensor": lambda lib: lib.where(
        lib.ones(2), lib.ones(2), lib.ones(2)
    ),
    "The size of tensor a (2) must match the size of tensor b (3)": lambda lib: lib.where(
        lib.ones(2) > 0, lib.ones(3), lib.ones(3)
    ),
    "only supports a 0-dimensional value tensor": lambda lib: lib.ones(2).masked_fill(
        lib.ones(2) > 0, lib.ones(2)
    ),
    "Number of elements of source < number of ones in mask": lambda lib: lib.ones(3).masked_scatter(
        lib.ones(3) > 0, lib.ones(1)
    ),
    "X1 and X2 must have the same number of columns": lambda lib: lib.cdist(
        lib.ones(2, 3), lib.ones(2, 4)
    ),
    "Incompatible shapes of A and B for the equation AX = B": lambda lib: lib.linalg.solve(
        lib.eye(2), lib.ones(3, 1)
    ),
    "Invalid normalization mode": lambda lib: lib.fft.fft(lib.ones(2), norm="x"),
    "dim and shape arguments must have the same length": lambda lib: lib.fft.fftn(
        lib.ones(2, 2), s=(2,), dim=(0, 1)
    ),
    "Invalid number of data points (0)": lambda lib: lib.fft.irfft(lib.ones(1)),
    "row must be non-negative": lambda lib: lib.tril_indices(-1, 2),
    "expected input to have two or fewer dimensions": lambda lib: lib.ones(2, 2, 2).cov(),
    "There must be one `x` value for each sample point": lambda lib: lib.trapezoid(
        lib.ones(2), lib.ones(3)
    ),
    "expected spacing to be unspecified, a scalar": lambda lib: lib.gradient(
        lib.ones(3, 3), spacing=[1.0]
    ),
    "Tensor must have a last dimension of size 2": lambda lib: lib.view_as_complex(lib.ones(3)),
    "view_as_real is only supported for complex tensors": lambda lib: lib.view_as_real(lib.ones(2)),
    "imag is not implemented for tensors with non-complex dtypes": lambda lib: lib.ones(2).imag,
    "weights should be 1-d and have the same length as input": lambda lib: lib.tensor([1]).bincount(
        lib.ones(2)
    ),
    "must be floating point or complex dtype": lambda lib: setattr(
        leaf(lib, 1), "data", lib.tensor(1)
    ),
    "attempting to assign a gradient of size '[3]'": lambda lib: setattr(
        lib.ones(2), "grad", lib.ones(3)
    ),
    "repeats must have the same size as input along dim": lambda lib: lib.repeat_interleave(
        lib.ones(2), lib.tensor([1, 2, 3])
    ),
    "expected rotation dims to be different": lambda lib: lib.ones(2, 2).rot90(1, (0, 0)),
    "Expected 1-D argument self": lambda lib: lib.outer(lib.ones(2, 2), lib.ones(2)),
    "vector + matrix @ vector expected": lambda lib: lib.ones(2, 2).mv(lib.ones(2, 2)),
    "Expected 0D or 1D tensor in the tensor list": lambda lib: lib.meshgrid(
        [lib.ones(2, 2)], indexing="ij"
    ),
    'indexing must be one of "xy" or "ij"': lambda lib: lib.meshgrid([lib.ones(2)], indexing="x"),
    "diff expects input to be at least one-dimensional": lambda lib: lib.ones(()).diff(),
    "Expected a floating point or complex tensor as input": lambda lib: lib.tensor([1]).norm(),
    "set_num_threads expects a positive integer": lambda lib: lib.set_num_threads(0),
    "attempting to assign a gradient with dtype": lambda lib: setattr(
        lib.ones(2), "grad", lib.ones(2, dtype=lib.float64)
    ),
    "functions with out=... arguments don't support automatic differentiation": lambda lib: lib.add(
        leaf(lib, 1), 1, out=lib.ones((), dtype=lib.float64)
    ),
    "start out of range (expected to be in range of [-3, 3], but got 5)": lambda lib: lib.ones(
        3
    ).narrow(0, 5, 1),
    "narrow(): length must be non-negative": lambda lib: lib.ones(3).narrow(0, 0, -1),
    "narrow() cannot be applied to a 0-dim tensor": lambda lib: lib.ones(()).narrow(0, 0, 1),
    "only supports 0-dimensional start and end tensors": lambda lib: lib.linspace(
        lib.ones(2), 1, 3
    ),
    "multinomial only supports floating-point dtypes for input": lambda lib: lib.tensor(
        [1]
    ).multinomial(1),
    "cannot sample n_sample <= 0 samples": lambda lib: lib.ones(2).multinomial(0),
    "invalid multinomial distribution": lambda lib: lib.zeros(2).multinomial(1),
    "needs at least 2 dimensions, got 0 dimensions": lambda lib: lib.ones(()).renorm(1, 0, 1.0),
    "expected each dimension size to be at least edge_order+1": lambda lib: lib.gradient(
        lib.ones(1)
    ),
    "repeated dim in `source`": lambda lib: lib.ones(2, 2).movedim((0, 0), (0, 1)),
    "Number of dimensions in size does not match the length of the physical_layout": (
        lambda lib: lib.empty_permuted((2,), (0, 1))
    ),
    "Duplicate dim not allowed": lambda lib: lib.empty_permuted((2, 3), (0, 0)),
    "expected fweights to have the same numel": lambda lib: lib.ones(2, 5).cov(
        fweights=lib.tensor([1])
    ),
    "source tensor shape must match self tensor shape, excluding the specified dimension": (
        lambda lib: lib.ones(3, 2).index_add(0, lib.tensor([0, 1]), lib.ones(2))
    ),
}
PROGRAMS = CONVERSIONS | ARITHMETIC | REDUCTIONS | LINALG | MORE

CLASSES: dict[str, tuple[type[Exception], Callable[[Any], Any]]] = {
    "a name as an index": (TypeError, lambda lib: lib.ones(2)["a"]),
    "a float as an index": (IndexError, lambda lib: lib.ones(2)[1.5]),
    "a name of a place to write to": (TypeError, lambda lib: lib.ones(2).__setitem__("a", 1)),
    "a text from apply_": (TypeError, lambda lib: lib.ones(2).apply_(lambda k: "s")),
    "a number and a tensor": (TypeError, lambda lib: lib.max(2, lib.ones(2))),
    "a list in itself": (ValueError, lambda lib: lib.tensor(in_itself())),
    "numbers next to sequences": (TypeError, lambda lib: lib.tensor([[1], 2])),
    "a dtype of texts": (TypeError, lambda lib: lib.ones(2, dtype=str)),
    "a dtype of texts for data": (TypeError, lambda lib: lib.tensor([1], dtype=str)),
    "a negative size": (RuntimeError, lambda lib: lib.ones(2).resize_(-1)),
    "no threads": (RuntimeError, lambda lib: lib.set_num_threads(0)),
    "sorted complex numbers": (RuntimeError, lambda lib: complex_ones(lib, 2).sort()),
    "the place of the largest complex number": (
        RuntimeError,
        lambda lib: complex_ones(lib, 2).argmax(),
    ),
    "the largest complex number": (NotImplementedError, lambda lib: complex_ones(lib, 2).max()),
    "not of floats": (TypeError, lambda lib: ~lib.ones(2)),
}


@pytest.mark.parametrize("phrase", PROGRAMS)
def test_phrases(lib: Any, phrase: str) -> None:
    with pytest.raises((RuntimeError, TypeError, ValueError, IndexError), match=re.escape(phrase)):
        PROGRAMS[phrase](lib)


@pytest.mark.parametrize("program", CLASSES)
def test_classes(lib: Any, program: str) -> None:
    expected, call = CLASSES[program]
    with raises(expected):
        call(lib)
