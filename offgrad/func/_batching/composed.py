"""Rules of functions that others make up."""

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
    batch,
    expanded,
    is_batched,
    ndim_of,
    shape_of,
)
from offgrad.func._batching.dispatch import public, register
from offgrad.func._batching.layers import affine


def inner(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``inner``: products of rows."""
    a, b = args
    if kwargs or not (ndim_of(a) and ndim_of(b)) or ops.is_autocast_enabled("cpu"):
        return NotImplemented
    size = shape_of(a)[-1]
    product = ops.matmul(a.reshape(-1, size), b.reshape(-1, size).mT)
    return product.reshape((*shape_of(a)[:-1], *shape_of(b)[:-1]))


def stacks(ndim: int, dim: int) -> Any:
    """Return the rule of ``vstack`` and its kin: tensors get `ndim` dimensions, and are joined."""

    def rule(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
        tensors = args[0]
        if kwargs or len(args) != 1:
            return NotImplemented
        tensors = [each if ndim_of(each) else each.reshape(1) for each in tensors]
        if func.__name__ == "hstack" and all(ndim_of(each) == 1 for each in tensors):
            return public("cat")(tensors, 0)
        parts = []
        for each in tensors:
            if func.__name__ == "column_stack" and ndim_of(each) < 2:
                parts.append(each.reshape(-1, 1))
                continue
            each = each.unsqueeze(0) if ndim_of(each) < 2 <= ndim else each
            parts.append(each.unsqueeze(-1) if ndim_of(each) < ndim else each)
        return public("cat")(parts, dim)

    return rule


def splits(dim: int) -> Any:
    """Return the rule of ``hsplit`` and its kin: parts along a dimension."""

    def rule(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
        if len(args) != 2:
            return NotImplemented
        source, parts = args
        if func.__name__ == "hsplit" and ndim_of(source) == 1:
            return NotImplemented
        if isinstance(parts, int) and shape_of(source)[dim] % parts:
            return NotImplemented
        return source.tensor_split(parts, dim)

    return rule


def meshgrid(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``meshgrid`` of vectors by rows and columns."""
    vectors = args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args
    if kwargs.get("indexing") not in (None, "ij") or any(ndim_of(each) != 1 for each in vectors):
        return NotImplemented
    shape = [shape_of(each)[0] for each in vectors]
    return tuple(
        [
            each.reshape(*(1,) * number, -1, *(1,) * (len(shape) - number - 1)).expand(shape)
            for number, each in enumerate(vectors)
        ]
    )


def kron(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``kron`` of tensors of as many dimensions."""
    a, b = args
    ndim = ndim_of(a)
    if kwargs or ndim_of(b) != ndim or not ndim:
        return NotImplemented
    left = [size for each in shape_of(a) for size in (each, 1)]
    right = [size for each in shape_of(b) for size in (1, each)]
    sizes = [m * n for m, n in zip(shape_of(a), shape_of(b), strict=True)]
    return (a.reshape(left) * b.reshape(right)).reshape(sizes)


def pairs(*ndims: int) -> Any:
    """Return the rule of a function of two tensors with these numbers of dimensions, or batches."""

    def rule(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
        given = named_arguments(func, args, kwargs)
        if given is None:
            return NotImplemented
        names = [key for key, each in given.items() if isinstance(each, TensorBase)]
        found = [ndim_of(given[key]) for key in names]
        if len(found) != 2 or found[0] != found[1] or found[0] not in ndims:
            return NotImplemented
        given.update({key: expanded(given[key], level) for key in names})
        return batch(func(**given), level)

    return rule


def prelu(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``prelu`` with one weight, or one for each channel."""
    if kwargs:
        return NotImplemented
    source, weight = args
    channels = shape_of(source)[1] if ndim_of(source) > 1 else 1
    if shape_of(weight) not in ((), (1,), (channels,)):
        return NotImplemented
    if shape_of(weight) and ndim_of(source) > 1:
        weight = weight.reshape(-1, *(1,) * (ndim_of(source) - 2))
    elif shape_of(weight):
        weight = weight.reshape(())
    return public("where")(source > 0, source, weight * source)


def instance_norm(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``instance_norm`` without running statistics: samples are more images."""
    given = named_arguments(func, args, kwargs)
    if given is None or first_name(func) != "input":
        return NotImplemented
    source = given.pop("input")
    uses_input = given.get("use_input_stats", default_of(func, "use_input_stats"))
    if given.get("running_mean") is not None or not uses_input or ndim_of(source) < 3:
        return NotImplemented
    weight, bias = given.pop("weight", None), given.pop("bias", None)
    if not is_batched(source, level):
        result = func(source, weight=None, bias=None, **given)
    else:
        value = func(source._value.flatten(0, 1), weight=None, bias=None, **given)
        result = batch(value.unflatten(0, (level.size, -1)), level)
    return affine(result, weight, bias)


def grid_sample(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``grid_sample``: samples are more images."""
    given = named_arguments(func, args, kwargs)
    if given is None or ndim_of(given["input"]) not in (4, 5):
        return NotImplemented
    for key in ("input", "grid"):
        given[key] = expanded(given[key], level).flatten(0, 1)
    return batch(func(**given).unflatten(0, (level.size, -1)), level)


def into_view(*names: str) -> Any:
    """Return the rule of a copy with a source in place of a view, which has these dimensions."""

    def rule(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
        given = named_arguments(func, args, kwargs)
        if given is None:
            return NotImplemented
        ndim = ndim_of(given["input"])
        for key in names:
            given[key] = all_from_end(given.get(key, default_of(func, key)), ndim)
        given.update({key: expanded(given[key], level) for key in ("input", "src")})
        return batch(func(**given), level)

    return rule


def install() -> None:
    """Register the rules."""
    register(inner, "inner")
    register(stacks(2, 0), "vstack", "row_stack")
    register(stacks(1, 1), "hstack")
    register(stacks(2, 1), "column_stack")
    register(stacks(3, 2), "dstack")
    register(splits(0), "vsplit")
    register(splits(1), "hsplit")
    register(splits(2), "dsplit")
    register(meshgrid, "meshgrid")
    register(kron, "kron")
    register(pairs(1, 2), "pairwise_distance")
    register(pairs(2, 3, 4), "cdist")
    register(prelu, "prelu")
    register(instance_norm, "instance_norm")
    register(grid_sample, "grid_sample")
    register(into_view("dim"), "select_scatter", "slice_scatter")
    register(into_view("dim1", "dim2"), "diagonal_scatter")
