"""``torch.cond`` and ``torch.while_loop``: branches and loops on values, run as Python does."""

from collections.abc import Callable
from typing import Any

from offgrad.autograd.tensor_base import TensorBase, describe


def _truth(value: Any, name: str) -> bool:
    if isinstance(value, TensorBase):
        if value._array.size != 1:
            raise RuntimeError(
                f"{name}: the condition must be a bool or a tensor of one element, got a "
                f"{describe(value)}"
            )
        return bool(value._array.item())
    if not isinstance(value, (bool, int, float)):
        raise RuntimeError(
            f"{name}: the condition must be a bool or a tensor of one element, got {value!r}"
        )
    return bool(value)


def _check_callables(name: str, *functions: Any) -> None:
    for each in functions:
        if not callable(each):
            raise RuntimeError(f"{name} takes functions, got {type(each).__name__}")


def cond(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any = ()
) -> Any:
    """Return ``true_fn(*operands)`` if `pred` is true, else ``false_fn(*operands)``.

    Only the branch that is taken runs, and gradients flow through it.

    Raises:
        RuntimeError: if `pred` is neither a number nor a tensor of one element, a branch no
            function, or `operands` neither tuple nor list.
    """
    _check_callables("cond", true_fn, false_fn)
    if not isinstance(operands, (tuple, list)):
        raise RuntimeError(
            f"cond: operands must be a tuple or a list of arguments, got {type(operands).__name__}"
        )
    return (true_fn if _truth(pred, "cond") else false_fn)(*operands)


def while_loop(
    cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried_inputs: Any
) -> tuple[Any, ...]:
    """Return what ``carried = body_fn(*carried)`` makes while ``cond_fn(*carried)`` is true.

    Raises:
        RuntimeError: if an argument is no function, `carried_inputs` neither tuple nor list, or a
            result of `body_fn` does not have the number, shapes and dtypes of its arguments.
    """
    _check_callables("while_loop", cond_fn, body_fn)
    if not isinstance(carried_inputs, (tuple, list)):
        raise RuntimeError(
            "while_loop: carried_inputs must be a tuple or a list, got "
            f"{type(carried_inputs).__name__}"
        )
    carried = tuple(carried_inputs)
    while _truth(cond_fn(*carried), "while_loop"):
        made = body_fn(*carried)
        after = tuple(made) if isinstance(made, (tuple, list)) else (made,)
        if [*map(_kind, after)] != [*map(_kind, carried)]:
            raise RuntimeError(
                "while_loop: body_fn must return as many values as it takes, of the same shapes "
                f"and dtypes, got {[*map(_kind, after)]} for {[*map(_kind, carried)]}"
            )
        carried = after
    return carried


def _kind(value: Any) -> str:
    return describe(value) if isinstance(value, TensorBase) else type(value).__name__
