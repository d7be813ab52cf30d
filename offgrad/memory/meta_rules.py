"""What NumPy's functions that join, pick, transform and factorise return for meta arrays."""

from typing import Any

import numpy as np

from offgrad.memory import meta_functions
from offgrad.memory.meta import MetaArray, as_meta, meta_empty
from offgrad.memory.meta_functions import RULES, reduced_shape, rule_for, shape_of


def rules() -> Any:
    """Return the module that applies all rules, those of this module among them."""
    return meta_functions


@rule_for(np.concatenate, np.concat)
def _concatenate(arrays: Any, axis: Any = 0, dtype: Any = None, **_: Any) -> Any:
    kind = np.result_type(*[each.dtype for each in arrays]) if dtype is None else dtype
    shape = list(arrays[0].shape)
    shape[axis] = sum(each.shape[axis] for each in arrays)
    return meta_empty(tuple(shape), kind)


@rule_for(np.stack)
def _stack(arrays: Any, axis: int = 0, **_: Any) -> Any:
    shape = list(arrays[0].shape)
    shape.insert(axis % (len(shape) + 1), len(arrays))
    return meta_empty(tuple(shape), np.result_type(*[each.dtype for each in arrays]))


@rule_for(np.reshape)
def _reshape(a: Any, shape: Any, *_: Any, copy: bool | None = None) -> Any:
    if copy is False:
        return as_meta(a.view(np.ndarray).reshape(shape, copy=False))
    return as_meta(a).reshape(shape)


@rule_for(np.ravel)
def _ravel(a: Any, *_: Any) -> Any:
    return as_meta(a).reshape(-1)


@rule_for(np.take)
def _take(a: Any, indices: Any, axis: Any = None, **_: Any) -> Any:
    if axis is None:
        return meta_empty(shape_of(indices), a.dtype)
    at = axis % a.ndim
    return meta_empty((*a.shape[:at], *shape_of(indices), *a.shape[at + 1 :]), a.dtype)


@rule_for(np.take_along_axis)
def _take_along_axis(arr: Any, indices: Any, axis: Any = -1) -> Any:
    if axis is None:
        return meta_empty(indices.shape, arr.dtype)
    at = axis % arr.ndim
    shapes = [(*each.shape[:at], 1, *each.shape[at + 1 :]) for each in (arr, indices)]
    shape = list(np.broadcast_shapes(*shapes))
    shape[at] = indices.shape[at]
    return meta_empty(tuple(shape), arr.dtype)


@rule_for(np.repeat)
def _repeat(a: Any, repeats: Any, axis: Any = None) -> Any:
    if not isinstance(repeats, (int, np.integer)):
        if isinstance(repeats, MetaArray):
            raise NotImplementedError("np.repeat of meta tensors by counts without values")
        total = int(np.sum(repeats))
        return meta_empty((*a.shape[:axis], total, *a.shape[axis + 1 :]), a.dtype)
    if axis is None:
        return meta_empty((a.size * int(repeats),), a.dtype)
    shape = list(a.shape)
    shape[axis] *= int(repeats)
    return meta_empty(tuple(shape), a.dtype)


@rule_for(np.roll, np.triu, np.tril, np.copy, np.ascontiguousarray, np.asfortranarray)
def _copy(a: Any, *_: Any, **__: Any) -> Any:
    return meta_empty(a.shape, a.dtype)


@rule_for(np.diff)
def _diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    shape = list(a.shape)
    for each in (prepend, append):
        if isinstance(each, np.ndarray):
            shape[axis] += each.shape[axis]
    shape[axis] = max(0, shape[axis] - n)
    return meta_empty(tuple(shape), a.dtype)


@rule_for(np.trace)
def _trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Any:
    axes = (axis1 % a.ndim, axis2 % a.ndim)
    return meta_empty(
        reduced_shape(a, axes, False), dtype or np.trace(np.ones((1, 1), a.dtype)).dtype
    )


@rule_for(np.dot)
def _dot(a: Any, b: Any) -> Any:
    if a.ndim == 0 or b.ndim == 0:
        shape = a.shape + b.shape
    else:
        shape = a.shape[:-1] + (b.shape[:-2] + b.shape[-1:] if b.ndim > 1 else ())
    return meta_empty(shape, np.result_type(a.dtype, b.dtype))


@rule_for(np.vdot)
def _vdot(a: Any, b: Any) -> Any:
    return meta_empty((), np.result_type(a.dtype, b.dtype))


@rule_for(np.outer)
def _outer(a: Any, b: Any) -> Any:
    return meta_empty((a.size, b.size), np.result_type(a.dtype, b.dtype))


@rule_for(np.cross)
def _cross(a: Any, b: Any, *_: Any, **__: Any) -> Any:
    return meta_empty(np.broadcast_shapes(a.shape, b.shape), np.result_type(a.dtype, b.dtype))


@rule_for(np.searchsorted)
def _searchsorted(a: Any, v: Any, *_: Any, **__: Any) -> Any:
    return meta_empty(shape_of(v), np.int64)


@rule_for(np.isin)
def _isin(element: Any, *_: Any, **__: Any) -> Any:
    return meta_empty(shape_of(element), np.bool_)


@rule_for(np.unravel_index)
def _unravel_index(indices: Any, shape: Any, *_: Any) -> Any:
    return tuple([meta_empty(shape_of(indices), np.int64) for _ in shape])


@rule_for(np.ravel_multi_index)
def _ravel_multi_index(multi_index: Any, dims: Any, *_: Any, **__: Any) -> Any:
    return meta_empty(np.broadcast_shapes(*map(shape_of, multi_index)), np.int64)


@rule_for(np.pad)
def _pad(array: Any, pad_width: Any, *_: Any, **__: Any) -> Any:
    widths = np.broadcast_to(np.asarray(pad_width), (array.ndim, 2)).tolist()
    shape = [size + sum(each) for size, each in zip(array.shape, widths, strict=True)]
    return meta_empty(tuple(shape), array.dtype)


@rule_for(np.histogram)
def _histogram(a: Any, bins: Any = 10, *_: Any, **__: Any) -> Any:
    count = bins if isinstance(bins, (int, np.integer)) else len(bins) - 1
    return meta_empty((int(count),), np.int64), meta_empty((int(count) + 1,), np.float64)


@rule_for(np.array_equal)
def _array_equal(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("comparison of the values of meta tensors")


# Transforms


def _transform(func: Any) -> None:
    def rule(a: Any, n: Any = None, axis: int = -1, *_: Any, **__: Any) -> Any:
        shape = list(a.shape)
        name = func.__name__
        if name == "irfft":
            shape[axis] = 2 * (shape[axis] - 1) if n is None else n
        elif name == "rfft":
            shape[axis] = (shape[axis] if n is None else n) // 2 + 1
        elif n is not None:
            shape[axis] = n
        return meta_empty(tuple(shape), func(np.ones(2, a.dtype)).dtype)

    RULES[func] = rule


_TRANSFORMS: tuple[Any, ...] = (np.fft.fft, np.fft.ifft, np.fft.rfft, np.fft.irfft)
for each in _TRANSFORMS:
    _transform(each)


# Matrices


def _square(a: Any) -> Any:
    return np.eye(1, dtype=a.dtype)


@rule_for(np.linalg.inv, np.linalg.cholesky, np.linalg.matrix_power)
def _inverse(a: Any, *_: Any, **__: Any) -> Any:
    return meta_empty(a.shape, np.linalg.inv(_square(a)).dtype)


@rule_for(np.linalg.pinv)
def _pinv(a: Any, *_: Any, **__: Any) -> Any:
    return meta_empty((*a.shape[:-2], a.shape[-1], a.shape[-2]), a.dtype)


@rule_for(np.linalg.det)
def _det(a: Any) -> Any:
    return meta_empty(a.shape[:-2], np.linalg.det(_square(a)).dtype)


@rule_for(np.linalg.slogdet)
def _slogdet(a: Any) -> Any:
    found = np.linalg.slogdet(_square(a))
    return type(found)(*[meta_empty(a.shape[:-2], each.dtype) for each in found])


@rule_for(np.linalg.solve)
def _solve(a: Any, b: Any) -> Any:
    if b.ndim == 1:
        return meta_empty((*a.shape[:-2], b.shape[0]), np.result_type(a, b))
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return meta_empty((*batch, *b.shape[-2:]), np.result_type(a, b))


def _eigen(func: Any) -> None:
    def rule(a: Any, *_: Any, **__: Any) -> Any:
        found: Any = func(_square(a))
        if not isinstance(found, tuple):
            return meta_empty(a.shape[:-1], found.dtype)
        kinds = found[0].dtype, found[1].dtype
        kind: Any = type(found)
        return kind(meta_empty(a.shape[:-1], kinds[0]), meta_empty(a.shape, kinds[1]))

    RULES[func] = rule


_eigen(np.linalg.eigh)
_eigen(np.linalg.eigvalsh)


@rule_for(np.linalg.eig)
def _eig(a: Any) -> Any:
    kind = np.result_type(a.dtype, np.complex64)
    return meta_empty(a.shape[:-1], kind), meta_empty(a.shape, kind)


@rule_for(np.linalg.svd)
def _svd(a: Any, full_matrices: bool = True, compute_uv: bool = True, **_: Any) -> Any:
    *batch, rows, columns = a.shape
    count = min(rows, columns)
    found = np.linalg.svd(_square(a))
    values = meta_empty((*batch, count), found[1].dtype)
    if not compute_uv:
        return values
    width = (rows, columns) if full_matrices else (count, count)
    return type(found)(
        meta_empty((*batch, rows, width[0]), a.dtype), values,
        meta_empty((*batch, width[1], columns), a.dtype),
    )  # fmt: skip


@rule_for(np.linalg.qr)
def _qr(a: Any, mode: str = "reduced") -> Any:
    *batch, rows, columns = a.shape
    count = min(rows, columns)
    if mode == "r":
        return meta_empty((*batch, count, columns), a.dtype)
    width = rows if mode == "complete" else count
    found = np.linalg.qr(_square(a))
    return type(found)(
        meta_empty((*batch, rows, width), a.dtype), meta_empty((*batch, width, columns), a.dtype)
    )
