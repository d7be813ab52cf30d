"""The engine: runs nodes from roots to leaves, each once, when its gradients are complete."""

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad.autograd import anomaly, grad_mode
from offgrad.autograd.node import (
    AccumulateGrad,
    Edge,
    GradientEdge,
    Grads,
    Node,
)
from offgrad.autograd.saved_tensor import SavedTensor, Unpacker
from offgrad.autograd.tensor_base import TensorBase, describe

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

observers: list[Callable[[bool], None]] = []
"""Called with True when a backward pass begins and with False when it has ended."""


Order = list[tuple[Node, bool]]


class _Pass:
    """One run of the graph, for hooks that ask.

    Attributes:
        nodes: those whose gradients are computed.
        per_pass: what hooks keep as long as the run lasts.
    """

    def __init__(self, nodes: set[Node]) -> None:
        self.nodes = nodes
        self.per_pass: dict[object, Any] = {}


class _State(threading.local):
    """The runs of this thread, the innermost last: a hook or a Function may run another."""

    passes: tuple[_Pass, ...] = ()


state = _State()


def as_tuple(tensors: Any) -> "tuple[Tensor, ...]":
    """Return one tensor, or several, as a tuple."""
    if not isinstance(tensors, TensorBase | Iterable):
        raise TypeError(
            f"a tensor or a sequence of tensors is needed, got {type(tensors).__name__}"
        )
    if isinstance(tensors, TensorBase | GradientEdge):
        return (tensors,)  # type: ignore[return-value]
    return tuple(tensors)


def run(
    roots: Sequence[Edge],
    grads: "Sequence[Tensor]",
    retain_graph: bool,
    create_graph: bool,
    targets: Sequence[Edge] | None,
    accumulate: bool = False,
) -> "list[Tensor | None]":
    """Run the graph; return the gradient at each of `targets`, which `accumulate` executes, too."""
    order = _order([node for node, _ in roots if node is not None], targets, accumulate)
    captured: dict[Edge, Tensor | None] = dict.fromkeys(targets or ())
    running = _Pass({node for node, _ in order})
    pending = _Pending(running.nodes, create_graph)
    for (node, output_nr), grad in zip(roots, grads, strict=True):
        if node is not None:
            pending.add(node, output_nr, grad)
    with ExitStack() as ends:
        for observer in observers:
            observer(True)
            ends.callback(observer, False)
        ends.enter_context(grad_mode.set_grad_enabled(create_graph))
        ends.callback(setattr, state, "passes", state.passes)
        state.passes = (*state.passes, running)
        _announce_order(order, ends)
        for node, execute in order:
            inputs = pending.pop(node)
            if inputs is None and not (execute and node.runs_without_grad):
                continue
            outputs = _step(node, inputs, captured, execute)
            # Nothing here may hold a gradient while the next node computes.
            del inputs
            if not execute:
                continue
            if not retain_graph:
                node.release()
            if anomaly.state.enabled:
                anomaly.check(node, outputs)
            for index, (target, output_nr) in enumerate(node.next_functions):
                output = outputs[index]
                if target is not None and output is not None:
                    pending.add(target, output_nr, output, node, index)
            output, outputs = None, ()
    return [captured[edge] for edge in targets or ()]


def _order(roots: Sequence[Node], targets: Sequence[Edge] | None, accumulate: bool) -> Order:
    """Return the nodes in the order of their run, each with whether it is executed.

    Numbers count up as nodes are recorded, so descending order meets a node after all that lead to
    it. Leaves come right after the last node that contributes to them. With `targets`, only what
    lies on a path to one of them is executed, and with `accumulate` they themselves.
    """
    seen = set(roots)
    stack = list(seen)
    nodes: list[Node] = []
    leaves: list[Node] = []
    while stack:
        node = stack.pop()
        (leaves if isinstance(node, AccumulateGrad) else nodes).append(node)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    nodes.sort(key=lambda node: node.sequence_nr, reverse=True)
    last: dict[Node, Node | None] = dict.fromkeys(leaves)
    for node in nodes:
        for following, _ in node.next_functions:
            if following in last:
                last[following] = node
    due: dict[Node | None, list[Node]] = {}
    for leaf, node_before in last.items():
        due.setdefault(node_before, []).append(leaf)

    wanted = {node for node, _ in targets or () if node in seen}
    if targets is None:
        executed = seen
    else:
        executed = set(wanted) if accumulate else set()
        for node in reversed(nodes):
            if any(
                following in executed or following in wanted for following, _ in node.next_functions
            ):
                executed.add(node)
    order: Order = []
    for node_before in (None, *nodes):
        group = [] if node_before is None else [node_before]
        group += due.get(node_before, [])
        order += [(node, node in executed) for node in group if node in executed or node in wanted]
    return order


def _announce_order(order: Order, ends: ExitStack) -> None:
    """Tell the hooks of saved tensors what will be unpacked, in the order it will.

    What is to be called when the pass is over is added to `ends`.
    """
    plans: dict[int, tuple[Unpacker, list[Any]]] = {}
    for node, execute in order:
        if execute:
            for saved in node.saves():
                _add_to_plans(saved, plans)
    for unpacker, sequence in plans.values():
        ends.callback(unpacker.plan(sequence))


def _add_to_plans(saved: SavedTensor, plans: dict[int, tuple[Unpacker, list[Any]]]) -> None:
    """Add `saved`, if it is packed, after what is unpacked for it."""
    if saved.packed is None:
        return
    unpacker, packed = saved.packed
    if id(unpacker) not in plans:
        for source in unpacker.sources():
            _add_to_plans(source, plans)
        plans[id(unpacker)] = (unpacker, [])
    plans[id(unpacker)][1].append(packed)


def _step(
    node: Node,
    inputs: "list[Tensor | None] | None",
    captured: "dict[Edge, Tensor | None]",
    execute: bool,
) -> Grads:
    """Run the hooks of `node` and, if it is to be executed, the node itself."""
    grads: list[Tensor | None] = inputs or [None] * len(node.output_metadata)
    for output_nr, grad in enumerate(grads):
        if grad is None:
            continue
        for hook in _values(node.hooks_of_output(output_nr)):
            result = hook(grad)
            if result is not None:
                _check_hook_result(node, hook, grad, result)
                grad = grads[output_nr] = result
    for output_nr, tensor in node.retaining_tensors():
        kept = grads[output_nr]
        if kept is not None:
            with node.lock:
                # A copy: others may hold the gradient, too.
                tensor.grad = kept.clone() if tensor.grad is None else tensor.grad + kept
    for output_nr, grad in enumerate(grads):
        if (node, output_nr) in captured:
            captured[node, output_nr] = grad
    if not execute:
        return ()
    for hook in _values(node._pre_hooks):
        result = hook(tuple(grads))
        if result is not None:
            grads = list(_checked(result, grads, node, hook))
    run_node = anomaly.run if anomaly.state.enabled else _run
    if node._post_hooks:
        outputs = run_node(node, tuple(grads))
        for hook in _values(node._post_hooks):
            result = hook(outputs, tuple(grads))
            if result is not None:
                outputs = _checked(result, outputs, node, hook)
        return outputs
    final = tuple(grads)
    # The node holds the only references, so it may free a gradient when it is done with it.
    grads.clear()
    return run_node(node, final)


def _run(node: Node, grads: Grads) -> Grads:
    return node.run(grads)


def _checked(result: Any, replaced: "Sequence[Tensor | None]", node: Node, hook: Any) -> Grads:
    """Return the gradients that a node's hook put in place of others."""
    if not isinstance(result, tuple):
        raise TypeError(
            f"a hook of a node must return None or a tuple of gradients, but {_who(hook, node)} "
            f"returned a {type(result).__name__}"
        )
    given: Grads = result
    if len(given) != len(replaced):
        raise RuntimeError(
            f"a hook of a node must return as many gradients as it got, {len(replaced)}, but "
            f"{_who(hook, node)} returned {len(given)}"
        )
    for before, after in zip(replaced, given, strict=True):
        if before is not None and after is not None:
            _check_hook_result(node, hook, before, after)
    return given


def _values(hooks: dict[int, Any] | None) -> Iterable[Any]:
    return list(hooks.values()) if hooks else ()


def _check_hook_result(node: Node, hook: Any, grad: "Tensor", result: Any) -> None:
    if not isinstance(result, TensorBase):
        raise TypeError(
            f"a hook must return None or tensors, but {_who(hook, node)} returned "
            f"{type(result).__name__}"
        )
    if result._array.shape != grad._array.shape or result._array.dtype != grad._array.dtype:
        raise RuntimeError(
            f"a hook must keep shape and dtype of a gradient, but {_who(hook, node)} "
            f"returned a {describe(result)} for a {describe(grad)}"
        )


def _who(hook: Any, node: Node) -> str:
    return f"{getattr(hook, '__qualname__', type(hook).__name__)} at {node.name()}"


def _expands(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False


class _Pending:
    """Gradients on their way: for each node, the sum so far for each of its outputs."""

    def __init__(self, nodes: set[Node], create_graph: bool) -> None:
        self._nodes = nodes
        self._grads: dict[Node, list[Tensor | None]] = {}
        # Sums made here belong to nobody else and may be added to in place.
        self._own: set[Edge] = set()
        self._recorded = create_graph

    def pop(self, node: Node) -> "list[Tensor | None] | None":
        return self._grads.pop(node, None)

    def add(
        self, node: Node, output_nr: int, grad: "Tensor", source: Node | None = None, index: int = 0
    ) -> None:
        if node not in self._nodes:
            return
        shape, dtype = node.output_metadata[output_nr]
        if grad._array.shape != shape and _expands(shape, grad._array.shape):
            grad = grad.sum_to_size(shape)
        if grad._array.shape != shape:
            maker = source.name() if source else "the first gradient"
            raise RuntimeError(
                f"a gradient must have the shape of what it belongs to: {maker} returned at index "
                f"{index} a {describe(grad)}, expected shape {list(shape)}"
            )
        if grad._array.dtype != dtype:
            grad = grad.to(dtype)
        grads = self._grads.get(node)
        if grads is None:
            grads = self._grads[node] = [None] * len(node.output_metadata)
        sum_so_far = grads[output_nr]
        if sum_so_far is None:
            grads[output_nr] = grad
        elif (node, output_nr) in self._own:
            with np.errstate(all="ignore"):
                np.add(sum_so_far._array, grad._array, out=sum_so_far._array)
        else:
            grads[output_nr] = sum_so_far + grad
            if not self._recorded:
                self._own.add((node, output_nr))
