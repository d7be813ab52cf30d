"""What NumPy's functions return for meta arrays: shapes and dtypes.

Dtypes come from NumPy itself: the function runs on arrays of one element.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from offgrad.memory.meta import (
    MetaArray,
    as_meta,
    is_shape_only,
    meta_empty,
    meta_like,
    meters,
    note_computed,
)

Shape = tuple[int, ...]


def _one(value: Any, ndim: int | None = None) -> Any:
    """Return one element in place of an array, with as many dimensions or `ndim`; else `value`."""
    if not isinstance(value, np.ndarray):
        return value
    return np.ones((1,) * (value.ndim if ndim is None else ndim), value.dtype)


def shape_of(value: Any) -> Shape:
    """Return the shape of an array or a number."""
    return value.shape if isinstance(value, np.ndarray) else np.shape(value)


def _kind(function: Callable[..., Any], *values: Any, **options: Any) -> Any:
    """Return the dtype of the result of `function` on one element each."""
    with np.errstate(all="ignore"):
        return np.asarray(function(*[_one(each, 0) for each in values], **options)).dtype


def ufunc_rule(ufunc: Any, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what ``ufunc.method(*inputs, **kwargs)`` gives, without values."""
    out = kwargs.pop("out", None)
    if meters:
        note_computed(ufunc.__name__, (*inputs, *(out or ())))
    if method == "at":
        return None
    if out is not None:
        for target in out:
            if isinstance(target, np.ndarray) and not isinstance(target, MetaArray):
                refuse_copy()
        return out[0] if len(out) == 1 else out
    options = {key: each for key, each in kwargs.items() if key in ("dtype", "casting")}
    if method == "__call__":
        shape = (
            np.broadcast_shapes(*map(shape_of, inputs))
            if ufunc.signature is None
            else _core_shape(ufunc, inputs)
        )
        if ufunc.signature is not None:
            return meta_empty(shape, np.result_type(*inputs))
        with np.errstate(all="ignore"):
            found = ufunc(*[_one(each, 0) for each in inputs], **options)
        if isinstance(found, tuple):
            return tuple([meta_empty(shape, each.dtype) for each in found])
        return meta_empty(shape, np.asarray(found).dtype)
    x = inputs[0]
    if method == "reduce":
        axis = inputs[1] if len(inputs) > 1 else kwargs.get("axis", 0)
        return _reduced(ufunc.reduce, x, axis, kwargs.get("keepdims", False), kwargs.get("dtype"))
    if method == "accumulate":
        kind = ufunc.accumulate(_one(x), dtype=kwargs.get("dtype")).dtype
        return meta_empty(x.shape, kind)
    if method == "outer":
        return meta_empty(shape_of(x) + shape_of(inputs[1]), _kind(ufunc, x, inputs[1]))
    raise NotImplementedError(f"np.{ufunc.__name__}.{method} of meta tensors")


def _core_shape(ufunc: Any, inputs: tuple[Any, ...]) -> Shape:
    """Return the shape of a product of matrices or vectors."""
    a, b = map(shape_of, inputs[:2])
    if ufunc is np.vecdot:
        return np.broadcast_shapes(a, b)[:-1]
    if ufunc is not np.matmul:
        raise NotImplementedError(f"np.{ufunc.__name__} of meta tensors")
    rows, columns = len(a) > 1, len(b) > 1
    batch = np.broadcast_shapes(a[:-2], b[:-2])
    return (*batch, *(a[-2:-1] if rows else ()), *(b[-1:] if columns else ()))


def _axes(x: Any, axis: Any) -> Shape:
    if axis is None:
        return tuple(range(x.ndim))
    given = axis if isinstance(axis, (tuple, list)) else (axis,)
    return tuple([int(each) % x.ndim for each in given]) if x.ndim else ()


def reduced_shape(x: Any, axis: Any, keepdims: Any) -> Shape:
    """Return the shape of `x` after a reduction."""
    axes = _axes(x, axis)
    if keepdims is True:
        return tuple([1 if at in axes else size for at, size in enumerate(x.shape)])
    return tuple([size for at, size in enumerate(x.shape) if at not in axes])


def _reduced(reduce: Callable[..., Any], x: Any, axis: Any, keepdims: Any, dtype: Any) -> Any:
    shape = reduced_shape(x, axis, keepdims)
    if not shape and dtype in (None, np.bool_):
        # Checks of values ask whether all are right, or any is wrong.
        if reduce == np.logical_and.reduce:
            return np.True_
        if reduce == np.logical_or.reduce:
            return np.False_
    kind = np.asarray(reduce(np.ones((1,), x.dtype), dtype=dtype)).dtype
    return meta_empty(shape, kind)


def refuse_copy() -> None:
    """Raise for values that are to go into real memory, unless it is that of an operation."""
    if is_shape_only():
        return
    raise NotImplementedError("Cannot copy out of meta tensor, which has no data")


# The functions, by name

RULES: dict[Any, Callable[..., Any]] = {}
_VIEWS = (
    np.transpose, np.moveaxis, np.swapaxes, np.expand_dims, np.squeeze, np.broadcast_to,
    np.broadcast_arrays, np.atleast_1d, np.atleast_2d, np.atleast_3d, np.diagonal, np.flip,
    np.rot90, np.split, np.array_split, np.shape, np.ndim, np.size, np.may_share_memory,
    np.shares_memory, np.result_type, np.can_cast, np.isrealobj, np.iscomplexobj, np.real,
    np.imag, np.hsplit, np.vsplit, np.dsplit, np.rollaxis, np.unstack, np.permute_dims,
    np.matrix_transpose, np.fliplr, np.flipud,
)  # fmt: skip


def function_rule(func: Any, args: Any, kwargs: Any) -> Any:
    """Return what ``func(*args, **kwargs)`` gives, without values."""
    if func in _VIEWS:
        for each in (*args, *kwargs.values()):
            if isinstance(each, MetaArray):
                return each.run_as_view(func, args, kwargs)
        first = next(one for one in args[0] if isinstance(one, MetaArray))
        return first.run_as_view(func, args, kwargs)
    rule = RULES.get(func)
    if rule is None:
        raise NotImplementedError(
            f"{func.__name__} of meta tensors: its shape depends on values, or there is no rule"
        )
    out = kwargs.pop("out", None)
    if meters:
        note_computed(func.__name__, (*args, out))
    if out is not None:
        return out
    return rule(*args, **kwargs)


def rule_for(*functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that makes a function the rule for functions of NumPy's."""

    def register(rule: Callable[..., Any]) -> Callable[..., Any]:
        RULES.update(dict.fromkeys(functions, rule))
        return rule

    return register


@rule_for(np.copyto)
def _copyto(dst: Any, src: Any, *_: Any, **__: Any) -> None:
    if not isinstance(dst, MetaArray):
        refuse_copy()


@rule_for(np.put_along_axis, np.fill_diagonal, np.put, np.putmask, np.place)
def _nothing(*_: Any, **__: Any) -> None:
    pass


def _elementwise(func: Any) -> None:
    def rule(*args: Any, **kwargs: Any) -> Any:
        shape = np.broadcast_shapes(*[shape_of(each) for each in args if each is not None])
        options = {key: _one(each, 0) for key, each in kwargs.items()}
        return meta_empty(shape, _kind(func, *args, **options))

    RULES[func] = rule


_ELEMENTWISE: tuple[Any, ...] = (
    np.where, np.isclose, np.sinc, np.i0, np.nan_to_num, np.clip, np.round, np.around,
    np.isreal, np.iscomplex, np.angle, np.isneginf, np.isposinf,
)  # fmt: skip
for each in _ELEMENTWISE:
    _elementwise(each)


def _reduction(func: Any) -> None:
    def rule(
        a: Any,
        axis: Any = None,
        dtype: Any = None,
        out: Any = None,
        keepdims: Any = False,
        **_: Any,
    ) -> Any:
        shape = reduced_shape(a, axis, keepdims)
        if not shape and func in (np.all, np.any):
            return np.bool_(func is np.all)  # as a check of values expects
        options = {} if dtype is None else {"dtype": dtype}
        return meta_empty(shape, np.asarray(func(np.ones(2, a.dtype), **options)).dtype)

    RULES[func] = rule


_REDUCTIONS: tuple[Any, ...] = (
    np.sum, np.prod, np.mean, np.var, np.std, np.nansum, np.nanmean, np.nanprod, np.max, np.min,
    np.all, np.any, np.argmax, np.argmin, np.count_nonzero, np.median, np.nanmax, np.nanmin,
    np.ptp,
)  # fmt: skip
for each in _REDUCTIONS:
    _reduction(each)


def _same_shape(func: Any, first: tuple[Any, ...] = ()) -> None:
    def rule(a: Any, *args: Any, axis: Any = -1, dtype: Any = None, **_: Any) -> Any:
        flat = func in (np.cumsum, np.cumprod) and axis == -1 and not args and a.ndim != 1
        options = {} if dtype is None else {"dtype": dtype}
        kind = func(np.ones(2, a.dtype), *first, **options).dtype
        return meta_empty((a.size,) if flat or axis is None else a.shape, kind)

    RULES[func] = rule


_SAME_SHAPE: tuple[Any, ...] = (np.sort, np.argsort, np.cumsum, np.cumprod)
for each in _SAME_SHAPE:
    _same_shape(each)
_PARTITIONS: tuple[Any, ...] = (np.partition, np.argpartition)
for each in _PARTITIONS:
    _same_shape(each, (0,))


@rule_for(np.empty_like, np.zeros_like, np.ones_like, np.full_like)
def _like(a: Any, *args: Any, dtype: Any = None, shape: Any = None, **_: Any) -> Any:
    kind = a.dtype if dtype is None else dtype
    return (
        meta_empty(shape, kind)
        if shape is not None
        else meta_like(as_meta(a)).view(MetaArray)
        if kind == a.dtype
        else meta_empty(a.shape, kind)
    )


# Indices


def index_rule(x: MetaArray, index: tuple[Any, ...]) -> MetaArray:
    """Return ``x[index]`` with integer or bool arrays among the indices.

    Raises:
        NotImplementedError: for bools without values, of which the result's size depends.
    """
    parts: list[Any] = []
    for each in index:
        if isinstance(each, (list, bool, np.bool_)):
            each = np.asarray(each)
        if isinstance(each, np.ndarray) and each.dtype == np.bool_:
            if isinstance(each, MetaArray):
                raise NotImplementedError("selecting elements by a mask without values")
            parts += each.nonzero() if each.ndim else [np.zeros(int(each), np.int64)]
        else:
            parts.append(each)
    taken = sum(each is not None and each is not Ellipsis for each in parts)
    if Ellipsis in [each for each in parts if not isinstance(each, np.ndarray)]:
        at = next(i for i, each in enumerate(parts) if each is Ellipsis)
    else:
        at = len(parts)
        parts.append(Ellipsis)
    parts[at : at + 1] = [slice(None)] * (x.ndim - taken)
    numbers = [i for i, each in enumerate(parts) if isinstance(each, (np.ndarray, int, np.integer))]
    chosen = np.broadcast_shapes(*[shape_of(parts[i]) for i in numbers])
    # The basic indices first; what arrays index keeps its dimensions.
    basic = tuple([slice(0, 1) if i in numbers else each for i, each in enumerate(parts)])
    view = x.view(np.ndarray)[basic]
    adjacent = numbers == [*range(numbers[0], numbers[-1] + 1)]
    first = numbers[0] if adjacent else 0
    rest = [size for i, size in enumerate(view.shape) if i not in numbers]
    shape = (*rest[:first], *chosen, *rest[first:])
    return meta_empty(shape, x.dtype)
