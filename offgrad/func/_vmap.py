"""vmap: a function of samples, for batches."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from offgrad import ops
from offgrad.autograd.tensor_base import TensorBase
from offgrad.func import _trees
from offgrad.ops._random import replay


def vmap(
    func: Callable[..., Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """Return a function that calls `func` for each sample of a batch, and stacks the results.

    PyTorch computes all samples at once; here the calls come one after the other, with the same
    results.

    Args:
        func: takes samples, returns tensors.
        in_dims: the dimension of the samples in each positional argument; None: it is the same for
            all, as keyword arguments are.
        out_dims: the dimension of the samples in each result; None: results do not depend on them.
        randomness: ``"different"`` random numbers for each sample, the ``"same"``, or ``"error"``:
            raise if `func` draws any.
        chunk_size: accepted; it has no effect.
    """
    if randomness not in ("error", "different", "same"):
        raise RuntimeError(
            "Only allowed values for randomness are 'error', 'different', or 'same'. Got "
            f"{randomness}"
        )
    if chunk_size is not None and chunk_size <= 0:
        raise ValueError(f"vmap: chunk_size should be None or greater than 0. (got {chunk_size})")

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        name = getattr(func, "__name__", repr(func))
        dims = _checked_dims(in_dims, args, name)
        values = _trees.leaves(args)
        count = _batch_size(values, dims, name)
        draws = _Draws(randomness)
        results = []
        for number in range(count):
            samples = [
                each if dim is None else each.select(dim, number)
                for each, dim in zip(values, dims, strict=True)
            ]
            with draws.sample():
                results.append(func(*_trees.rebuilt(args, samples), **kwargs))
        return _stacked(results, out_dims, name)

    return wrapper


def _checked_dims(in_dims: Any, args: Any, name: str) -> list[Any]:
    """Return the dimension of the samples, or None, for each leaf of `args`."""
    where = f"vmap({name}, in_dims={in_dims}, ...)(<inputs>)"
    if not isinstance(in_dims, (int, tuple)):
        raise ValueError(
            f"{where}: expected `in_dims` to be int or a (potentially nested) tuple matching the "
            f"structure of inputs, got: {type(in_dims)}."
        )
    if not args:
        raise ValueError(f"vmap({name})(<inputs>): got no inputs; pass at least one")
    try:
        dims = _trees.broadcast(in_dims, args)
    except ValueError as error:
        raise ValueError(
            f"{where}: in_dims is not compatible with the structure of `inputs`: {error}"
        ) from None
    checked: list[int | None] = []
    for dim, value in zip(dims, _trees.leaves(args), strict=True):
        if dim is None:
            checked.append(None)
            continue
        if not isinstance(dim, int):
            raise ValueError(f"{where}: Got in_dim={dim} for an input but in_dim must be an int")
        if not isinstance(value, TensorBase):
            raise ValueError(
                f"{where}: Got in_dim={dim} for an input but the input is of type {type(value)}; "
                "use None as its in_dim"
            )
        ndim = value._array.ndim
        if not -ndim <= dim < ndim:
            raise ValueError(
                f"{where}: Got in_dim={dim} for some input, but that input is a Tensor of "
                f"dimensionality {ndim} so expected in_dim to satisfy -{ndim} <= in_dim < {ndim}."
            )
        checked.append(dim % ndim)
    return checked


def _batch_size(values: list[Any], dims: list[Any], name: str) -> int:
    sizes = [
        int(each._array.shape[dim])
        for each, dim in zip(values, dims, strict=True)
        if dim is not None
    ]
    if not sizes:
        raise ValueError(
            f"vmap({name}): in_dims must give a dimension of samples for at least one tensor"
        )
    if len(set(sizes)) > 1:
        raise ValueError(
            "vmap: Expected all tensors to have the same size in the mapped dimension, got sizes "
            f"{sizes} for the mapped dimension"
        )
    if not sizes[0]:
        raise ValueError(f"vmap({name}): a batch needs at least one sample, got none")
    return sizes[0]


class _Draws:
    """The random numbers that samples draw."""

    def __init__(self, randomness: str) -> None:
        self._randomness = randomness
        self._first: list[replay.Draw] | None = None

    def sample(self) -> AbstractContextManager[None]:
        """Return a context for the call with one sample."""
        if self._randomness == "same" and self._first is not None:
            return replay.replaying(self._first, RuntimeError)
        return self._recording()

    @contextmanager
    def _recording(self) -> Any:
        with replay.recording() as draws:
            yield
        if draws and self._randomness == "error":
            raise RuntimeError(
                "vmap: called random operation in randomness error mode; pass randomness='same' "
                "or 'different', or draw the numbers outside"
            )
        if self._first is None:
            self._first = draws


def _stacked(results: list[Any], out_dims: Any, name: str) -> Any:
    """Return the results of all samples, stacked."""
    first = results[0]
    for each in _trees.leaves(first):
        if not isinstance(each, TensorBase) and out_dims is not None:
            raise ValueError(
                f"vmap({name}, ...): `{name}` must only return Tensors, got type {type(each)}."
            )
    try:
        dims = _trees.broadcast(out_dims, first)
    except ValueError as error:
        raise ValueError(
            f"vmap({name}, ..., out_dims={out_dims}): out_dims is not compatible with the "
            f"structure of `outputs`: {error}"
        ) from None
    columns = zip(*[_trees.leaves(each) for each in results], strict=True)
    stacked = [
        column[0] if dim is None else ops.stack(column, dim)
        for column, dim in zip(columns, dims, strict=True)
    ]
    return _trees.rebuilt(first, stacked)
