"""The engine: runs the graph's nodes from roots to leaves, each once, with complete gradients."""

import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from offgrad_storage.interrupts import interruptible, masked

from offgrad.autograd import anomaly, grad_mode, saved_tensor
from offgrad.autograd.float_errors import ignore_float_errors, restore_float_errors
from offgrad.autograd.forward_mode import forward_mode
from offgrad.autograd.node import (
    AccumulateGrad,
    Edge,
    Gradient,
    GradientEdge,
    Gradients,
    Grads,
    Node,
    as_tensors,
    end_pass,
)
from offgrad.autograd.override_state import state as override_state
from offgrad.autograd.save_hooks import Unpacker
from offgrad.autograd.saved_tensor import SavedTensor
from offgrad.autograd.tensor_base import TensorBase, describe, metadata
from offgrad.memory import Storage, announce_uses
from offgrad.memory.meta import MetaArray

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

Order = list[tuple[Node, bool]]


class PassObserver(Protocol):
    """Is told of each backward pass, in the thread that runs it."""

    def begin_pass(self, order: Order) -> Callable[[Iterable[Any]], Generator[Any]] | None:
        """A pass begins.

        Args:
            order: its nodes in the order in which they will run, each with whether it is executed.

        Returns:
            A function that returns a generator of what it gets, and so learns when each node
            begins, and by its end when the last has ended or failed; or None.
        """

    def end_pass(self) -> None:
        """The pass has ended, however it did."""


observers: list[PassObserver] = []


class _Pass:
    """One backward pass, as hooks see it.

    Attributes:
        nodes: the nodes whose gradients are computed.
        per_pass: data of hooks that lives as long as the pass.
        has_targets: whether only the gradients of some inputs are computed.
    """

    def __init__(self, nodes: set[Node], has_targets: bool) -> None:
        self.nodes = nodes
        self.has_targets = has_targets
        self.per_pass: dict[object, Any] = {}


class _State(threading.local):
    """The passes of this thread, innermost last: hooks and Functions may run nested ones."""

    passes: tuple[_Pass, ...] = ()


state = _State()


def as_tuple(tensors: Any) -> "tuple[Tensor, ...]":
    """Return one tensor or several as a tuple."""
    if not isinstance(tensors, (TensorBase, Iterable)):
        raise TypeError(f"expected a tensor, or a sequence of them, got {type(tensors).__name__}")
    if isinstance(tensors, (TensorBase, GradientEdge)):
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
    """Run the graph; return the gradient at each of `targets`.

    With `accumulate`, the target nodes themselves are executed, too. Whatever the hooks, Functions
    and unpack hooks of one node set for this thread, grad mode and saved-tensor hooks included,
    ends with that node.
    """
    order, nodes = _order([node for node, _ in roots if node is not None], targets, accumulate)
    captured: dict[Edge, Tensor | None] = dict.fromkeys(targets or ())
    backward_pass = _Pass(nodes, targets is not None)
    buffers = _InputBuffers(backward_pass.nodes, create_graph)
    for (node, output_nr), grad in zip(roots, grads, strict=True):
        if node is not None:
            buffers.add(node, output_nr, grad)
    # Masked: Ctrl-C must not keep a pass from ending that has begun.
    with masked, ExitStack() as cleanup:
        steps: Any = order
        for observer in observers:
            watch = observer.begin_pass(order)
            cleanup.callback(observer.end_pass)
            if watch is not None:
                steps = watch(steps)
                cleanup.callback(steps.close)
        cleanup.callback(_end, _Settings(), override_state.enabled, state.passes)
        override_state.enabled = override_state.is_batched_pass
        state.passes = (*state.passes, backward_pass)
        any_packed = _announce_order(order, cleanup)
        grad_mode.state.set(create_graph, grad_mode.state.inference)
        settings_of_nodes = _Settings()
        captured_nodes = {node for node, _ in captured}
        outputs: Gradients = ()
        pop, add = buffers.grads.pop, buffers.add
        with interruptible:
            for node, execute in steps:
                inputs = pop(node, None)
                if inputs is None and not (execute and node.runs_without_grad):
                    continue
                if (
                    create_graph
                    or anomaly.state.enabled
                    or node.has_hooks
                    or (captured_nodes and node in captured_nodes)
                ):
                    outputs = _run_with_hooks(node, inputs, captured, execute)
                    settings_of_nodes.restore()
                else:
                    outputs = node.run_unrecorded(inputs or [None] * len(node.output_metadata))
                    if any_packed or node.runs_user_code:
                        settings_of_nodes.restore()
                # No local may hold a gradient while the next node computes.
                del inputs
                if not execute:
                    continue
                if not retain_graph:
                    node.release()
                if anomaly.state.enabled:
                    anomaly.check(node, as_tensors(outputs))
                for index, (target, output_nr) in enumerate(node.next_functions):
                    output = outputs[index]
                    if target is not None and output is not None:
                        add(target, output_nr, output, node, index)
                output, outputs = None, ()
    return [captured[edge] for edge in targets or ()]


def release(roots: Sequence[Node], targets: Sequence[Edge]) -> None:
    """Free what a pass to `targets` needed, as one that does not retain the graph does."""
    for node, execute in _order(roots, targets, False)[0]:
        if execute:
            node.release()


def _end(settings: "_Settings", overrides_enabled: bool, passes: tuple[_Pass, ...]) -> None:
    """Restore what a pass has set for this thread."""
    state.passes = passes
    try:
        end_pass()
    finally:
        settings.restore()
        override_state.enabled = overrides_enabled


class _Settings:
    """Grad mode, inference mode and saved-tensor hooks of this thread, to restore them."""

    __slots__ = ("_disabled", "_hooks", "_modes")

    def __init__(self) -> None:
        modes, saving = grad_mode.state, saved_tensor.state
        self._modes = modes.grad_mode, modes.inference, modes.grad_enabled
        self._hooks, self._disabled = saving.hooks, saving.disabled

    def restore(self) -> None:
        modes, saving = grad_mode.state, saved_tensor.state
        modes.grad_mode, modes.inference, modes.grad_enabled = self._modes
        saving.hooks, saving.disabled = self._hooks, self._disabled


def _order(
    roots: Sequence[Node], targets: Sequence[Edge] | None, accumulate: bool
) -> tuple[Order, set[Node]]:
    """Return the nodes in execution order, each with whether it is executed, and as a set.

    Sequence numbers increase as nodes are recorded, so in descending order each node comes after
    all nodes that lead to it. A leaf's node comes right after the last node that contributes to it.
    With `targets`, only nodes on a path to one of them are executed; with `accumulate`, the targets
    too.
    """
    seen = set(roots)
    stack = list(seen)
    nodes: list[Node] = []
    leaves: list[Node] = []
    while stack:
        node = stack.pop()
        (leaves if isinstance(node, AccumulateGrad) else nodes).append(node)
        for next_node, _ in node.next_functions:
            if next_node is not None and next_node not in seen:
                seen.add(next_node)
                stack.append(next_node)
    nodes.sort(key=lambda node: node.sequence_nr, reverse=True)
    last_contributor: dict[Node, Node | None] = dict.fromkeys(leaves)
    for node in nodes:
        for next_node, _ in node.next_functions:
            if next_node in last_contributor:
                last_contributor[next_node] = node
    leaves_after: dict[Node | None, list[Node]] = {}
    for leaf, last_node in last_contributor.items():
        leaves_after.setdefault(last_node, []).append(leaf)

    captured_nodes = {node for node, _ in targets or () if node in seen}
    if targets is None:
        executed = seen
    else:
        executed = set(captured_nodes) if accumulate else set()
        for node in reversed(nodes):
            if any(
                next_node in executed or next_node in captured_nodes
                for next_node, _ in node.next_functions
            ):
                executed.add(node)
    order: Order = []
    for last_node in (None, *nodes):
        group = [] if last_node is None else [last_node]
        group += leaves_after.get(last_node, ())
        for node in group:
            if node in executed or node in captured_nodes:
                order.append((node, node in executed))
    return order, executed | captured_nodes if captured_nodes else executed


def _announce_order(order: Order, cleanup: ExitStack) -> bool:
    """Pass to each `Unpacker` the packed tensors of this pass, in the order of their use.

    The same for paged memory that saved tensors hold.

    The functions that the unpackers return are added to `cleanup`.

    Returns:
        Whether there are any.
    """
    plans: dict[int, tuple[Unpacker, list[Any]]] = {}
    paged: list[Storage] = []
    for node, execute in order:
        if execute:
            for saved in node.saves():
                if saved._unpacker is not None:
                    _add_to_plans(saved, plans)
                elif (storage := saved.kept_storage()) is not None and storage.is_paged:
                    paged.append(storage)
    announce_uses(paged)
    for unpacker, sequence in plans.values():
        cleanup.callback(unpacker.plan(sequence))
    return bool(plans)


def _add_to_plans(saved: SavedTensor, plans: dict[int, tuple[Unpacker, list[Any]]]) -> None:
    """Add `saved`, if it is packed, after the tensors that its unpacker unpacks first."""
    if saved.packed is None:
        return
    unpacker, packed = saved.packed
    if id(unpacker) not in plans:
        for source in unpacker.sources():
            _add_to_plans(source, plans)
        plans[id(unpacker)] = (unpacker, [])
    plans[id(unpacker)][1].append(packed)


def _run_with_hooks(
    node: Node,
    inputs: "list[Gradient] | None",
    captured: "dict[Edge, Tensor | None]",
    execute: bool,
) -> Grads:
    """Run the hooks of `node` and, with `execute`, the node itself."""
    grads = list(as_tensors(inputs or [None] * len(node.output_metadata)))
    if inputs is not None:
        inputs.clear()
    has_hooks = not forward_mode.is_transposing  # as in PyTorch, tangents do not pass hooks
    for output_nr, grad in enumerate(grads):
        if grad is None:
            continue
        for hook in _hook_list(node.hooks_of_output(output_nr)) if has_hooks else ():
            result = hook(grad)
            if result is not None:
                _check_hook_result(node, hook, grad, result)
                grad = grads[output_nr] = result
    for output_nr, tensor in node.retaining_tensors() if has_hooks else ():
        kept = grads[output_nr]
        if kept is not None:
            with node.lock:
                # A copy, because other code may hold the gradient, too.
                tensor.grad = kept.clone() if tensor.grad is None else tensor.grad + kept
    for output_nr, grad in enumerate(grads):
        if (node, output_nr) in captured:
            captured[node, output_nr] = grad
    # Besides the list, nothing may hold the gradients while the node computes.
    grad = kept = None
    if not execute:
        return ()
    for hook in _hook_list(node._pre_hooks) if has_hooks else ():
        result = hook(tuple(grads))
        if result is not None:
            grads = list(_checked_replacements(result, grads, node, hook))
    if node._pre_hooks and not node.runs_without_grad and all(each is None for each in grads):
        return (None,) * len(node.next_functions)
    run_function = anomaly.run if anomaly.state.enabled else _run_node
    if node._post_hooks and has_hooks:
        outputs = run_function(node, tuple(grads))
        for hook in _hook_list(node._post_hooks):
            result = hook(outputs, tuple(grads))
            if result is not None:
                outputs = _checked_replacements(result, outputs, node, hook)
        return outputs
    final = tuple(grads)
    grads.clear()
    return run_function(node, final)


def _run_node(node: Node, grads: Grads) -> Grads:
    return node.run(grads)


def _checked_replacements(
    result: Any, originals: "Sequence[Tensor | None]", node: Node, hook: Any
) -> Grads:
    """Return the gradients that a node's hook returned in place of `originals`, after checks."""
    if not isinstance(result, tuple):
        raise TypeError(
            f"expected tuple, but hook returned {type(result).__name__!r}: "
            f"{_describe_hook(hook, node)} must return None or all gradients in a tuple"
        )
    replacements: Grads = result
    if len(replacements) != len(originals):
        raise RuntimeError(
            f"hook {_describe_hook(hook, node)} has returned an incorrect number of values (got "
            f"{len(replacements)}, but expected {len(originals)})"
        )
    for before, after in zip(originals, replacements, strict=True):
        if before is not None and after is not None:
            _check_hook_result(node, hook, before, after)
    return replacements


def _hook_list(hooks: dict[int, Any] | None) -> Iterable[Any]:
    return list(hooks.values()) if hooks else ()


def _check_hook_result(node: Node, hook: Any, grad: "Tensor", result: Any) -> None:
    if not isinstance(result, TensorBase):
        raise TypeError(
            f"expected Variable, but hook returned {type(result).__name__!r}: "
            f"{_describe_hook(hook, node)} must return None or tensors"
        )
    changed = _changed(metadata(grad), metadata(result))
    if changed:
        raise RuntimeError(
            f"hook {_describe_hook(hook, node)} has changed the {changed} of value: it returned a "
            f"{describe(result)} for a {describe(grad)}"
        )


def _changed(before: Any, after: Any) -> str:
    if before.shape != after.shape:
        return "size"
    return "" if before.dtype == after.dtype else "type"


def _describe_hook(hook: Any, node: Node) -> str:
    return f"{getattr(hook, '__qualname__', type(hook).__name__)} at {node.name()}"


def _broadcasts_to(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False


_DENSE = (np.ndarray, MetaArray)


class _InputBuffers:
    """The gradients that nodes will run with: for each node, a partial sum for each output."""

    def __init__(self, nodes: set[Node], create_graph: bool) -> None:
        self._nodes = nodes
        self.grads: dict[Node, list[Gradient]] = {}
        # Edges whose sum was computed here: no other code holds it, so it may change in place.
        self._owned: set[Edge] = set()
        self._create_graph = create_graph

    def add(
        self, node: Node, output_nr: int, grad: Any, source: Node | None = None, index: int = 0
    ) -> None:
        if node not in self._nodes:
            return
        outputs = node.output_metadata
        shape, dtype = outputs[output_nr]
        array = grad
        if type(grad) is not np.ndarray:
            if isinstance(grad, TensorBase):
                array = grad._array if grad._spec is None else grad._spec  # no array if sparse
            elif type(grad) is not MetaArray:
                array = grad = np.asarray(grad)  # arithmetic of arrays without dimensions
        if array.shape != shape or array.dtype != dtype:
            (tensor,) = as_tensors([grad])
            assert tensor is not None
            grad = _fitted(tensor, shape, dtype, source, index)
        grads = self.grads.get(node)
        if grads is None:
            if len(outputs) == 1:
                self.grads[node] = [grad]
                return
            grads = self.grads[node] = [None] * len(outputs)
        sum_so_far = grads[output_nr]
        if sum_so_far is None:
            grads[output_nr] = grad
        elif (node, output_nr) in self._owned and type(array) in _DENSE:
            total = sum_so_far._array if isinstance(sum_so_far, TensorBase) else sum_so_far
            previous = ignore_float_errors()
            try:
                np.add(total, grad._array if isinstance(grad, TensorBase) else grad, out=total)
            finally:
                restore_float_errors(previous)
        else:
            first, second = as_tensors((sum_so_far, grad))
            grads[output_nr] = first + second  # type: ignore[operator]
            if not self._create_graph and type(array) in _DENSE:
                self._owned.add((node, output_nr))


def _fitted(
    grad: "Tensor", shape: tuple[int, ...], dtype: Any, source: Node | None, index: int
) -> "Tensor":
    """Return the gradient of a tensor of `shape` and `dtype`, summed and converted if need be.

    Raises:
        RuntimeError: if it has another shape.
    """
    spec = metadata(grad)
    found = spec.shape
    if found != shape and _broadcasts_to(shape, found):
        grad = grad.sum_to_size(shape)
        found = shape
    if found != shape:
        producer = source.name() if source else "the first gradient"
        raise RuntimeError(
            f"Function {producer} returned an invalid gradient at index {index} - got "
            f"{list(found)} but expected shape compatible with {list(shape)}"
        )
    return grad.to(dtype) if spec.dtype != dtype else grad
