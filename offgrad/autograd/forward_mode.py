"""The state of forward differentiation, and what `no_grad` keeps for it.

Tangents come from backward passes, so whatever depends on a dual tensor keeps its history, also
where `no_grad` ends that of others. Such a history is for tangents only: gradients do not pass.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import ref

from offgrad.autograd import grad_mode
from offgrad.autograd.mutation import rewrite_history
from offgrad.autograd.node import Edge, Grads, Node, connect, gradient_edge
from offgrad.autograd.op import Array, Op, add_op_observer, remove_op_observer
from offgrad.autograd.tensor_base import TensorBase
from offgrad.autograd.views import base_of, set_history

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


class Level:
    """The dual tensors of a block.

    Args:
        duals: tensors whose nodes the block begins with.
    """

    def __init__(self, duals: "Iterable[Tensor]" = ()) -> None:
        self._reaches: dict[Node | None, bool] = {None: False}
        self.duals: list[Node] = []
        self._changed: list[tuple[ref[Tensor], Node | None, Edge]] = []
        for each in duals:
            self.add(gradient_edge(each)[0])

    def note_history(self, tensor: "Tensor", before: Edge) -> None:
        """Note a tensor that `no_grad` gave a history for tangents, and the one it had before."""
        self._changed.append((ref(tensor), tensor._grad_fn, before))

    def end(self) -> None:
        """Give tensors the histories from before again, if they have no other yet."""
        for reference, given, before in reversed(self._changed):
            tensor = reference()
            if tensor is not None and tensor._grad_fn is given:
                set_history(tensor, *before)
                tensor._generation += tensor._base is None

    def add(self, node: Node | None) -> None:
        """Count a node as that of a dual tensor."""
        if node is not None:
            self._reaches[node] = True
            self.duals.append(node)

    def has(self, node: Node | None) -> bool:
        """Return whether a path leads from `node` to a dual tensor's."""
        known = self._reaches
        pending = [node]
        while pending:
            last = pending[-1]
            if last in known:
                pending.pop()
                continue
            before = [each for each, _ in last.next_functions]  # type: ignore[union-attr]
            unknown = [each for each in before if each not in known]
            pending += unknown
            if not unknown:
                known[last] = any(known[each] for each in before)
        return known[node]


class _ForwardMode(threading.local):
    """What forward differentiation does in this thread.

    Attributes:
        levels: the blocks in which dual tensors exist, the innermost last.
        is_transposing: whether a backward pass only prepares the one that computes tangents.
        is_in_jvp: whether a Function's `jvp` runs.
    """

    levels: tuple[Level, ...] = ()
    is_transposing = False
    is_in_jvp = False


forward_mode = _ForwardMode()


@contextmanager
def forward_mode_with(flag: str) -> Iterator[None]:
    """Set an attribute of `forward_mode` in the block."""
    outer = getattr(forward_mode, flag)
    setattr(forward_mode, flag, True)
    try:
        yield
    finally:
        setattr(forward_mode, flag, outer)


def enter(level: Level) -> None:
    """Begin a level in this thread."""
    add_op_observer(_apply)
    forward_mode.levels = (*forward_mode.levels, level)


def leave(level: Level) -> None:
    """End a level of this thread."""
    forward_mode.levels = tuple([each for each in forward_mode.levels if each is not level])
    remove_op_observer(_apply)
    level.end()


@contextmanager
def outside(level: Level) -> Iterator[None]:
    """A block that a level does not see: what it computes has no tangents there."""
    outer = forward_mode.levels
    forward_mode.levels = tuple([each for each in outer if each is not level])
    try:
        yield
    finally:
        forward_mode.levels = outer


@contextmanager
def level_of(duals: "Iterable[Tensor]") -> Iterator[None]:
    """A level with these dual tensors."""
    level = Level(duals)
    try:
        enter(level)
        yield
    finally:
        if level in forward_mode.levels:  # else Ctrl-C came before
            leave(level)


def has_tangent(tensor: Any) -> bool:
    """Return whether a tensor depends on a dual tensor of a level of this thread."""
    if not (forward_mode.levels and isinstance(tensor, TensorBase)):
        return False
    node = gradient_edge(tensor)[0]  # type: ignore[arg-type]
    return any(level.has(node) for level in forward_mode.levels)


def keeps_tangents(inputs: Iterable[Any]) -> bool:
    """Return whether an operation is recorded for tangents alone: `no_grad` is on, and an input has
    a tangent.
    """
    state = grad_mode.state
    return (
        bool(forward_mode.levels)
        and not (state.grad_mode or state.inference)
        and any(map(has_tangent, inputs))
    )


def changes_tangent(target: "Tensor", value: Any) -> bool:
    """Return whether `no_grad` keeps the history of an in-place change, for tangents.

    Leaves that require grad stay leaves.
    """
    base = base_of(target)
    return (base._grad_fn is not None or not base._requires_grad) and keeps_tangents(
        (target, value)
    )


def rewrite_for_tangents(target: "Tensor", edge: Edge) -> None:
    """Make `edge` the history of a changed tensor, for tangents; that for gradients stays."""
    base = base_of(target)
    before = gradient_edge(base)
    rewrite_history(target, edge)
    set_history(base, _TwoHistories(gradient_edge(base), before), 0)
    base._generation += 1
    forward_mode.levels[0].note_history(base, before)


class _TwoHistories(Node):
    """The node of a tensor that `no_grad` changed in place."""

    def __init__(self, changed: Edge, before: Edge) -> None:
        passed = _TangentOnly()  # first, since sequence numbers increase along a graph
        super().__init__()
        node, output_nr = changed
        assert node is not None
        passed.next_functions, passed.needs_input_grad = (changed,), (True,)
        passed.output_metadata = self.output_metadata = (node.output_metadata[output_nr],)
        self.next_functions = (passed, 0), before
        self.needs_input_grad = True, before[0] is not None

    def run(self, grads: Grads) -> Grads:
        """Return the gradient for the one history or the other."""
        return (grads[0], None) if forward_mode.is_transposing else (None, grads[0])


class _TangentOnly(Node):
    """The node before an operation that is recorded for tangents alone."""

    def run(self, grads: Grads) -> Grads:
        """Return the gradient in the pass that tangents come from, else none."""
        if not forward_mode.is_transposing:
            return (None,)
        return tuple([None if each is None else _Transposed.apply(each) for each in grads])


class _Transposed(Op):
    """What the pass that tangents come from passes on: the tangent is a constant from here on."""

    is_view = True
    is_elementwise = True

    def forward(self, x: Array) -> Array:
        return x[...]

    def backward(self, grad: "Tensor") -> Any:
        return for_tangents(grad)


def for_tangents(tensor: Any) -> Any:
    """Return a tensor with the same elements, through which tangents pass and gradients do not.

    Other things are returned as they are.
    """
    if not isinstance(tensor, TensorBase):
        return tensor
    result: Any = tensor.detach()  # type: ignore[attr-defined]
    if has_tangent(tensor):
        _end_gradients(result, tensor)
    return result


def _end_gradients(result: Any, tensor: Any) -> None:
    """Give `result` a history that leads to that of `tensor`, for tangents alone."""
    node = _TangentOnly()
    node.next_functions = (gradient_edge(tensor),)
    node.needs_input_grad = (True,)
    connect(result, node)


def leads_to_gradients(node: Node | None) -> bool:
    """Return whether the history goes on for gradients, not for tangents alone."""
    return not isinstance(node, _TangentOnly)


def _apply(apply: Any, cls: type[Op], inputs: Any, parameters: dict[str, Any]) -> list[Any]:
    results: list[Any]
    if not keeps_tangents(inputs):
        results = apply(cls, inputs, parameters)
    elif cls.is_view:
        results = grad_mode.call(True, apply, cls, inputs, parameters)
        for each in results:
            _end_gradients(each, each)  # after it, since a view belongs to its base
            forward_mode.levels[0].note_history(each, (None, 0))
    else:
        given = tuple(map(for_tangents, inputs))
        results = grad_mode.call(True, apply, cls, given, parameters)
        for each in results:
            if each is not None and each._requires_grad:
                forward_mode.levels[0].note_history(each, (None, 0))
    return results
