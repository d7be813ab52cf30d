"""Checkpoints: what a function saves for backward is not kept but computed again in backward.

The function's inputs are saved, as an operation saves its own; in place of what is saved inside
stands a number. The first of these that a backward pass unpacks runs the function again, until all
that the pass will unpack have been saved a second time.
"""

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import reduce
from typing import Any, TypeAlias

from offgrad._missing import missing
from offgrad.autograd import grad_mode
from offgrad.utils.checkpoint.node import Checkpoint, Options
from offgrad.utils.checkpoint.save_log import CheckpointError

__all__ = [
    "CheckpointError",
    "checkpoint",
    "checkpoint_sequential",
    "noop_context_fn",
    "set_checkpoint_debug_enabled",
    "set_checkpoint_early_stop",
]

Contexts: TypeAlias = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]
# What is compared: the facts of a save, and its content.
_CHECKS = {
    "default": (True, True),
    "content": (True, True),
    "metadata": (True, False),
    "none": (False, False),
}


class _State(threading.local):
    """What the context managers below set for a thread; None leaves it to the arguments."""

    early_stop: bool | None = None
    debug: bool | None = None


_state = _State()


@contextmanager
def set_checkpoint_early_stop(enable: bool) -> Iterator[None]:
    """Set `early_stop` of all checkpoints made in the block, wherever their backward runs."""
    before, _state.early_stop = _state.early_stop, enable
    try:
        yield
    finally:
        _state.early_stop = before


@contextmanager
def set_checkpoint_debug_enabled(enabled: bool | None) -> Iterator[None]:
    """Set `debug` of all checkpoints made in the block; None leaves it to each of them."""
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
    """Return ``function(*args, **kwargs)``; run it again in backward instead of keeping what it
    saves.

    What stays is the tensors among the arguments, in lists, tuples and dicts too. Each backward
    pass runs the function again once, when it needs the first tensor saved inside, up to the last
    one it needs, and drops each as soon as it is used. Checkpoints nest; every kind of backward
    works; grad mode is as it was, and offgrad's generators give the same numbers, whatever threads
    draw meanwhile.

    **Other hooks.** The inputs are saved where `checkpoint` is called, by an operation named
    ``Checkpoint``: hooks and ``offload`` around it get them, and nothing of what is inside, and
    they are read ahead. Hooks and ``offload`` entered by the function get what is saved inside
    them, each time it runs; that is not computed again. What is computed again stays in memory,
    whatever surrounds backward: it is wanted at once. For the same reason policies by module do not
    reach into a checkpoint, not even one whose function enters them: they decide on its inputs, by
    the module that calls `checkpoint`. Hooks of modules are called each time.

    Args:
        function: must do the same each time.
        use_reentrant: pass False. PyTorch's other kind, with its limits, is not there.
        context_fn: returns two contexts, one for forward and one for each time after.
        determinism_check: what is compared with forward: ``"content"``, bit for bit, by a hash (the
            default, since a gradient must not be wrong in silence); ``"metadata"``: operation,
            shape and dtype, as PyTorch's default; ``"none"``. Where the inputs themselves come back
            changed, by a lossy codec, contents are not compared.
        debug: have errors list all that was saved, with the lines that did.
        early_stop: False: run the function to its end.
        preserve_rng_state: False: draw new random numbers.

    Raises:
        CheckpointError: in backward, if the function does something else.
        ValueError: for an unknown `determinism_check`.
        NotImplementedError: for ``use_reentrant=True``.
    """
    _check_kind(use_reentrant)
    if determinism_check not in _CHECKS:
        raise ValueError(
            f"determinism_check must be one of {', '.join(_CHECKS)}, got {determinism_check!r}"
        )
    first, again = context_fn()
    if not grad_mode.state.grad_enabled:
        return function(*args, **kwargs)
    options = Options(
        *_CHECKS[determinism_check],
        debug if _state.debug is None else _state.debug,
        early_stop if _state.early_stop is None else _state.early_stop,
        preserve_rng_state,
    )
    return Checkpoint(function, (args, kwargs), again, options).call(first, args, kwargs)


def checkpoint_sequential(
    functions: Any,
    segments: int,
    input: Any,
    use_reentrant: bool | None = None,
    *,
    preserve_rng_state: bool = True,
) -> Any:
    """Return what functions, called one after the other, make of `input`; all segments but the last
    are checkpoints.

    Args:
        functions: a Sequential, or modules and functions of one argument.
        segments: into how many parts of equal length to divide them; the last takes what remains.
        input: what the first one gets.
        use_reentrant: as for `checkpoint`.
        preserve_rng_state: as for `checkpoint`.

    Raises:
        ValueError: unless `segments` is from 1 to the number of functions.
    """
    _check_kind(use_reentrant)
    steps = list(functions)
    if not 1 <= segments <= len(steps):
        raise ValueError(
            f"checkpoint_sequential: segments must be from 1 to the number of functions, "
            f"{len(steps)}, got {segments}"
        )
    length = len(steps) // segments
    for begin in range(0, length * (segments - 1), length):
        part = _in_sequence(steps[begin : begin + length])
        input = checkpoint(part, input, use_reentrant=False, preserve_rng_state=preserve_rng_state)
    return _in_sequence(steps[length * (segments - 1) :])(input)


def _in_sequence(functions: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    return lambda input: reduce(lambda value, function: function(value), functions, input)


def _check_kind(use_reentrant: bool | None) -> None:
    if use_reentrant is None:
        warnings.warn(
            "pass use_reentrant=False to checkpoint, the only kind offgrad has: without it PyTorch "
            "takes the other one",
            stacklevel=3,
        )
    elif use_reentrant:
        raise NotImplementedError(
            "checkpoint: use_reentrant=True is not supported; use_reentrant=False does what it "
            "does, and works with grad(), inputs=, keyword arguments and nested structures"
        )


__getattr__ = missing("offgrad.utils.checkpoint")
