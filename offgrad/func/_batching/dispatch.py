"""How a function of batched tensors is computed: by its rule, by its own code, or for each sample.

A rule turns a call for samples into one for all of them. Where a function has none, its own code
runs: it is often made of functions that have rules. If that asks for the elements of a sample, the
function is called for each sample, unless it returns views of its arguments.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from offgrad._tensor import overrides
from offgrad.autograd.override_state import state
from offgrad.autograd.tensor_base import TensorBase, metadata
from offgrad.func._batching import batched as batched_module
from offgrad.func._batching.arguments import positional_names
from offgrad.func._batching.batched import (
    BatchedTensor,
    Level,
    NotBatchedError,
    batch,
    check_active,
    is_batched,
    mapped,
    tensors_in,
)
from offgrad.ops._random import replay

Rule = Callable[..., Any]
"""Called as ``rule(function, level, args, kwargs)``; it returns NotImplemented for calls that it
does not cover.
"""

rules: dict[Any, Rule] = {}
"""The rules by function; `offgrad.func._batching.rules` fills it."""


def dispatch(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return the result of a function of batched tensors, for all samples of the innermost.

    Raises:
        RuntimeError: for a tensor of a call of `vmap` that has ended.
    """
    level = innermost(args, kwargs)
    assert level is not None
    check_active(level)
    if kwargs:
        args, kwargs = _by_position(func, args, kwargs)
    rule = rules.get(func)
    if rule is None and not _is_in_place(func, kwargs):
        original = getattr(func, "__original__", None)
        if original is not None:
            try:
                with _drawing(level, is_composed=True):
                    return original(*args, **kwargs)
            except NotBatchedError:
                pass
    with _drawing(level, is_composed=False):
        result = NotImplemented if rule is None else rule(func, level, args, kwargs)
        if result is NotImplemented:
            result = for_each_sample(func, level, args, kwargs)
    return result


def _by_position(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return arguments with the first ones by position, whichever way they were given."""
    names = positional_names(func)
    args, kwargs = list(args), dict(kwargs)
    while len(args) < len(names) and names[len(args)] in kwargs:
        args.append(kwargs.pop(names[len(args)]))
    return tuple(args), kwargs


@contextmanager
def _drawing(level: Level, is_composed: bool) -> Iterator[None]:
    """Let functions within a rule draw other numbers for each sample of outer levels; those within
    a function's own code also for each of this one.
    """
    modes = state.modes
    wanted = [
        each.mode
        for each in state.levels
        if each.mode is not None and (each.depth < level.depth or (is_composed and each is level))
    ]
    if level.mode is None and not wanted:
        yield
        return
    state.modes = (*modes, *[each for each in wanted if each not in modes])
    try:
        if is_composed or level.mode is None:
            yield
        else:
            with level.mode.counted():
                yield
    finally:
        state.modes = modes


batched_module.dispatch = dispatch


def innermost(args: Any, kwargs: dict[str, Any]) -> Level | None:
    """Return the innermost level of the batched tensors among arguments; None without any."""
    found: Level | None = None
    for each in args:
        if type(each) is BatchedTensor and (found is None or each._level.depth > found.depth):
            found = each._level
    if found is None or kwargs or not all(isinstance(each, TensorBase) for each in args):
        for each in (*tensors_in(args), *tensors_in(kwargs)):
            if type(each) is BatchedTensor and (found is None or each._level.depth > found.depth):
                found = each._level
    return found


def _is_in_place(func: Any, kwargs: dict[str, Any]) -> bool:
    name = getattr(func, "__name__", "")
    return (name.endswith("_") and not name.startswith("__")) or kwargs.get("out") is not None


def refuse_unbatched(func: Any, target: Any, level: Level) -> None:
    """Check that the target of an in-place function is batched.

    Raises:
        RuntimeError: if it is not: it has no room for the results of all samples.
        NotBatchedError: within a backward pass.
    """
    if not is_batched(target, level):
        if state.is_batched_pass:
            raise NotBatchedError("a derivative changes a tensor of its own in place")
        raise RuntimeError(
            f"vmap: inplace arithmetic(self, *extra_args) is not possible because there exists a "
            f"Tensor `other` in extra_args that has more elements than `self`: {func.__name__} "
            "would write the results of all samples into one tensor; use the function that returns "
            "a new one, or make the target of a batched tensor, as by x.new_zeros()"
        )


def for_each_sample(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """Call a function for each sample, and return the stacked results."""
    name = getattr(func, "__name__", "")
    is_in_place = _is_in_place(func, kwargs) or name == "__setitem__"
    if is_in_place:
        refuse_unbatched(func, kwargs["out"] if "out" in kwargs else args[0], level)
    if not level.size:
        raise NotBatchedError(f"{name} is called for each of no samples")
    results = []
    draws: list[replay.Draw] = []
    for number in range(level.size):

        def sample(value: Any, number: int = number) -> Any:
            return value._value[number] if is_batched(value, level) else value

        given, options = mapped(sample, tuple(args)), mapped(sample, kwargs)
        if number and level.randomness == "same" and draws:
            with replay.replaying(draws, RuntimeError):
                result = func(*given, **options)
        elif number:
            result = func(*given, **options)
        else:
            with replay.recording() as draws:
                result = func(*given, **options)
        if not (is_in_place or number):
            _refuse_views(result, (*tensors_in(given), *tensors_in(options)))
        results.append(result)
    if is_in_place:
        return None if name == "__setitem__" else kwargs.get("out", args[0])
    return stacked(results, level)


def _refuse_views(result: Any, inputs: Any) -> None:
    storages = {id(each._storage) for each in inputs}
    results = tensors_in(result if isinstance(result, (list, tuple)) else (result,))
    if any(id(each._storage) in storages for each in results):
        raise NotBatchedError("a view of one sample is asked for within vmap")


def stacked(results: list[Any], level: Level) -> Any:
    """Return the results of all samples as one."""
    first = results[0]
    if isinstance(first, TensorBase):
        shapes = {metadata(each).shape for each in results}
        if len(shapes) > 1:
            raise NotBatchedError(f"the results of samples have several shapes: {sorted(shapes)}")
        return batch(public("stack")(results), level)
    if isinstance(first, (list, tuple)):
        columns = [stacked([*column], level) for column in zip(*results, strict=True)]
        return first._make(columns) if hasattr(first, "_make") else type(first)(columns)
    if not isinstance(first, _PLAIN) or any(each != first for each in results):
        raise NotBatchedError("the results of samples are no tensors, and differ")
    return first


_PLAIN = (bool, int, float, complex, str, type(None))


def named(*names: str) -> list[Any]:
    """Return the functions and methods of tensors with these names, in all namespaces.

    Raises:
        LookupError: if there is none of a name.
    """
    table = _by_name()
    missing = [each for each in names if each not in table]
    if missing:
        raise LookupError(f"there are no functions named {missing}")
    return [function for name in names for function in table[name]]


def public(name: str) -> Any:
    """Return the public function of a name: unlike those of `ops`, it looks for batched tensors."""
    return _by_name()[name][0]


def exists(name: str) -> bool:
    """Return whether there is a function or a method of tensors with this name."""
    return name in _by_name()


_names: dict[str, list[Any]] = {}


def _by_name() -> dict[str, list[Any]]:
    if not _names:
        for _, name, function in overrides.overridable():
            _names.setdefault(name, []).append(function)
    return _names


def register(rule: Rule, *names: str) -> None:
    """Make `rule` that of the functions with these names."""
    for each in named(*names):
        rules[each] = rule


def outputs(result: Any, level: Level) -> Any:
    """Return results for all samples as batched tensors."""
    return mapped(lambda each: batch(each, level), result)
