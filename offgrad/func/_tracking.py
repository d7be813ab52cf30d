"""What the transforms share: inputs to differentiate by, and what outer code may differentiate."""

from collections.abc import Callable, Sequence
from typing import Any

from offgrad._tensor.tensor import Tensor
from offgrad.autograd import grad_mode
from offgrad.autograd.node import AccumulateGrad
from offgrad.autograd.tensor_base import TensorBase
from offgrad.func import _trees


class Tracked:
    """Arguments of a function as new tensors that require grad.

    Args:
        tree: the arguments to differentiate by.
        caller: the transform's name, for messages.

    Attributes:
        tree: the new tensors, in the form of the arguments.
        tensors: the new tensors.
        is_outer_recorded: whether grad mode was on.
    """

    def __init__(self, tree: Any, caller: str) -> None:
        self.is_outer_recorded = grad_mode.state.grad_enabled
        self.tensors: list[Tensor] = []
        self._own: set[int] = set()
        for each in _trees.leaves(tree):
            if not isinstance(each, TensorBase):
                raise ValueError(
                    f"{caller}: Thing passed to transform API must be Tensor, got {type(each)}"
                )
            self.tensors.append(self._track(each))
        self.tree = _trees.rebuilt(tree, self.tensors)

    @grad_mode.enable_grad()
    def _track(self, tensor: Any) -> Any:
        if tensor.requires_grad:
            return tensor.view(tensor.shape)
        leaf = tensor.detach().requires_grad_()
        self._own.add(id(leaf))
        return leaf

    def has_outer_history(self, tensors: Sequence[Any]) -> bool:
        """Return whether outer code may differentiate results computed from `tensors`."""
        if not self.is_outer_recorded:
            return False
        pending = [each.grad_fn for each in tensors if each.requires_grad]
        if any(each.requires_grad and each.is_leaf for each in tensors if not self._owns(each)):
            return True
        seen = set()
        while pending:
            node = pending.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if isinstance(node, AccumulateGrad):
                if not self._owns(node.variable):
                    return True
                continue
            pending += [next_node for next_node, _ in node.next_functions]
        return False

    def _owns(self, tensor: Any) -> bool:
        return id(tensor) in self._own

    def released(self, tree: Any) -> Any:
        """Return results for outer code: without a history that is this transform's alone."""

        def release(value: Any) -> Any:
            if not isinstance(value, TensorBase) or not value.requires_grad:  # type: ignore[attr-defined]
                return value
            return value if self.has_outer_history([value]) else value.detach()  # type: ignore[attr-defined]

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


def run(func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call `func` in grad mode."""
    with grad_mode.enable_grad():
        return func(*args, **kwargs)
