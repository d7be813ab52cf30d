"""vmap: a function of samples, for batches."""

import copy
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
        draws = _Draws(randomness)
        call = _Call(func, args, kwargs, in_dims, out_dims, draws)
        count = call.count
        if chunk_size is None or count <= chunk_size:
            return call.results()
        chunks = [
            call.narrowed(start, min(chunk_size, count - start)).results()
            for start in range(0, count, chunk_size)
        ]
        return _joined("cat", chunks, _trees.broadcast(out_dims, chunks[0]))

    return wrapper


class _Call:
    """A call of a function of samples with a batch of them.

    Args:
        func: the function.
        args: its positional arguments, for all samples.
        kwargs: its keyword arguments.
        in_dims: the argument of `vmap`.
        out_dims: the argument of `vmap`.
        draws: the random numbers that samples draw.

    Raises:
        ValueError: if `in_dims` and `args` do not fit.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        in_dims: Any,
        out_dims: Any,
        draws: "_Draws",
    ) -> None:
        self._func, self._args, self._kwargs = func, args, kwargs
        self._out_dims, self._draws = out_dims, draws
        self._name = getattr(func, "__name__", repr(func))
        self._dims = _checked_dims(in_dims, args, self._name)
        self._values = _trees.leaves(args)
        self.count = _batch_size(self._values, self._dims, self._name)

    def narrowed(self, start: int, count: int) -> "_Call":
        """Return the call with `count` of the samples, from number `start` on."""
        part = copy.copy(self)
        part._values = self._of_samples(lambda value, dim: value.narrow(dim, start, count))
        part.count = count
        return part

    def results(self) -> Any:
        """Return the results for all samples, computed at once if it is possible.

        Raises:
            RuntimeError: if it is not, and the function has changed a tensor in place.
        """
        rules.install()
        overriding = override_state.state
        levels, modes = overriding.levels, overriding.modes
        apply_function = overriding.apply_function
        level = batched.Level(self.count, len(levels), self._draws.randomness)
        samples = self._of_samples(
            lambda value, dim: batched.batch(value.movedim(dim, 0) if dim else value, level)
        )
        try:
            overriding.levels = (*levels, level)
            overriding.apply_function = functions.apply_function
            if self._draws.randomness == "different":
                level.mode = DifferentNumbers(level)
                overriding.modes = (*modes, level.mode)
            write_observers.append(level.note_write)
            with self._draws.sample() as drawn, batched.overrides_enabled():
                result = self._apply(samples)
                if level.mode is not None and len(drawn) > level.mode.count:
                    raise batched.NotBatchedError("numbers were drawn for no sample")
                return self._unbatched(result, level)
        except batched.NotBatchedError as error:
            if level.has_written:
                raise RuntimeError(
                    f"vmap({self._name}): {error}, as in an `if`, by .item() or a mask, after "
                    f"{self._name} has changed a tensor in place: it cannot run again for each "
                    "sample; use torch.where, or functions that return new tensors"
                ) from None
        finally:
            level.is_active = False
            if level.note_write in write_observers:  # else Ctrl-C came before
                write_observers.remove(level.note_write)
            overriding.levels, overriding.modes = levels, modes
            overriding.apply_function = apply_function
        return self._one_by_one()

    def _of_samples(self, function: Callable[[Any, int], Any]) -> list[Any]:
        """Return the values, those with a dimension of samples as `function` makes them."""
        return [
            each if dim is None else function(each, dim)
            for each, dim in zip(self._values, self._dims, strict=True)
        ]

    def _sample(self, number: int) -> list[Any]:
        return self._of_samples(lambda value, dim: value.select(dim, number))

    def _apply(self, values: list[Any]) -> Any:
        return self._func(*_trees.rebuilt(self._args, values), **self._kwargs)

    def _unbatched(self, result: Any, level: batched.Level) -> Any:
        """Return results of all samples with the dimension of the samples where it belongs."""
        found = []
        for each, dim in zip(_trees.leaves(result), self._output_dims(result), strict=True):
            value = batched.expanded(each, level) if isinstance(each, TensorBase) else each
            if dim is None:
                found.append(value[0] if batched.is_batched(each, level) else each)
            else:
                found.append(value.movedim(0, dim) if dim else value)
        return _trees.rebuilt(result, found)

    def _one_by_one(self) -> Any:
        """Return the stacked results of a call for each sample."""
        if not self.count:
            raise ValueError(f"vmap({self._name}): a batch needs at least one sample, got none")
        results = []
        for number in range(self.count):
            with self._draws.sample():
                results.append(self._apply(self._sample(number)))
        return _joined("stack", results, self._output_dims(results[0]))

    def _output_dims(self, result: Any) -> list[Any]:
        """Return the dimension of the samples, or None, for each leaf of a result."""
        for each in _trees.leaves(result):
            if not isinstance(each, TensorBase) and self._out_dims is not None:
                raise ValueError(
                    f"vmap({self._name}, ...): `{self._name}` must only return Tensors, got type "
                    f"{type(each)}."
                )
        try:
            return _trees.broadcast(self._out_dims, result)
        except ValueError as error:
            raise ValueError(
                f"vmap({self._name}, ..., out_dims={self._out_dims}): out_dims is not compatible "
                f"with the structure of `outputs`: {error}"
            ) from None


def _joined(function: str, results: list[Any], dims: list[Any]) -> Any:
    """Return the results of samples, or of chunks of them, by ``stack`` or ``cat`` as one."""
    columns = zip(*[_trees.leaves(each) for each in results], strict=True)
    joined = [
        column[0] if dim is None else public(function)(column, dim)
        for column, dim in zip(columns, dims, strict=True)
    ]
    return _trees.rebuilt(results[0], joined)


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
