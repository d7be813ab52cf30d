"""Rules of functions with dimensions: reductions, scans, sorting, indices along a dimension."""

from typing import Any

from offgrad.autograd.tensor_base import TensorBase
from offgrad.func._batching.arguments import (
    all_from_end,
    default_of,
    first_name,
    has_parameter,
    named_arguments,
)
from offgrad.func._batching.batched import (
    Level,
    batch,
    expanded,
    flattened,
    is_batched,
    ndim_of,
)
from offgrad.func._batching.dispatch import outputs, refuse_unbatched, register

_REDUCTIONS = """
all any amax amin aminmax argmax argmin count_nonzero logsumexp mean nanmean nansum prod quantile
nanquantile std std_mean sum var var_mean vector_norm frobenius_norm
"""
"""Without a dimension, they reduce all elements."""

_ALONG_ONE = """
argsort cummax cummin cumprod cumsum glu kthvalue log_softmax logcumsumexp mode normalize
softmax softmin sort topk
"""
"""They have a dimension always."""

_OF_VECTORS = """
trapezoid trapz cumulative_trapezoid
fft ifft rfft irfft hfft ihfft fft2 ifft2 rfft2 irfft2 hfft2 ihfft2
"""
"""They need a dimension."""

_SEVERAL = "gather scatter scatter_add scatter_reduce cosine_similarity vecdot diff"
"""All their tensors have the dimensions of a sample."""

_BY_INDEX = "index_add index_copy index_fill index_select index_reduce"
"""Their index has one dimension, for all samples the same."""

_ALL_DIMENSIONS = "fftn ifftn rfftn irfftn hfftn ihfftn fftshift ifftshift"

_IN_PLACE = """
cumprod_ cumsum_ index_add_ index_copy_ index_fill_ index_reduce_ scatter_ scatter_add_
scatter_reduce_ tril_ triu_ addmm_ addmv_ addr_ addbmm_ baddbmm_ renorm_
masked_fill_ masked_scatter_ put_ index_put_
"""


def along(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """A function of one tensor along one dimension or several."""
    given = named_arguments(func, args, kwargs)
    if given is None or given.get("out") is not None:
        return NotImplemented
    source = given.pop(first_name(func))
    if not is_batched(source, level) or any(isinstance(e, TensorBase) for e in given.values()):
        return NotImplemented
    dim = given.get("dim", default_of(func, "dim"))
    if (
        dim is None
        or isinstance(dim, (str, TensorBase))
        or isinstance(given.get("q"), (list, tuple))
    ):
        return NotImplemented
    ndim = ndim_of(source)
    given["dim"] = all_from_end(dim, ndim)
    if ndim:
        return outputs(func(source._value, **given), level)
    result = func(source._value.unsqueeze(1), **given)
    return _without_dimensions(result, level)


def of_vectors(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """The same, of samples with dimensions."""
    return along(func, level, args, kwargs) if ndim_of(args[0]) else NotImplemented


def _without_dimensions(result: Any, level: Level) -> Any:
    if isinstance(result, TensorBase):
        return batch(result.reshape(level.size), level)  # type: ignore[attr-defined]
    parts = [_without_dimensions(each, level) for each in result]
    return result._make(parts) if hasattr(result, "_make") else type(result)(parts)


def reduction(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """A reduction along dimensions, or of all elements of each sample."""
    given = named_arguments(func, args, kwargs)
    if given is None or given.get("out") is not None:
        return NotImplemented
    dim = given.get("dim", default_of(func, "dim"))
    if isinstance(dim, bool):  # var(x, unbiased)
        given["unbiased"], dim = dim, None
        given.pop("dim")
    if not (dim is None or (isinstance(dim, (list, tuple)) and not dim)):
        given["dim"] = dim
        return along(func, level, (), given)
    source = given.pop(first_name(func))
    if not is_batched(source, level) or any(isinstance(e, TensorBase) for e in given.values()):
        return NotImplemented
    if isinstance(given.get("q"), (list, tuple)):
        return NotImplemented
    flat = flattened(source, level)
    given["dim"] = -1
    result = func(flat, **given)
    if given.get("keepdim") or given.get("keepdims"):
        shape = (level.size, *(1,) * ndim_of(source))
        if isinstance(result, tuple):
            parts = [each.reshape(shape) for each in result]
            result = result._make(parts) if hasattr(result, "_make") else tuple(parts)
        else:
            result = result.reshape(shape)
    return outputs(result, level)


def extremum(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``max``, ``min`` and medians: of all elements, along a dimension, or of two tensors."""
    given = named_arguments(func, args, kwargs)
    if given is None or given.get("out") is not None:
        return NotImplemented
    name = func.__name__
    if isinstance(given.get("dim"), TensorBase):
        given["other"] = given.pop("dim")
    if given.get("other") is not None:
        source = given[first_name(func)]
        return (source.maximum if name == "max" else source.minimum)(given["other"])
    if given.get("dim") is not None:
        return along(func, level, (), given)
    source = given[first_name(func)]
    if not is_batched(source, level):
        return NotImplemented
    if name not in ("max", "min") and source.requires_grad:
        return NotImplemented  # elements that are equal share the gradient
    flat = flattened(source, level)
    if name in ("max", "min"):
        return batch(flat.amax(-1) if name == "max" else flat.amin(-1), level)
    return batch(func(flat, -1).values, level)


def norm(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """Norms of vectors, and the default ones of all elements."""
    given = named_arguments(func, args, kwargs)
    if given is None:
        return NotImplemented
    key = "ord" if has_parameter(func, "ord") else "p"
    order, dim = given.get(key, default_of(func, key)), given.get("dim")
    source = given[first_name(func)]
    is_vector = dim is None and (ndim_of(source) < 2 or order in (None, "fro"))
    if not (is_vector or key == "p" or isinstance(dim, int)) or order == "nuc":
        return NotImplemented
    given[key] = 2 if order in (None, "fro") else order
    return reduction(func, level, (), given)


def several(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """A function along a dimension of several tensors, each of which has those of a sample."""
    given = named_arguments(func, args, kwargs)
    if given is None or given.get("out") is not None:
        return NotImplemented
    dim = given.get("dim", default_of(func, "dim"))
    tensors = {key: each for key, each in given.items() if isinstance(each, TensorBase)}
    ndims = {ndim_of(each) for each in tensors.values()}
    if dim is None or len(ndims) != 1 or 0 in ndims:
        return NotImplemented
    given["dim"] = all_from_end(dim, ndims.pop())
    given.update({key: expanded(each, level) for key, each in tensors.items()})
    return outputs(func(given.pop(first_name(func)), **given), level)


def by_index(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """A function of the positions of an index along a dimension."""
    given = named_arguments(func, args, kwargs)
    if given is None or given.get("out") is not None or is_batched(given["index"], level):
        return NotImplemented
    source = given.pop(first_name(func))
    ndim = ndim_of(source)
    if not ndim or isinstance(given.get("value"), TensorBase):
        return NotImplemented
    given["dim"] = all_from_end(given["dim"], ndim)
    if isinstance(given.get("source"), TensorBase):
        if ndim_of(given["source"]) != ndim:
            return NotImplemented
        given["source"] = expanded(given["source"], level)
    return outputs(func(expanded(source, level), **given), level)


def all_dimensions(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """A function along all dimensions of a sample by default, or the last ones with sizes."""
    given = named_arguments(func, args, kwargs)
    if given is None or given.get("out") is not None:
        return NotImplemented
    if given.get("dim") is None:
        count = ndim_of(given[first_name(func)])
        if given.get("s") is not None:
            count = len(given["s"])
        given["dim"] = tuple(range(-count, 0))
    return along(func, level, (), given)


def by_copy(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """A function that changes its first argument: the one that does not, and a copy."""
    target = args[0]
    refuse_unbatched(func, target, level)
    target.copy_(getattr(type(target), func.__name__[:-1])(*args, **kwargs))
    return target


def install() -> None:
    """Register the rules."""
    register(reduction, *_REDUCTIONS.split())
    register(along, *_ALONG_ONE.split())
    register(of_vectors, *_OF_VECTORS.split())
    register(extremum, "max", "min", "median", "nanmedian")
    register(norm, "norm")
    register(several, *_SEVERAL.split())
    register(by_index, *_BY_INDEX.split())
    register(all_dimensions, *_ALL_DIMENSIONS.split())
    register(by_copy, *_IN_PLACE.split())
