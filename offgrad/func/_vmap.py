"""vmap: a function of samples, for batches."""

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from offgrad.autograd import override_state
from offgrad.autograd.tensor_base import TensorBase
from offgrad.func import _trees
from offgrad.func._batching import batched, functions, rules
from offgrad.func._batching.dispatch import public
from offgrad.func._batching.randomness import DifferentNumbers
from offgrad.memory.storage import write_observers
from offgrad.ops._random import replay


def vmap(
    func: Callable[..., Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """Return a function that computes `func` for all samples of a batch at once.

    `func` is called once, with tensors that look like one sample; functions compute all of them. If
    it asks for the elements of a sample, as in an ``if``, it is called again, for each sample.

    Args:
        func: takes samples, returns tensors.
        in_dims: the dimension of the samples in each positional argument; None: it is the same for
            all, as keyword arguments are.
        out_dims: the dimension of the samples in each result; None: results do not depend on them.
        randomness: ``"different"`` random numbers for each sample, the ``"same"``, or ``"error"``:
            raise if `func` draws any.
        chunk_size: the largest number of samples to compute at once; None: all.
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
        size = count if chunk_size is None else chunk_size
        draws = _Draws(randomness)
        chunks = []
        for start in range(0, max(count, 1), max(size, 1)):
            chunk = [
                each if dim is None else each.narrow(dim, start, min(size, count - start))
                for each, dim in zip(values, dims, strict=True)
            ]
            chunks.append(_at_once(func, args, chunk, dims, kwargs, draws, out_dims, name))
        return chunks[0] if len(chunks) == 1 else _joined(chunks, out_dims)

    return wrapper


def _at_once(
    func: Any,
    args: Any,
    values: list[Any],
    dims: list[Any],
    kwargs: dict[str, Any],
    draws: "_Draws",
    out_dims: Any,
    name: str,
) -> Any:
    """Return the results for all samples, computed at once if it is possible.

    Raises:
        RuntimeError: if it is not, and the function has changed a tensor in place.
    """
    rules.install()
    levels = override_state.state.levels
    level = batched.Level(_batch_size(values, dims, name), len(levels), draws.randomness)
    samples = [
        each if dim is None else batched.batch(each.movedim(dim, 0) if dim else each, level)
        for each, dim in zip(values, dims, strict=True)
    ]
    overriding = override_state.state
    modes, apply_function = overriding.modes, overriding.apply_function
    try:
        overriding.levels = (*levels, level)
        overriding.apply_function = functions.apply_function
        if draws.randomness == "different":
            level.mode = DifferentNumbers(level)
            overriding.modes = (*modes, level.mode)
        write_observers.append(level.note_write)
        with draws.sample() as drawn, batched.overrides_enabled():
            result = func(*_trees.rebuilt(args, samples), **kwargs)
            if level.mode is not None and len(drawn) > level.mode.count:
                raise batched.NotBatchedError("numbers were drawn for no sample")
            return _results(result, level, out_dims, name)
    except batched.NotBatchedError as error:
        if level.has_written:
            raise RuntimeError(
                f"vmap({name}): {error}, as in an `if`, by .item() or a mask, after {name} has "
                "changed a tensor in place: it cannot run again for each sample; use torch.where, "
                "or functions that return new tensors"
            ) from None
    finally:
        level.is_active = False
        if level.note_write in write_observers:  # else Ctrl-C came before
            write_observers.remove(level.note_write)
        overriding.levels, overriding.modes = levels, modes
        overriding.apply_function = apply_function
    return _one_by_one(func, args, values, dims, kwargs, draws, out_dims, name)


def _results(result: Any, level: batched.Level, out_dims: Any, name: str) -> Any:
    """Return results of all samples with the dimension of the samples where it belongs."""
    dims = _output_dims(result, out_dims, name)
    found = []
    for each, dim in zip(_trees.leaves(result), dims, strict=True):
        value = batched.expanded(each, level) if isinstance(each, TensorBase) else each
        if dim is None:
            found.append(value[0] if batched.is_batched(each, level) else each)
        else:
            found.append(value.movedim(0, dim) if dim else value)
    return _trees.rebuilt(result, found)


def _joined(chunks: list[Any], out_dims: Any) -> Any:
    """Return the results of chunks as one."""
    dims = _trees.broadcast(out_dims, chunks[0])
    columns = zip(*[_trees.leaves(each) for each in chunks], strict=True)
    joined = [
        column[0] if dim is None else public("cat")(column, dim)
        for column, dim in zip(columns, dims, strict=True)
    ]
    return _trees.rebuilt(chunks[0], joined)


def _one_by_one(
    func: Any,
    args: Any,
    values: list[Any],
    dims: list[Any],
    kwargs: dict[str, Any],
    draws: "_Draws",
    out_dims: Any,
    name: str,
) -> Any:
    """Return the stacked results of a call for each sample."""
    count = _batch_size(values, dims, name)
    if not count:
        raise ValueError(f"vmap({name}): a batch needs at least one sample, got none")
    results = []
    for number in range(count):
        samples = [
            each if dim is None else each.select(dim, number)
            for each, dim in zip(values, dims, strict=True)
        ]
        with draws.sample():
            results.append(func(*_trees.rebuilt(args, samples), **kwargs))
    return _stacked(results, out_dims, name)


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
        ndim = batched.ndim_of(value)
        if not -ndim <= dim < ndim:
            raise ValueError(
                f"{where}: Got in_dim={dim} for some input, but that input is a Tensor of "
                f"dimensionality {ndim} so expected in_dim to satisfy -{ndim} <= in_dim < {ndim}."
            )
        checked.append(dim % ndim)
    return checked


def _batch_size(values: list[Any], dims: list[Any], name: str) -> int:
    sizes = [
        int(batched.shape_of(each)[dim])
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
    return sizes[0]


def _check_draws(draws: list[replay.Draw], randomness: str) -> None:
    if draws and randomness == "error":
        raise RuntimeError(
            "vmap: called random operation in randomness error mode; pass randomness='same' "
            "or 'different', or draw the numbers outside"
        )


class _Draws:
    """The random numbers that samples draw.

    Args:
        randomness: the argument of `vmap`.
    """

    def __init__(self, randomness: str) -> None:
        self.randomness = randomness
        self._first: list[replay.Draw] | None = None

    @contextmanager
    def sample(self) -> Iterator[list[replay.Draw]]:
        """A context for the call with one sample, or with all; with its draws."""
        with ExitStack() as stack:
            if self.randomness == "same" and self._first is not None:
                stack.enter_context(replay.replaying(self._first, RuntimeError))
            draws = stack.enter_context(replay.recording())
            yield draws
        _check_draws(draws, self.randomness)
        if self._first is None:
            self._first = draws


def _output_dims(result: Any, out_dims: Any, name: str) -> list[Any]:
    """Return the dimension of the samples, or None, for each leaf of a result."""
    for each in _trees.leaves(result):
        if not isinstance(each, TensorBase) and out_dims is not None:
            raise ValueError(
                f"vmap({name}, ...): `{name}` must only return Tensors, got type {type(each)}."
            )
    try:
        return _trees.broadcast(out_dims, result)
    except ValueError as error:
        raise ValueError(
            f"vmap({name}, ..., out_dims={out_dims}): out_dims is not compatible with the "
            f"structure of `outputs`: {error}"
        ) from None


def _stacked(results: list[Any], out_dims: Any, name: str) -> Any:
    """Return the results of all samples, stacked."""
    first = results[0]
    dims = _output_dims(first, out_dims, name)
    columns = zip(*[_trees.leaves(each) for each in results], strict=True)
    stacked = [
        column[0] if dim is None else public("stack")(column, dim)
        for column, dim in zip(columns, dims, strict=True)
    ]
    return _trees.rebuilt(first, stacked)
