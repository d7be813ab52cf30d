"""Rules of products, and of functions of matrices that take batches of them anyway."""

import string
from math import prod
from typing import Any

from offgrad import ops
from offgrad.autograd.tensor_base import TensorBase
from offgrad.func._batching.arguments import (
    all_from_end,
    default_of,
    first_name,
    named_arguments,
)
from offgrad.func._batching.batched import (
    Level,
    aligned,
    batch,
    expanded,
    is_batched,
    ndim_of,
    samples_of,
    shape_of,
)
from offgrad.func._batching.dispatch import outputs, register

_MATRICES = """
cholesky cholesky_ex cholesky_inverse cond det eig eigh eigvals eigvalsh inv inv_ex inverse logdet
lu_factor lu_factor_ex matrix_exp matrix_power matrix_rank pinv pinverse qr slogdet svd svdvals
"""
"""Functions of one matrix, or a batch."""

_SYSTEMS = "solve solve_ex solve_triangular cholesky_solve householder_product"
"""Functions of two matrices, or batches."""


def matmul(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``matmul`` and the products that are cases of it."""
    if kwargs.get("out") is not None or len(args) != 2:
        return NotImplemented
    a, b = args
    ndim_a, ndim_b = ndim_of(a), ndim_of(b)
    if not (ndim_a and ndim_b) or not _fits(func.__name__, ndim_a, ndim_b):
        return NotImplemented
    if not is_batched(b, level) and ndim_b <= 2:
        # One product of all samples' rows.
        rows = a._value.unsqueeze(1) if ndim_a == 1 else a._value
        result = ops.matmul(rows, b)
        return batch(result.squeeze(1) if ndim_a == 1 else result, level)
    ndim = max(ndim_a, ndim_b, 2)
    left = a.unsqueeze(0) if ndim_a == 1 else a
    right = b.unsqueeze(1) if ndim_b == 1 else b
    result = ops.matmul(aligned(left, level, ndim), aligned(right, level, ndim))
    if ndim_a == 1:
        result = result.squeeze(-2)
    return batch(result.squeeze(-1) if ndim_b == 1 else result, level)


def _fits(name: str, ndim_a: int, ndim_b: int) -> bool:
    """Return whether a product takes tensors of these dimensions."""
    wanted = {"mm": (2, 2), "bmm": (3, 3), "mv": (2, 1), "dot": (1, 1)}.get(name)
    return wanted is None or wanted == (ndim_a, ndim_b)


def dot(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``dot`` and ``vdot``."""
    a, b = args
    if ndim_of(a) != 1 or ndim_of(b) != 1 or ops.is_autocast_enabled("cpu"):
        return NotImplemented
    if func.__name__ == "vdot":
        a = a.conj()
    return ops.matmul(a, b)


def outer(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``outer`` and ``ger``."""
    if kwargs or ndim_of(args[0]) != 1 or ndim_of(args[1]) != 1:
        return NotImplemented
    return args[0].unsqueeze(1) * args[1]


_FACTORS = {"addmm": (2, 2), "addmv": (2, 1), "addr": (1, 1), "baddbmm": (3, 3)}


def added(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``addmm``, ``addmv``, ``addr``, ``baddbmm``."""
    if len(args) != 3 or kwargs.get("out") is not None or ops.is_autocast_enabled("cpu"):
        return NotImplemented
    start, a, b = args
    if (ndim_of(a), ndim_of(b)) != _FACTORS[func.__name__]:
        return NotImplemented
    product = a.unsqueeze(1) * b if func.__name__ == "addr" else ops.matmul(a, b)
    alpha, beta = kwargs.get("alpha", 1), kwargs.get("beta", 1)
    product = product if alpha == 1 else product * alpha
    if beta == 0:
        return product
    return product + (start if beta == 1 else start * beta)


def linear(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``linear``: one product, or one for each sample where the weights are batched."""
    given = named_arguments(func, args, kwargs)
    if given is None:
        return NotImplemented
    source, weight, bias = given["input"], given["weight"], given.get("bias")
    if ndim_of(weight) != 2 or not ndim_of(source):
        return NotImplemented
    if not is_batched(weight, level):
        if not is_batched(source, level):
            return ops.linear(source, weight) + bias
        if bias is None or not is_batched(bias, level):
            return batch(ops.linear(source._value, weight, bias), level)
        return batch(ops.linear(source._value, weight), level) + bias
    value = samples_of(source, level)
    shape = shape_of(source)[:-1]
    own = is_batched(source, level)
    rows = value.reshape((level.size if own else 1, prod(shape), value.shape[-1]))
    weights = weight._value
    biases: Any = None if bias is None else aligned(bias, level, 2)
    if rows.shape[1] == 1:
        # The gradient of the weights is then contiguous.
        result = ops.matmul(weights, rows.mT).mT
        result = result if biases is None else result + biases
    elif own and is_batched(bias, level):
        result = ops.baddbmm(biases, rows, weights.mT)
    else:
        result = ops.matmul(rows, weights.mT)
        result = result if biases is None else result + biases
    return batch(result.reshape((level.size, *shape, result.shape[-1])), level)


def einsum(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``einsum`` of an equation, with a letter more for the samples."""
    equation, *operands = args
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = list(operands[0])
    if not isinstance(equation, str) or not operands:
        return NotImplemented
    unused = [each for each in string.ascii_letters if each not in equation]
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not unused or len(terms) != len(operands):
        return NotImplemented
    if not arrow:
        right = "..." if "." in left else ""
        right += "".join(sorted(each for each in set(left) - {",", "."} if left.count(each) == 1))
    letter = unused[0]
    terms = [
        letter + term if is_batched(each, level) else term
        for term, each in zip(terms, operands, strict=True)
    ]
    values = [samples_of(each, level) for each in operands]
    return batch(func(f"{','.join(terms)}->{letter}{right}", *values), level)


def of_matrix(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """A function of the last two dimensions of its first argument."""
    if kwargs.get("out") is not None or not is_batched(args[0], level) or ndim_of(args[0]) < 2:
        return NotImplemented
    if any(isinstance(each, TensorBase) for each in (*args[1:], *kwargs.values())):
        return NotImplemented
    return outputs(func(args[0]._value, *args[1:], **kwargs), level)


def system(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """A function of two matrices, or batches of as many."""
    if kwargs.get("out") is not None or len(args) < 2 or not isinstance(args[1], TensorBase):
        return NotImplemented
    if any(isinstance(each, TensorBase) for each in (*args[2:], *kwargs.values())):
        return NotImplemented
    a, b = args[:2]
    if ndim_of(a) != ndim_of(b) or ndim_of(a) < 2:
        return NotImplemented
    return outputs(func(expanded(a, level), expanded(b, level), *args[2:], **kwargs), level)


def cross(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``cross`` along a dimension that is given, or the last of ``linalg.cross``."""
    given = named_arguments(func, args, kwargs)
    if given is None or given.get("out") is not None:
        return NotImplemented
    dim = given.get("dim", default_of(func, "dim"))
    a, b = given.pop(first_name(func)), given["other"]
    ndim = max(ndim_of(a), ndim_of(b))
    if dim is None or ndim_of(a) != ndim_of(b):
        return NotImplemented
    given["dim"], given["other"] = all_from_end(dim, ndim), expanded(b, level)
    return batch(func(expanded(a, level), **given), level)


def install() -> None:
    """Register the rules."""
    register(matmul, "matmul", "mm", "bmm", "mv")
    register(dot, "dot", "vdot")
    register(outer, "outer", "ger")
    register(added, "addmm", "addmv", "addr", "baddbmm")
    register(linear, "linear")
    register(einsum, "einsum")
    register(of_matrix, *_MATRICES.split())
    register(system, *_SYSTEMS.split())
    register(cross, "cross")
