"""`checkpoint`, `checkpoint_sequential`, and the context managers that set their options."""

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import reduce
from typing import Any, TypeAlias

from offgrad.autograd import grad_mode
from offgrad.utils.checkpoint.node import Checkpoint, Options
from offgrad.utils.checkpoint.reentrant import CheckpointFunction

Contexts: TypeAlias = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]
# For each determinism_check whether metadata and contents are compared.
_CHECKS = {
    "default": (True, True),
    "content": (True, True),
    "metadata": (True, False),
    "none": (False, False),
}


class _State(threading.local):
    """Options that the context managers set for a thread; None: use the arguments."""

    early_stop: bool | None = None
    debug: bool | None = None


_state = _State()


@contextmanager
def set_checkpoint_early_stop(enable: bool) -> Iterator[None]:
    """Set `early_stop` of all checkpoints called in the block, wherever their backward runs."""
    before, _state.early_stop = _state.early_stop, enable
    try:
        yield
    finally:
        _state.early_stop = before


@contextmanager
def set_checkpoint_debug_enabled(enabled: bool | None) -> Iterator[None]:
    """Set `debug` of all checkpoints called in the block; None: use their arguments."""
    before, _state.debug = _state.debug, enabled
    try:
        yield
    finally:
        _state.debug = before


def noop_context_fn() -> Contexts:
    """Return two contexts that do nothing."""
    return nullcontext(), nullcontext()


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    context_fn: Callable[[], Contexts] = noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """Return ``function(*args, **kwargs)``; in backward run it again to recompute the tensors that
    it saved, instead of keeping them.

    >>> import offgrad
    >>> from offgrad.utils.checkpoint import checkpoint
    >>> x = offgrad.zeros(2, requires_grad=True)
    >>> checkpoint(lambda x: x.exp().tanh().sin(), x, use_reentrant=False).sum().backward()

    Only the tensors among the arguments are kept, in lists, tuples and dicts too. Each backward
    pass runs the function once, when it needs the first tensor saved inside, up to the last one it
    needs, and drops each as soon as it is used. Checkpoints nest, and all kinds of backward work.
    The function runs in the same grad mode and gets the same numbers from offgrad's generators,
    even if other threads draw numbers meanwhile.

    **Other hooks.** The call of `checkpoint` saves the inputs, as an operation named
    ``Checkpoint``. Hooks and ``offload`` around it get only these, and they are prefetched. Hooks
    and ``offload`` entered by the function get the tensors saved inside them, in each run; these
    are not recomputed. Recomputed tensors stay in memory in any context, because they are needed at
    once. For the same reason policies by module have no effect inside a checkpoint, even if its
    function enters them: they place its inputs, by the module that calls `checkpoint`. Module hooks
    are called in each run.

    Args:
        function: must do the same in each run.
        use_reentrant: False, as described here. True: PyTorch's older kind, in which the function
            runs unrecorded, only tensors that are arguments themselves get gradients, through a
            nested backward pass, and ``autograd.grad`` and ``inputs=`` raise.
        context_fn: returns two contexts, one for the forward run and one for each later run.
        determinism_check: the comparison of later runs with the forward run: ``"content"``, bit for
            bit, by a hash (the default, so that no gradient is silently wrong); ``"metadata"``:
            operation, shape and dtype, as PyTorch's default; ``"none"``. Contents are not compared
            if a lossy codec changed the inputs.
        debug: list all saved tensors in errors, with the lines that saved them.
        early_stop: False: run the function to its end.
        preserve_rng_state: False: draw new random numbers.

    Raises:
        CheckpointError: in backward, if the function saves other tensors than in forward.
        ValueError: for an unknown `determinism_check`; with ``use_reentrant=True`` for `context_fn`
            and `debug`, and keyword arguments of the function.
    """
    _check_kind(use_reentrant)
    if use_reentrant:
        if kwargs:
            raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
        if context_fn is not noop_context_fn or debug:
            raise ValueError("context_fn and debug are only supported when use_reentrant=False")
        return CheckpointFunction.apply(function, preserve_rng_state, *args)
    if determinism_check not in _CHECKS:
        raise ValueError(
            f"determinism_check must be one of {', '.join(_CHECKS)}, got {determinism_check!r}"
        )
    forward_context, recompute_context = context_fn()
    if not grad_mode.state.grad_enabled:
        return function(*args, **kwargs)
    options = Options(
        *_CHECKS[determinism_check],
        debug if _state.debug is None else _state.debug,
        early_stop if _state.early_stop is None else _state.early_stop,
        preserve_rng_state,
    )
    node = Checkpoint(function, (args, kwargs), recompute_context, options)
    return node.call(forward_context, args, kwargs)


def checkpoint_sequential(
    functions: Any,
    segments: int,
    input: Any,
    use_reentrant: bool | None = None,
    *,
    preserve_rng_state: bool = True,
) -> Any:
    """Return the result of `functions`, called in order from `input`; all segments but the last are
    checkpoints.

    Args:
        functions: a Sequential, or modules and functions of one argument.
        segments: number of parts of equal length; the last one takes the remainder, too.
        input: the argument of the first function.
        use_reentrant: as for `checkpoint`.
        preserve_rng_state: as for `checkpoint`.

    Raises:
        ValueError: unless `segments` is from 1 to the number of functions.
    """
    _check_kind(use_reentrant)
    calls = list(functions)
    if not 1 <= segments <= len(calls):
        raise ValueError(
            f"checkpoint_sequential: segments must be from 1 to the number of functions, "
            f"{len(calls)}, got {segments}"
        )
    length = len(calls) // segments
    for begin in range(0, length * (segments - 1), length):
        part = _in_sequence(calls[begin : begin + length])
        input = checkpoint(
            part,
            input,
            use_reentrant=bool(use_reentrant),
            preserve_rng_state=preserve_rng_state,
        )
    return _in_sequence(calls[length * (segments - 1) :])(input)


def _in_sequence(functions: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    return lambda input: reduce(lambda value, function: function(value), functions, input)


def _check_kind(use_reentrant: bool | None) -> None:
    if use_reentrant is None:
        warnings.warn(
            "the use_reentrant parameter should be passed explicitly: the default is False, but "
            "PyTorch's is True; False works with grad(), inputs=, keyword arguments and "
            "nested structures, too",
            stacklevel=3,
        )
