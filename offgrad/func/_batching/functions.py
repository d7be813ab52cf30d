"""User-defined Functions of batched tensors."""

from typing import Any, NamedTuple

from offgrad.autograd.function import Function
from offgrad.func._batching.batched import (
    batch,
    is_batched,
    samples_of,
)
from offgrad.func._batching.dispatch import for_each_sample, innermost


class VmapInfo(NamedTuple):
    """What a Function's `vmap` learns.

    Attributes:
        batch_size: the number of samples.
        randomness: ``"error"``, ``"different"`` or ``"same"``.
    """

    batch_size: int
    randomness: str


def apply_function(cls: type[Function], args: Any, kwargs: dict[str, Any]) -> Any:
    """Return the result of a Function: by its `vmap`, or for each sample.

    Raises:
        RuntimeError: if its `vmap` does not return a pair of outputs and their dimensions.
    """
    level = innermost(args, kwargs)
    if level is None:
        return NotImplemented
    if cls.vmap is Function.vmap or kwargs:
        return for_each_sample(cls.apply, level, args, kwargs)
    dims = tuple([0 if is_batched(each, level) else None for each in args])
    given = [samples_of(each, level) for each in args]
    result = cls.vmap(VmapInfo(level.size, level.randomness), dims, *given)
    if not (isinstance(result, tuple) and len(result) == 2):
        raise RuntimeError(
            f"{cls.__name__}.vmap must return the outputs and the dimension of the samples in each "
            f"(None: it has none), got {type(result).__name__}"
        )
    outputs, out_dims = result
    if not isinstance(outputs, tuple):
        return _batched(outputs, out_dims, level)
    if not isinstance(out_dims, tuple):
        out_dims = (out_dims,) * len(outputs)
    return tuple([_batched(*each, level) for each in zip(outputs, out_dims, strict=True)])


def _batched(value: Any, dim: Any, level: Any) -> Any:
    return value if dim is None else batch(value.movedim(dim, 0), level)
