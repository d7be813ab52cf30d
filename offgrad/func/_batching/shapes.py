"""Rules of functions that change shapes: views, copies in another order, joined tensors."""

from math import prod
from typing import Any

import numpy as np

from offgrad import ops
from offgrad.autograd.tensor_base import TensorBase
from offgrad.func._batching.arguments import (
    all_from_end,
    default_of,
    first_name,
    from_end,
    named_arguments,
    sizes_of,
)
from offgrad.func._batching.batched import (
    Level,
    aligned,
    batch,
    expanded,
    flattened,
    is_batched,
    mapped,
    ndim_of,
    shape_of,
    stand_in,
)
from offgrad.func._batching.dispatch import outputs, register, rules


def _by_name(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return the source, its samples and the other arguments by name, or None."""
    given = named_arguments(func, args, kwargs)
    if given is None:
        return None
    source = given.pop(first_name(func))
    if not is_batched(source, level) or any(isinstance(e, TensorBase) for e in given.values()):
        return None
    return source, source._value, given


_ONE_DIMENSION = """
select narrow split split_with_sizes chunk tensor_split unbind unflatten
unsafe_split unsafe_split_with_sizes unsafe_chunk
"""
_SEVERAL_DIMENSIONS = {
    "transpose": ("dim0", "dim1"),
    "swapaxes": ("axis0", "axis1"),
    "swapdims": ("dim0", "dim1"),
    "movedim": ("source", "destination"),
    "moveaxis": ("source", "destination"),
    "diagonal": ("dim1", "dim2"),
    "rot90": ("dims",),
}


def of_dimensions(*names: str) -> Any:
    """Return the rule of a function with these parameters, which are dimensions of a sample."""

    def rule(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
        found = _by_name(func, level, args, kwargs)
        if found is None:
            return NotImplemented
        source, value, given = found
        ndim = ndim_of(source)
        for each in names:
            dim = given.get(each, default_of(func, each))
            if not ndim or dim is None:
                return NotImplemented
            given[each] = all_from_end(dim, ndim)
        return outputs(func(value, **given), level)

    return rule


def reshape(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``reshape`` and ``view``, also to another dtype."""
    source, *rest = args
    sizes = [*rest, *kwargs.values()]
    if not is_batched(source, level):
        return NotImplemented
    if len(sizes) == 1 and not isinstance(sizes[0], (int, list, tuple)):
        if not ndim_of(source):
            return NotImplemented
        return batch(func(source._value, sizes[0]), level)
    shape = list(sizes_of(sizes))
    if shape.count(-1) == 1 and 0 not in shape:
        shape[shape.index(-1)] = prod(shape_of(source)) // -prod(shape)
    return batch(func(source._value, (level.size, *shape)), level)


def like(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``view_as``, ``reshape_as`` and ``expand_as``."""
    source, other = args[0], args[1] if len(args) > 1 else kwargs["other"]
    change = getattr(type(source), func.__name__[:-3])
    return change(source, shape_of(other))


def expand(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``expand`` and ``broadcast_to``: new dimensions come before those of a sample."""
    source, *sizes = args
    shape = sizes_of([*sizes, *[each for key, each in kwargs.items() if key != "implicit"]])
    value = aligned(source, level, len(shape))
    return batch(ops.expand(value, (level.size, *shape)), level)


def permute(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``permute``."""
    source, *dims = args
    order = sizes_of([*dims, *kwargs.values()])
    ndim = ndim_of(source)
    if len(order) != ndim:
        return NotImplemented
    return batch(ops.permute(source._value, (0, *[from_end(d, ndim) for d in order])), level)


def transposed(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``t``, of matrices and vectors."""
    source = args[0]
    if ndim_of(source) > 2:
        return NotImplemented
    return source.transpose(0, 1) if ndim_of(source) == 2 else source


def transposed_matrices(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """The property ``mT``, of matrices and batches of them."""
    return args[0].transpose(-2, -1) if ndim_of(args[0]) > 1 else NotImplemented


def adjoint(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``adjoint``, and the property ``mH``."""
    return args[0].mT.conj() if ndim_of(args[0]) > 1 else NotImplemented


def reversed_dimensions(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """The property ``T``."""
    source = args[0]
    return source.permute(tuple(reversed(range(ndim_of(source)))))


def conjugate_transposed(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """The property ``H``."""
    return args[0].mT.conj() if ndim_of(args[0]) == 2 else NotImplemented


def flatten(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``flatten`` and ``ravel``."""
    found = _by_name(func, level, args, kwargs)
    if found is None:
        return NotImplemented
    source, value, given = found
    ndim = ndim_of(source)
    if not ndim:
        return batch(value.unsqueeze(1), level)
    start = from_end(given.get("start_dim", 0), ndim)
    return batch(ops.flatten(value, start, from_end(given.get("end_dim", -1), ndim)), level)


def unsqueeze(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``unsqueeze``."""
    found = _by_name(func, level, args, kwargs)
    if found is None:
        return NotImplemented
    source, value, given = found
    return batch(ops.unsqueeze(value, from_end(given["dim"], ndim_of(source) + 1)), level)


def squeeze(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``squeeze``, of all dimensions or some."""
    found = _by_name(func, level, args, kwargs)
    if found is None:
        return NotImplemented
    source, value, given = found
    ndim, dim = ndim_of(source), given.get("dim")
    if not ndim:
        return batch(value, level)
    dims = tuple(range(-ndim, 0)) if dim is None else all_from_end(dim, ndim)
    return batch(ops.squeeze(value, dims), level)


def flip(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``flip``."""
    source, *dims = args
    ndim = ndim_of(source)
    dims = sizes_of([*dims, *kwargs.values()])
    if not ndim:
        return NotImplemented
    return batch(ops.flip(source._value, [from_end(each, ndim) for each in dims]), level)


def roll(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``roll`` along dimensions, or of the elements in order."""
    found = _by_name(func, level, args, kwargs)
    if found is None:
        return NotImplemented
    source, value, given = found
    ndim, dims = ndim_of(source), given.get("dims", given.get("dim"))
    if dims is None or dims == ():
        flat = ops.roll(flattened(source, level), given["shifts"], 1)
        return batch(flat.reshape(value.shape), level)
    if not ndim:
        return NotImplemented
    return batch(ops.roll(value, given["shifts"], all_from_end(dims, ndim)), level)


def repeat(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``repeat`` and ``tile``."""
    source, *sizes = args
    counts = sizes_of([*sizes, *kwargs.values()])
    ndim = ndim_of(source)
    if func.__name__ == "tile":
        counts = (*(1,) * (ndim - len(counts)), *counts)
    if len(counts) < ndim:
        return NotImplemented
    return batch(aligned(source, level, len(counts)).repeat(1, *counts), level)


def repeat_interleave(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``repeat_interleave`` with one count for all elements."""
    found = _by_name(func, level, args, kwargs)
    if found is None or not isinstance(found[2].get("repeats"), int):
        return NotImplemented
    source, value, given = found
    dim = given.get("dim")
    if dim is None or not ndim_of(source):
        value, dim = flattened(source, level), -1
    else:
        dim = from_end(dim, ndim_of(source))
    return batch(ops.repeat_interleave(value, given["repeats"], dim), level)


def joined(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``cat`` and ``stack``."""
    given = named_arguments(func, args, kwargs)
    if given is None or given.get("out") is not None:
        return NotImplemented
    tensors = given.pop(first_name(func))
    ndims = {ndim_of(each) for each in tensors}
    is_stack = func.__name__ == "stack"
    if len(ndims) != 1 or (0 in ndims and not is_stack):
        return NotImplemented
    dim = from_end(given.get("dim", 0), ndims.pop() + is_stack)
    return batch(func([expanded(each, level) for each in tensors], dim), level)


def as_strided(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``as_strided``: each sample begins as far after the one before as it did."""
    found = _by_name(func, level, args, kwargs)
    if found is None:
        return NotImplemented
    _, value, given = found
    given["size"] = (level.size, *given["size"])
    given["stride"] = (value.stride(0), *given["stride"])
    if given.get("storage_offset") is None:
        given["storage_offset"] = value.storage_offset()
    return batch(func(value, **given), level)


def broadcast_tensors(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``broadcast_tensors``."""
    tensors = args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args
    shape = np.broadcast_shapes(*map(shape_of, tensors))
    return tuple([each.expand(shape) for each in tensors])


def sum_to_size(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``sum_to_size``: the sum over dimensions that the shape does not have."""
    source, *sizes = args
    shape = sizes_of(sizes)
    if kwargs or shape == shape_of(source):
        return NotImplemented if kwargs else source
    missing = (1,) * (ndim_of(source) - len(shape))
    total = source._value.sum_to_size((level.size, *missing, *shape))
    return batch(total.reshape((level.size, *shape)), level)


def diag(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``diag``, of a vector or a matrix."""
    given = named_arguments(func, args, kwargs)
    if given is None or given.get("out") is not None:
        return NotImplemented
    source, offset = given[first_name(func)], given.get("diagonal", 0)
    if ndim_of(source) == 1:
        return batch(ops.diag_embed(source._value, offset), level)
    diagonal = ops.diagonal(source._value, offset, -2, -1)
    return batch(diagonal.clone(), level)


def diag_embed(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``diag_embed`` in the last dimensions."""
    found = _by_name(func, level, args, kwargs)
    if found is None or "dim1" in found[2] or "dim2" in found[2]:
        return NotImplemented
    return batch(func(found[1], **found[2]), level)


def trace(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``trace``."""
    return args[0].diagonal().sum()


def new(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``x.new_zeros`` and the like: for each sample one, so that it can be changed in place."""
    source, *sizes = args
    if not is_batched(source, level):
        return NotImplemented
    options = dict(kwargs)
    if func.__name__ == "new_full":
        given = named_arguments(func, args, kwargs)
        if given is None or isinstance(given.get("fill_value"), TensorBase):
            return NotImplemented
        shape, sizes = sizes_of([given["size"]]), [given["fill_value"]]
        options = {key: each for key, each in kwargs.items() if key not in ("size", "fill_value")}
        return batch(func(source._value, (level.size, *shape), *sizes, **options), level)
    shape = sizes_of([*sizes, *([options.pop("size")] if "size" in options else [])])
    return batch(func(source._value, (level.size, *shape), **options), level)


def change_shape(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``t_``, ``unsqueeze_`` and the like: the tensor becomes a view of itself."""
    target = args[0]
    view = getattr(type(target), func.__name__[:-1])(*args, **kwargs)
    target.__dict__.update(view.__dict__)
    return target


def of_metadata(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """What depends on shape, dtype and device alone."""
    return func(*mapped(stand_in, list(args)), **mapped(stand_in, kwargs))


def of_samples(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """Properties that do not depend on the shape."""
    return func(args[0]._value)


_IN_PLACE = "t_ transpose_ swapaxes_ swapdims_ squeeze_ unsqueeze_ as_strided_"

_METADATA = """
size dim ndimension numel nelement is_floating_point is_complex is_signed element_size stride
is_contiguous get_device is_conj is_neg is_same_size __len__ result_type is_pinned is_inference
"""
_METADATA_PROPERTIES = """
shape ndim dtype device layout itemsize nbytes is_cpu is_cuda is_meta is_sparse is_quantized
is_mps is_xpu is_mkldnn is_sparse_csr is_nested
"""
_AUTOGRAD_PROPERTIES = "requires_grad is_leaf grad_fn"


def _properties(kind: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for owner in reversed(kind.__mro__):
        found.update({key: each for key, each in vars(owner).items() if isinstance(each, property)})
    return found


def install() -> None:
    """Register the rules."""
    register(of_dimensions("dim"), *_ONE_DIMENSION.split())
    for name, dims in _SEVERAL_DIMENSIONS.items():
        register(of_dimensions(*dims), name)
    register(reshape, "reshape", "view", "view_copy")
    register(like, "view_as", "reshape_as", "expand_as")
    register(expand, "expand", "broadcast_to", "expand_copy")
    register(permute, "permute")
    register(transposed, "t")
    register(adjoint, "adjoint")
    register(flatten, "flatten", "ravel")
    register(unsqueeze, "unsqueeze")
    register(squeeze, "squeeze")
    register(flip, "flip")
    register(roll, "roll")
    register(repeat, "repeat", "tile")
    register(repeat_interleave, "repeat_interleave")
    register(joined, "cat", "stack", "concat", "concatenate")
    register(as_strided, "as_strided")
    register(broadcast_tensors, "broadcast_tensors")
    register(sum_to_size, "sum_to_size")
    register(diag, "diag")
    register(diag_embed, "diag_embed")
    register(trace, "trace")
    register(new, "new_zeros", "new_ones", "new_empty", "new_full")
    register(change_shape, *_IN_PLACE.split())
    register(of_metadata, *_METADATA.split())
    properties = _properties(TensorBase.tensor_class)
    for name in _METADATA_PROPERTIES.split():
        if name in properties:
            rules[properties[name].__get__] = of_metadata
    for name in _AUTOGRAD_PROPERTIES.split():
        rules[properties[name].__get__] = of_samples
    for name, rule in (
        ("T", reversed_dimensions),
        ("mT", transposed_matrices),
        ("H", conjugate_transposed),
        ("mH", adjoint),
    ):
        rules[properties[name].__get__] = rule
    for name in ("real", "imag", "data"):
        rules[properties[name].__get__] = lambda func, level, args, kwargs: batch(
            func(args[0]._value), level
        )
