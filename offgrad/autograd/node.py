"""Nodes: the vertices of the autograd graph."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import RLock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from weakref import ReferenceType, ref

import numpy as np

from offgrad.autograd.handles import RemovableHandle, add_hook
from offgrad.autograd.saved_tensor import SavedTensor
from offgrad.autograd.tensor_base import TensorBase, describe, wrap
from offgrad.autograd.views import is_stale, refresh

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor
    from offgrad.autograd.replay import Replay

Edge: TypeAlias = tuple["Node | None", int]
Grads: TypeAlias = tuple["Tensor | None", ...]
Hooks: TypeAlias = dict[int, Callable[..., Any]]

_sequence = itertools.count(1)
# Two threads must not give one leaf two nodes, each with a lock of its own. Re-entrant: a garbage
# collection may run a user's finalizer while it is held.
_accumulator_lock = RLock()


# Attributes of every node: not what an operation keeps as plain values.
_OWN = {"sequence_nr", "lock", "next_functions", "needs_input_grad", "output_metadata", "replay"}


class Node:
    """One recorded operation: it turns gradients of its outputs into gradients of its inputs.

    Attributes:
        next_functions: for each input, the node that made it and which of its outputs it was.
        sequence_nr: counts up as operations are recorded, so that every node has a higher number
            than those it leads to; the engine runs nodes from high to low.
        needs_input_grad: for each input, whether its gradient is wanted.
    """

    sequence_nr: int
    # Defaults are the class's: most nodes have no hooks, and what is not recorded needs nothing.
    next_functions: tuple[Edge, ...] = ()
    needs_input_grad: tuple[bool, ...] = ()
    # For each output: the shape and dtype its gradient must have.
    output_metadata: tuple[tuple[tuple[int, ...], Any], ...] = ()
    # Nodes of user-defined Functions run even when no gradient reached them.
    runs_without_grad = False
    # What it takes to run the forward of a cheap operation again, under hooks.
    replay: "Replay | None" = None
    _saved: Mapping[str, SavedTensor] = MappingProxyType({})
    _pre_hooks: Hooks | None = None
    _post_hooks: Hooks | None = None
    _tensor_hooks: dict[int, Hooks] | None = None
    _retainers: "dict[int, ReferenceType[Tensor]] | None" = None
    _metadata: dict[str, Any] | None = None

    def __init__(self) -> None:
        self.sequence_nr = next(_sequence)
        # Held while the node computes, and not while hooks and Functions of the user's run: threads
        # may share parts of a graph. Re-entrant: unpack hooks may run backward themselves.
        self.lock = RLock()

    def name(self) -> str:
        """Return the name PyTorch prints, such as ``MulBackward0``."""
        return type(self).__name__

    def __repr__(self) -> str:
        return f"<{self.name()} object at {id(self):#x}>"

    @property
    def metadata(self) -> dict[str, Any]:
        """A dict of the user's, kept with the node."""
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

    def saves(self) -> Iterable[SavedTensor]:
        """Return what `run` will unpack, in the order it was saved."""
        return self._saved.values()

    def release(self) -> None:
        """Drop what was saved for backward."""
        self.replay = None
        for saved in self._saved.values():
            saved.release()

    # Hooks

    def register_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(grad_inputs, grad_outputs)`` after the node ran; it may return new
        grad_inputs.
        """
        if self._post_hooks is None:
            self._post_hooks = {}
        return add_hook(self._post_hooks, hook)

    def register_prehook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(grad_outputs)`` before the node runs; it may return new grad_outputs."""
        if self._pre_hooks is None:
            self._pre_hooks = {}
        return add_hook(self._pre_hooks, hook)

    def hooks_of_output(self, output_nr: int, *, create: bool = False) -> Hooks | None:
        """Return the hooks of the tensor that is output `output_nr`; None if it has none."""
        if not create:
            return self._tensor_hooks.get(output_nr) if self._tensor_hooks else None
        if self._tensor_hooks is None:
            self._tensor_hooks = {}
        return self._tensor_hooks.setdefault(output_nr, {})

    def retain_grad(self, tensor: "Tensor") -> None:
        """Write the gradient of output `tensor` into its ``.grad`` as it passes."""
        if self._retainers is None:
            self._retainers = {}
        self._retainers[tensor._output_nr] = ref(tensor)

    def forget_retainer(self, tensor: "Tensor") -> bool:
        """Stop writing the gradient of `tensor`; return whether it was written."""
        for output_nr, retainer in self.retainers():
            if retainer is tensor:
                assert self._retainers is not None
                del self._retainers[output_nr]
                return True
        return False

    def retainers(self) -> Iterator[tuple[int, "Tensor"]]:
        """Yield the outputs that retain their gradient and are still alive."""
        for output_nr, reference in list((self._retainers or {}).items()):
            tensor = reference()
            if tensor is not None:
                yield output_nr, tensor

    # Saved tensors, as attributes

    def __dir__(self) -> list[str]:
        plain = [name for name in vars(self) if name[0] != "_" and name not in _OWN]
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
    """The end of every path: adds what arrives to ``.grad`` of a leaf.

    The leaf holds its node weakly and the node holds the leaf, so no cycle arises.
    """

    def __init__(self, variable: "Tensor") -> None:
        super().__init__()
        self._variable = variable
        self.output_metadata = ((variable._array.shape, variable._array.dtype),)

    @property
    def variable(self) -> "Tensor":
        """The leaf."""
        return self._variable

    def name(self) -> str:
        """Return ``AccumulateGrad``."""
        return "AccumulateGrad"

    def hooks_of_output(self, output_nr: int, *, create: bool = False) -> Hooks | None:
        """Return the leaf's own hooks: they outlive this node."""
        if create and self._variable._hooks is None:
            self._variable._hooks = {}
        return self._variable._hooks

    def attach(self, tensor: "Tensor", output_nr: int) -> None:
        """Make `tensor` a leaf that this node accumulates into."""
        tensor._requires_grad = True
        tensor._accumulator = ref(self)

    def run(self, grads: Grads) -> Grads:
        """Add the gradient to the leaf's; keep a copy of the first, which others may hold too."""
        (grad,) = grads
        leaf = self._variable
        if grad is None or not leaf._requires_grad:
            return ()
        with self.lock:
            self._accumulate(leaf, grad)
        for hook in list((leaf._post_accumulate_hooks or {}).values()):
            hook(leaf)
        return ()

    def _accumulate(self, leaf: "Tensor", grad: "Tensor") -> None:
        if leaf.grad is None:
            leaf.grad = grad.clone()
            leaf.grad._storage.role = "gradients"
        elif leaf.grad._array.shape != grad._array.shape:
            raise RuntimeError(
                f"the gradient of a leaf must have the shape of its .grad, got a {describe(grad)} "
                f"for a {describe(leaf.grad)}; set .grad to None after changing a leaf's shape"
            )
        elif grad.requires_grad or leaf.grad.requires_grad:
            leaf.grad = leaf.grad + grad
        else:
            leaf.grad._storage.write(self.name())
            with np.errstate(all="ignore"):
                np.add(leaf.grad._array, grad._array, out=leaf.grad._array)


class GradientEdge(NamedTuple):
    """Where the gradient of a tensor goes: it stands for the tensor in `grad` and `backward`.

    Attributes:
        node: the node that made the tensor, or that accumulates its gradient.
        output_nr: which output of the node the tensor is.
        ownership_token: not used; nodes own what they need.
    """

    node: Node
    output_nr: int
    ownership_token: Any = None


def gradient_edge(tensor: "Tensor") -> Edge:
    """Return the node and output number that the gradient of `tensor` goes to."""
    if is_stale(tensor):
        refresh(tensor)
    if not tensor._requires_grad:
        return None, 0
    if tensor._grad_fn is not None:
        return tensor._grad_fn, tensor._output_nr
    return accumulator(tensor), 0


def get_gradient_edge(tensor: "Tensor") -> GradientEdge:
    """Return where the gradient of `tensor` goes; it stands for the tensor in `grad` and
    `backward`, without holding its memory.

    Raises:
        RuntimeError: if the tensor does not require grad.
    """
    node, output_nr = gradient_edge(tensor)
    if node is None:
        raise RuntimeError(
            f"gradient edges are for tensors that require grad, got a {describe(tensor)}"
        )
    return GradientEdge(node, output_nr)


def accumulator(leaf: "Tensor") -> AccumulateGrad:
    """Return the node that accumulates into `leaf`, the same one while any graph holds it."""
    node = None if leaf._accumulator is None else leaf._accumulator()
    if node is None:
        with _accumulator_lock:
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
    """Return a tensor with the data of `base` whose gradient goes to `edge`."""
    tensor = wrap(base._array, base._storage)
    node, output_nr = edge
    if node is not None:
        node.attach(tensor, output_nr)
    return tensor
