"""Nodes: the vertices of the autograd graph."""

import itertools
from _thread import RLock
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from weakref import ReferenceType, ref

import numpy as np
from numpy.typing import NDArray

from offgrad.autograd import grad_mode
from offgrad.autograd.float_errors import ignore_float_errors, restore_float_errors
from offgrad.autograd.garbage import NODES, collector
from offgrad.autograd.handles import RemovableHandle, add_hook
from offgrad.autograd.out_of_memory import name_backward
from offgrad.autograd.ownership import is_sole_owner
from offgrad.autograd.saved_tensor import SavedTensor
from offgrad.autograd.tensor_base import TensorBase, describe, metadata, wrap
from offgrad.autograd.views import is_stale, refresh
from offgrad.memory import OutOfMemoryError, forks

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor
    from offgrad.autograd.replay import Replay

Edge: TypeAlias = tuple["Node | None", int]
Grads: TypeAlias = tuple["Tensor | None", ...]
OutputMetadata: TypeAlias = tuple[tuple[tuple[int, ...], Any], ...]
# Gradients that nothing records may be plain arrays.
Gradient: TypeAlias = "Tensor | NDArray[Any] | None"
Gradients: TypeAlias = Sequence[Gradient]
Hooks: TypeAlias = dict[int, Callable[..., Any]]

_sequence = itertools.count(1)
# Two threads must not create two nodes for one leaf, nor two locks for one node. Re-entrant: a
# garbage collection may run a user's finalizer while it is held.
_creation_lock = RLock()


class _Creation:
    """Renews the lock in a forked child: its holder may not exist there. A fork does not take it,
    since threads pass it on without a pause.
    """

    lock = None

    def forget_other_threads(self) -> None:
        global _creation_lock
        _creation_lock = RLock()


_creation = _Creation()
forks.forkables.add(_creation)


def end_pass() -> None:
    """A backward pass of this thread, perhaps the outermost one, has ended."""
    collector.note_pass(next(_sequence))


# Attributes of every node, as opposed to the plain values that an operation saves.
_NODE_ATTRIBUTES = {
    "has_hooks",
    "sequence_nr",
    "next_functions",
    "needs_input_grad",
    "output_metadata",
    "replay",
}


class Node:
    """One recorded operation: it turns gradients of its outputs into gradients of its inputs.

    Attributes:
        next_functions: for each input, the node that made it and the output number there.
        sequence_nr: increases as operations are recorded, so that each node has a higher number
            than its `next_functions`; the engine runs nodes from high to low.
        needs_input_grad: for each input, whether its gradient is needed.
    """

    sequence_nr: int
    # Class attributes as defaults save memory: most nodes have no hooks, unrecorded ones no edges.
    next_functions: tuple[Edge, ...] = ()
    needs_input_grad: tuple[bool, ...] = ()
    # For each output: the shape and dtype its gradient must have.
    output_metadata: OutputMetadata = ()
    # Whether the node runs even if no gradient reached it, as those of user-defined Functions do.
    runs_without_grad = False
    # Whether the node or its outputs may have hooks.
    has_hooks = False
    # Whether `run` may run code of the user, besides hooks.
    runs_user_code = True
    # How to re-run the forward of a cheap operation; set only under hooks that need it.
    replay: "Replay | None" = None
    _saved: Mapping[str, SavedTensor] = MappingProxyType({})
    _pre_hooks: Hooks | None = None
    _post_hooks: Hooks | None = None
    _tensor_hooks: dict[int, Hooks] | None = None
    _retaining: "dict[int, ReferenceType[Tensor]] | None" = None
    _metadata: dict[str, Any] | None = None
    # What an observer of operations notes of the call that recorded the node.
    _origin: Any = None
    # The fork after which the lock is known to have no holder that does not exist.
    _lock_checked_at = 0

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Take the next sequence number."""
        self.sequence_nr = number = next(_sequence)
        self._lock = RLock()
        if not number % NODES:
            collector.note_nodes(number)

    def name(self) -> str:
        """Return the name PyTorch prints, such as ``MulBackward0``."""
        return type(self).__name__

    def __repr__(self) -> str:
        return f"<{self.name()} object at {id(self):#x}>"

    @property
    def lock(self) -> RLock:
        """Held while the node computes, since threads may share parts of a graph.

        It is not held while user-defined hooks and Functions run. Re-entrant: unpack hooks may run
        backward.
        """
        if self._lock_checked_at != forks.count:
            self._check_lock()
        return self._lock

    def _check_lock(self) -> None:
        """In a forked child: replace the lock if a thread held it that does not exist here."""
        with _creation_lock:
            if self._lock_checked_at == forks.count:
                return
            if self._lock.acquire(blocking=False):
                self._lock.release()
            else:
                self._lock = RLock()
            self._lock_checked_at = forks.count

    @property
    def metadata(self) -> dict[str, Any]:
        """A dict for the user's data, kept with the node."""
        if self._metadata is None:
            self._metadata = {}
        return self._metadata

    def attach(self, tensor: "Tensor", output_nr: int) -> None:
        """Make `tensor` output `output_nr` of this node."""
        tensor._requires_grad = True
        tensor._grad_fn, tensor._output_nr = self, output_nr

    def run(self, grads: Grads) -> Grads:
        """Return the gradients of the inputs, given those of the outputs."""
        raise NotImplementedError

    def run_unrecorded(self, grads: Gradients) -> Gradients:
        """Run as `run` does, in a pass that records nothing."""
        return self.run(as_tensors(grads))

    def saves(self) -> Iterable[SavedTensor]:
        """Return the tensors that `run` will unpack, in the order they were saved."""
        return self._saved.values()

    def release(self) -> None:
        """Free the tensors saved for backward."""
        if self.replay is not None:
            self.replay = None
        for saved in self._saved.values():
            saved.release()

    # Hooks

    def register_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(grad_inputs, grad_outputs)`` after the node has run; it may return new
        grad_inputs.
        """
        if self._post_hooks is None:
            self._post_hooks = {}
            self.has_hooks = True
        return add_hook(self._post_hooks, hook)

    def register_prehook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(grad_outputs)`` before the node runs; it may return new grad_outputs."""
        if self._pre_hooks is None:
            self._pre_hooks = {}
            self.has_hooks = True
        return add_hook(self._pre_hooks, hook)

    def hooks_of_output(self, output_nr: int, *, create: bool = False) -> Hooks | None:
        """Return the hooks of the tensor that is output `output_nr`; None if there are none."""
        if not create:
            return self._tensor_hooks.get(output_nr) if self._tensor_hooks else None
        if self._tensor_hooks is None:
            self._tensor_hooks = {}
            self.has_hooks = True
        return self._tensor_hooks.setdefault(output_nr, {})

    def retain_grad(self, tensor: "Tensor") -> None:
        """Write the gradient of output `tensor` to its ``.grad`` in each backward pass."""
        if self._retaining is None:
            self._retaining = {}
            self.has_hooks = True
        self._retaining[tensor._output_nr] = ref(tensor)

    def retains_grad(self, tensor: "Tensor") -> bool:
        """Return whether it writes the gradient of `tensor`, one of its outputs."""
        reference = (self._retaining or {}).get(tensor._output_nr)
        return reference is not None and reference() is tensor

    def stop_retaining_grad(self, tensor: "Tensor") -> bool:
        """Stop writing the gradient of `tensor`; return whether it was written before."""
        if not self.retains_grad(tensor):
            return False
        assert self._retaining is not None
        del self._retaining[tensor._output_nr]
        return True

    def retaining_tensors(self) -> Iterator[tuple[int, "Tensor"]]:
        """Yield number and tensor of each live output that retains its gradient."""
        for output_nr, reference in list((self._retaining or {}).items()):
            tensor = reference()
            if tensor is not None:
                yield output_nr, tensor

    # Saved tensors, as attributes

    def __dir__(self) -> list[str]:
        plain = [name for name in vars(self) if name[0] != "_" and name not in _NODE_ATTRIBUTES]
        saved = [f"_saved_{name}" for name in (*self._saved, *plain)]
        return [*super().__dir__(), *saved, *(f"_raw_saved_{slot}" for slot in self._saved)]

    def __getattr__(self, name: str) -> Any:
        saved = self._saved
        if name.startswith("_raw_saved_") and name[11:] in saved:
            return saved[name[11:]]
        if name.startswith("_saved_"):
            slot = name[7:]
            if slot in saved:
                return saved[slot].unpack()
            if slot in self.__dict__:
                return self.__dict__[slot]
        raise AttributeError(
            f"{self.name()} has no attribute {name!r}; it saved {sorted(saved) or 'no tensors'}"
        )


class AccumulateGrad(Node):
    """The last node of every path: adds the incoming gradient to ``.grad`` of a leaf.

    The leaf references its node weakly and the node its leaf strongly, so there is no cycle.
    """

    _has_own_hooks = False

    def __init__(self, variable: "Tensor") -> None:
        super().__init__()
        self._variable = variable
        spec = metadata(variable)
        self.output_metadata = ((spec.shape, spec.dtype),)

    @property
    def variable(self) -> "Tensor":
        return self._variable

    @property
    def has_hooks(self) -> bool:
        """Whether the node or its leaf may have hooks."""
        return self._has_own_hooks or self._variable._hooks is not None

    @has_hooks.setter
    def has_hooks(self, value: bool) -> None:
        self._has_own_hooks = value

    @property
    def runs_user_code(self) -> bool:  # type: ignore[override]
        """Whether the leaf may have hooks that `run` calls."""
        return self._variable._post_accumulate_hooks is not None

    def name(self) -> str:
        return "AccumulateGrad"

    def hooks_of_output(self, output_nr: int, *, create: bool = False) -> Hooks | None:
        """Return the leaf's hooks: they outlive this node."""
        if create and self._variable._hooks is None:
            self._variable._hooks = {}
        return self._variable._hooks

    def attach(self, tensor: "Tensor", output_nr: int) -> None:
        """Make `tensor` a leaf whose gradient this node accumulates."""
        tensor._requires_grad = True
        tensor._accumulator = ref(self)

    def run_unrecorded(self, grads: list[Gradient]) -> Gradients:  # type: ignore[override]
        """Run as `run` does; empty the list, so that the leaf may keep the gradient's memory."""
        final = as_tensors(grads)
        grads.clear()
        return self.run(final)

    def run(self, grads: Grads) -> Grads:
        """Add the gradient to the leaf's; copy the first one if other code may hold it, too."""
        leaf = self._variable
        if grads[0] is None or not leaf._requires_grad:
            return ()
        with self.lock:
            try:
                self._accumulate(leaf, grads)
            except OutOfMemoryError as error:
                name_backward(error, self)
                raise
        for hook in list((leaf._post_accumulate_hooks or {}).values()):
            result = hook(leaf)
            if result is not None:
                raise (RuntimeError if isinstance(result, TensorBase) else TypeError)(
                    "a post-accumulate hook must return None, but one returned a "
                    f"{type(result).__name__}; to change the gradient, set .grad of its argument"
                )
        return ()

    def _accumulate(self, leaf: "Tensor", grads: Grads) -> None:
        is_ours = is_sole_owner(grads)
        (grad,) = grads
        assert grad is not None
        total = leaf._grad
        if not isinstance(grad._array, np.ndarray):
            leaf.grad = _with_sparse(total, grad)
        elif total is None:
            is_plain = grad._grad_fn is None and not grad_mode.state.grad_enabled
            is_kept = is_ours and is_plain and grad._array.flags.c_contiguous
            # A tensor of its own: a Function may return a parameter.
            leaf.grad = wrap(grad._array, grad._storage) if is_kept else _copy(grad, leaf)
        elif (spec := metadata(total)).shape != grad._array.shape:
            raise RuntimeError(
                f"the gradient of a leaf must have the shape of its .grad, got a {describe(grad)} "
                f"for a {describe(total)}; set .grad to None after changing a leaf's shape"
            )
        elif not isinstance(spec, np.ndarray):
            leaf.grad = grad + total  # the second is sparse, the sum is not
        elif grad_mode.state.grad_enabled or 0 in spec.strides:
            # With create_graph, as in PyTorch even where this gradient has no history; or the
            # elements of an expanded .grad share memory.
            leaf.grad = total + grad
        else:
            total._storage.write(self.name())
            array = total._array
            previous = ignore_float_errors()
            try:
                np.add(array, grad._array, out=array)
            finally:
                restore_float_errors(previous)
        assert leaf._grad is not None
        leaf._grad._storage.role = "gradients"


def _copy(grad: "Tensor", leaf: "Tensor") -> "Tensor":
    """Return a copy of a gradient, in C order if its leaf is."""
    if metadata(leaf).flags.c_contiguous and not grad._array.flags.c_contiguous:
        return grad.contiguous()
    return grad.clone()


def _with_sparse(previous: "Tensor | None", grad: "Tensor") -> "Tensor":
    """Return the gradient of a leaf after a sparse one has been added: `previous` if it can be."""
    if previous is None:
        return grad.clone()
    if grad_mode.state.grad_enabled:
        return previous + grad
    if isinstance(previous._array, np.ndarray):
        total = previous + grad
        previous._storage.write("AccumulateGrad")
        np.copyto(previous._array, total._array)
        return previous
    return previous.add_(grad)


def as_tensors(grads: Gradients) -> Grads:
    """Return gradients as tensors."""
    return tuple(
        [each if each is None or isinstance(each, TensorBase) else wrap(each) for each in grads]
    )


class GradientEdge(NamedTuple):
    """The edge that a tensor's gradient flows to; `grad` and `backward` take it in place of the
    tensor.

    Attributes:
        node: the node that made the tensor, or that accumulates its gradient.
        output_nr: the number of the node's output that is the tensor.
        ownership_token: not used; exists for compatibility with PyTorch.
    """

    node: Node
    output_nr: int
    ownership_token: Any = None


def gradient_edge(tensor: "Tensor") -> Edge:
    """Return the node and output number that the gradient of `tensor` flows to."""
    if is_stale(tensor):
        refresh(tensor)
    if not tensor._requires_grad:
        return None, 0
    if tensor._grad_fn is not None:
        return tensor._grad_fn, tensor._output_nr
    return accumulator(tensor), 0


def get_gradient_edge(tensor: "Tensor") -> GradientEdge:
    """Return the edge that the gradient of `tensor` flows to; `grad` and `backward` take it in
    place of the tensor. It does not hold the tensor's memory.

    Raises:
        RuntimeError: if the tensor does not require grad.
    """
    node, output_nr = gradient_edge(tensor)
    if node is None:
        raise RuntimeError(
            f"only a tensor that requires grad has a gradient edge, got a {describe(tensor)}"
        )
    return GradientEdge(node, output_nr)


def accumulator(leaf: "Tensor") -> AccumulateGrad:
    """Return the node that accumulates into `leaf`; the same node while any graph holds it."""
    node = None if leaf._accumulator is None else leaf._accumulator()
    if node is None:
        with _creation_lock:
            node = None if leaf._accumulator is None else leaf._accumulator()
            if node is None:
                node = AccumulateGrad(leaf)
                leaf._accumulator = ref(node)
    return node


def connect(output: "Tensor", node: Node) -> None:
    """Make `output` the next output of `node`."""
    output._requires_grad = True
    output._grad_fn = node
    output._output_nr = len(node.output_metadata)
    array = output._array
    node.output_metadata += ((array.shape, array.dtype),)


def tensor_from_edge(base: TensorBase, edge: Edge) -> "Tensor":
    """Return a tensor with the data of `base` whose gradient flows to `edge`."""
    tensor = wrap(base._array, base._storage)
    node, output_nr = edge
    if node is not None:
        node.attach(tensor, output_nr)
    return tensor
