"""What the transforms share: inputs to differentiate by, and what outer code may differentiate."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from offgrad.autograd import forward_mode, grad_mode
from offgrad.autograd.node import (
    AccumulateGrad,
    Grads,
    Node,
    connect,
    gradient_edge,
    tensor_from_edge,
)
from offgrad.autograd.override_state import state
from offgrad.autograd.tensor_base import TensorBase, alias
from offgrad.func import _trees
from offgrad.func._batching.batched import batch_all, batched, levels_of, unbatched
from offgrad.ops._core.factories import check_requires_grad

_numbers = itertools.count()


class Input(Node):
    """The node of an input of a transform; gradients flow on to what outer code gave.

    Args:
        tensor: what it gave.
        number: of the transform; inner ones have higher numbers.
    """

    runs_user_code = False

    def __init__(self, tensor: Any, number: int) -> None:
        super().__init__()
        self.number = number
        edge = gradient_edge(tensor)
        if edge[0] is not None:
            self.next_functions, self.needs_input_grad = (edge,), (True,)

    def run(self, grads: Grads) -> Grads:
        """Return the gradient."""
        return grads[: len(self.next_functions)]


class Tracked:
    """Arguments of a function as new tensors that require grad, over the same memory.

    Within `vmap` each sample has its own, so that it has its own gradient.

    Args:
        tree: the arguments to differentiate by.
        caller: the transform's name, for messages.

    Attributes:
        tree: the new tensors, in the form of the arguments; the function may change them in place.
        tensors: others like them, to differentiate by.
    """

    def __init__(self, tree: Any, caller: str) -> None:
        modes, levels = grad_mode.state, forward_mode.forward_mode.levels
        self._is_recorded = modes.grad_enabled or bool(levels)
        self._is_for_tangents = bool(levels) and not modes.grad_mode
        self._number = next(_numbers)
        self.tensors: list[Any] = []
        given = []
        for each in _trees.leaves(tree):
            if not isinstance(each, TensorBase):
                raise ValueError(
                    f"{caller}: Thing passed to transform API must be Tensor, got {type(each)}"
                )
            own, tensor = run(self._track, [each], {})
            self.tensors.append(own)
            given.append(tensor)
        self.tree = _trees.rebuilt(tree, given)

    def _track(self, tensor: Any) -> tuple[Any, Any]:
        """Return two tensors of the node that an argument gets."""
        tensor = batched(tensor, state.levels)
        plain, levels = unbatched(tensor), levels_of(tensor)
        check_requires_grad(plain)
        if plain.is_inference():
            plain = plain.clone()
        node, given = Input(plain, self._number), alias(plain)
        connect(given, node)
        return batch_all(tensor_from_edge(plain, (node, 0)), levels), batch_all(given, levels)

    def has_outer_history(self, tensors: Sequence[Any]) -> bool:
        """Return whether outer code may differentiate results computed from `tensors`."""
        if not self._is_recorded:
            return False
        recorded = [each for each in tensors if each.requires_grad]
        if any(each.is_leaf for each in recorded):
            return True
        duals = {node for level in forward_mode.forward_mode.levels for node in level.duals}
        pending = [each.grad_fn for each in recorded]
        seen: set[Node] = set()
        while pending:
            node = pending.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if isinstance(node, Input):
                if node.number < self._number:
                    return True
            elif isinstance(node, AccumulateGrad) or node in duals:
                return True
            pending += [next_node for next_node, _ in node.next_functions]
        return False

    def released(self, tree: Any) -> Any:
        """Return results for outer code: without a history that is this transform's alone, and
        under `no_grad` with one for tangents alone.
        """

        def release(value: Any) -> Any:
            if not isinstance(value, TensorBase) or not value.requires_grad:  # type: ignore[attr-defined]
                return value
            if not self.has_outer_history([value]):
                return value.detach()  # type: ignore[attr-defined]
            if self._is_for_tangents:
                return batch_all(forward_mode.for_tangents(unbatched(value)), levels_of(value))
            return value

        return _trees.mapped(release, tree)


def split_auxiliary(result: Any, has_aux: bool, caller: str) -> tuple[Any, Any]:
    """Return a function's output and, with `has_aux`, what else it returned."""
    if not has_aux:
        return result, None
    if not isinstance(result, tuple) or len(result) != 2:
        raise RuntimeError(
            f"{caller}: output of function f should be a tuple: (output, aux) if has_aux is True"
        )
    return result


def check_tensors(tree: Any, caller: str) -> list[Any]:
    """Return the leaves of a function's output, after a check that they are tensors."""
    found = _trees.leaves(tree)
    for each in found:
        if not isinstance(each, TensorBase):
            raise RuntimeError(
                f"{caller}: expected f(*args) to return only tensors, got unsupported type "
                f"{type(each)}"
            )
    return found


def chosen_arguments(args: Sequence[Any], argnums: Any, caller: str) -> Any:
    """Return the argument of a number, or a tuple of those of several."""
    numbers = (argnums,) if isinstance(argnums, int) else argnums
    if not isinstance(numbers, tuple) or not all(isinstance(each, int) for each in numbers):
        raise RuntimeError(f"{caller}: argnums must be int or Tuple[int, ...], got {argnums!r}")
    for each in numbers:
        if not -len(args) <= each < len(args):
            raise RuntimeError(
                f"{caller}: Got argnum={each}, but only {len(args)} positional inputs"
            )
    return args[argnums] if isinstance(argnums, int) else tuple(args[each] for each in numbers)


def with_arguments(args: Sequence[Any], argnums: Any, new: Any) -> list[Any]:
    """Return `args` with those of `chosen_arguments` replaced by `new`."""
    replaced = list(args)
    if isinstance(argnums, int):
        replaced[argnums] = new
    else:
        for number, each in zip(argnums, new, strict=True):
            replaced[number] = each
    return replaced


def outside_inference(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` called under `no_grad` instead of in `inference_mode`: there, nothing can
    be differentiated.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        modes = grad_mode.state
        if not modes.inference:
            return function(*args, **kwargs)
        previous = modes.set(False, False)
        try:
            return function(*args, **kwargs)
        finally:
            modes.set(*previous)

    return wrapper


def run(func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call `func` in grad mode."""
    with grad_mode.enable_grad():
        return func(*args, **kwargs)
