"""Saved tensors: what a node keeps for backward, and the hooks that decide how.

Every tensor saved for backward goes through a `SavedTensor`. Without hooks it keeps the tensor
itself (an input) or the tensor's memory (an output, whose node must not hold the tensor that holds
it). Under hooks it holds only what ``pack`` returned.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import ref

import numpy as np

from offgrad.autograd import grad_mode
from offgrad.autograd.tensor_base import TensorBase, describe, wrap
from offgrad.memory import Storage, copy, track_saver

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor
    from offgrad.autograd.node import Edge, Node


class Save(NamedTuple):
    """One act of saving.

    Attributes:
        tensor: detached, sharing memory with what is saved.
        owner: what is saved, with its history; the base if that is a view.
        op: the name of the node that saves.
        slot: what the tensor is to it.
        is_output: whether the node itself made it.
        is_parameter: whether it is a leaf that requires grad, an `nn.Parameter`, or a view of one.
        is_data: whether the node did not make it, and neither it nor what it is a view of requires
            grad: an input, a target, a buffer, which somebody else may hold as well.
    """

    tensor: "Tensor"
    owner: "Tensor"
    op: str
    slot: str
    is_output: bool
    is_parameter: bool
    is_data: bool = False


KEEP = object()
"""What `SaveHooks.pack` returns to have the tensor kept as if there were no hooks."""


class SaveHooks(Protocol):
    """What decides how tensors are saved; the innermost of a thread is asked."""

    needs_replay: bool
    """Whether it may want to know what it takes to run an operation again."""

    def pack(self, save: Save) -> Any:
        """Return what is to be held in place of the tensor, or `KEEP`. Called once a tensor."""

    @property
    def unpacker(self) -> "Unpacker":
        """What unpacks, and learns the order of all it will unpack in a pass."""


class Unpacker(Protocol):
    """What gives saved tensors back."""

    def unpack(self, packed: Any) -> "Tensor":
        """Return a tensor with the saved content. Called as often as backward needs it."""

    def plan(self, packed: Sequence[Any]) -> Callable[[], None]:
        """Learn what a backward pass will unpack, in this order.

        Returns:
            What is to be called when the pass is over, however it ended.
        """

    def sources(self) -> "Iterable[SavedTensor]":
        """Return what it will itself unpack, in the pass, before it can unpack anything."""


class PairHooks:
    """A plain ``(pack, unpack)`` pair of functions on tensors, PyTorch's kind."""

    needs_replay = False

    def __init__(self, pack: "Callable[[Tensor], Any]", unpack: "Callable[[Any], Tensor]") -> None:
        self._pack = pack
        self._unpack = unpack

    def pack(self, save: Save) -> Any:
        """Return what the pair's ``pack`` makes of the tensor."""
        return self._pack(save.tensor)

    @property
    def unpacker(self) -> Unpacker:
        """Itself."""
        return self

    def unpack(self, packed: Any) -> "Tensor":
        """Return the tensor the pair's ``unpack`` makes of it."""
        return self._unpack(packed)

    def plan(self, packed: Sequence[Any]) -> Callable[[], None]:
        """Do nothing: a pair has no use for the order."""
        return _nothing

    def sources(self) -> "Iterable[SavedTensor]":
        """Nothing."""
        return ()


def _nothing() -> None:
    pass


class _State(threading.local):
    hooks: tuple[SaveHooks, ...] = ()
    disabled: str | None = None
    # Whether a checkpoint's function is running: its hooks were pushed for all that happens inside,
    # so none are pushed there for being in some module.
    checkpointed = False
    # The memory that an in-place operation, being computed, will write its result over.
    target: Storage | None = None


state = _State()


def push_hooks(hooks: SaveHooks) -> None:
    """Make `hooks` the innermost of this thread.

    Raises:
        RuntimeError: inside `disable_saved_tensors_hooks`, with its message.
    """
    if state.disabled is not None:
        raise RuntimeError(state.disabled)
    state.hooks = (*state.hooks, hooks)


def pop_hooks(hooks: SaveHooks) -> None:
    """Take `hooks` from this thread's, where they are innermost; others stay as they are."""
    for index in reversed(range(len(state.hooks))):
        if state.hooks[index] is hooks:
            state.hooks = (*state.hooks[:index], *state.hooks[index + 1 :])
            return


current_module: Callable[[], str] = str
"""Returns the name of the module that is running; set by what knows of modules."""


class SavedTensor:
    """A tensor saved for backward: packed once, unpacked as often as asked, then released."""

    # Defaults are the class's: most saved tensors are kept inputs.
    _tensor: "Tensor | None" = None
    # The name of the module that saved it, as far as it is known.
    module = ""
    _is_output = False
    _released = False
    _unpacker: Unpacker | None = None
    _packed: Any = None
    _storage: "ref[Storage]"
    _detached: "ref[Tensor]"
    _packed_version = 0
    _uid: int
    _shape_dtype: tuple[tuple[int, ...], Any]

    def __init__(
        self,
        tensor: "Tensor",
        node: "Node",
        slot: str,
        edge: "Edge",
        is_output: bool = False,
        is_own: bool = False,
    ) -> None:
        """Save `tensor` for `node`; the gradient of what is unpacked will go to `edge`.

        An output's edge leads to `node` itself and is made anew on each unpack, lest it be a cycle.
        What `node` made for itself `is_own`.
        """
        self._slot = slot
        self._node = ref(node)
        self._edge = edge
        self._version = tensor._storage.version
        if tensor._storage.inference:
            raise RuntimeError(
                "inference tensors cannot be saved for backward, but "
                f"{self.origin()} needs a {describe(tensor)} made in inference_mode(); use its "
                "clone(), or no_grad() instead of inference_mode()"
            )
        if is_output:
            self._is_output = True
        elif tensor._storage is state.target:
            tensor = wrap(copy(tensor._array))
            self._version = 0
            is_own = True
        hooks = state.hooks
        if not hooks or not self._pack(hooks[-1], tensor, is_own):
            self._keep(tensor)

    @property
    def packed(self) -> "tuple[Unpacker, Any] | None":
        """What unpacks the tensor, and what stands for it; None if it is kept."""
        # Each is read once, in this order: another thread may release it meanwhile.
        packed, unpacker = self._packed, self._unpacker
        return None if unpacker is None else (unpacker, packed)

    def unpack(self) -> "Tensor":
        """Return the saved tensor.

        Raises:
            RuntimeError: after release; if the memory was changed in place since; if an unpack hook
                returned something else than was saved.
        """
        # Each is read once, in this order: another thread may release it meanwhile.
        packed, unpacker, tensor = self._packed, self._unpacker, self._tensor
        if tensor is not None:
            if tensor._storage.version != self._version:
                raise self._changed(tensor)
            if tensor._storage.uid != self._uid:
                raise RuntimeError(
                    "a tensor needed for backward must keep its memory, but that of the "
                    f"{describe(tensor)} that {self.origin()} saved was replaced, by .data or a "
                    "conversion; replace it before forward or after backward"
                )
            return tensor if self._edge_is_current(tensor) else self._rebuild(tensor)
        if unpacker is None:
            raise RuntimeError(
                f"what {self.origin()} saved for backward was freed by an earlier backward() or "
                "grad(); to go through the graph, or read its saved tensors, a second time, pass "
                "retain_graph=True the time before"
            )
        self._check_packed(packed)
        tensor = unpacker.unpack(packed)
        self._check_packed(packed)
        self._check_unpacked(tensor)
        return self._rebuild(tensor)

    def register_hooks(
        self, pack: "Callable[[Tensor], Any]", unpack: "Callable[[Any], Tensor]"
    ) -> None:
        """Pack the tensor now with `pack`; from now on it is what `unpack` makes of the result.

        Raises:
            RuntimeError: if it is released, has hooks already, or was changed in place since.
        """
        if self._released:
            raise RuntimeError(
                f"hooks need a saved tensor to pack, but what {self.origin()} saved was freed by "
                "backward; register them before, or pass retain_graph=True to it"
            )
        if self._tensor is None:
            raise RuntimeError(
                f"a saved tensor takes hooks once, but {self.origin()} has some already (perhaps "
                "of an enclosing saved_tensors_hooks or offload)"
            )
        for hook in (pack, unpack):
            if not callable(hook):
                raise TypeError(f"a hook must be callable, got {type(hook).__name__}")
        tensor = self._tensor
        if tensor._storage.version != self._version:
            raise self._changed(tensor)
        if self._pack(PairHooks(pack, unpack), tensor):
            self._tensor = None

    def release(self) -> None:
        """Let go of what is held."""
        self._released = True
        self._tensor = self._unpacker = self._packed = None

    def kept(self) -> "Tensor | None":
        """Return the tensor kept for backward as it was saved, None if it is no more, or packed."""
        tensor = self._tensor
        if tensor is None or tensor._storage.uid != self._uid:
            return None
        return tensor if tensor._storage.version == self._version else None

    def kept_storage(self) -> "Storage | None":
        """Return the storage kept for backward, None if it is packed or released."""
        return None if self._tensor is None else self._tensor._storage

    def origin(self) -> str:
        """Return the node and slot, for messages."""
        node = self._node()
        where = f" in {self.module}" if self.module else ""
        return f"{'a freed node' if node is None else node.name()}.{self._slot}{where}"

    def _keep(self, tensor: "Tensor") -> None:
        self._tensor = wrap(tensor._array, tensor._storage) if self._is_output else tensor
        self._uid = tensor._storage.uid
        if track_saver(self, tensor._array.nbytes):
            self.module = current_module()

    def _pack(self, hooks: SaveHooks, tensor: "Tensor", is_own: bool = False) -> bool:
        node = self._node()
        detached = wrap(tensor._array, tensor._storage)
        owner = tensor if tensor._base is None else tensor._base
        is_parameter = not self._is_output and owner._is_parameter()
        is_data = not (self._is_output or is_own or is_parameter or owner._requires_grad)
        name = "" if node is None else node.name()
        save = Save(detached, owner, name, self._slot, self._is_output, is_parameter, is_data)
        version = tensor._storage.version
        # What hooks compute is not recorded.
        modes = grad_mode.state.set(False, grad_mode.state.inference)
        try:
            packed = hooks.pack(save)
        finally:
            grad_mode.state.set(*modes)
        if tensor._storage.version != version:
            raise RuntimeError(
                f"a pack hook must not change its input in place, but that of {self.origin()} was "
                f"changed by {tensor._storage.changed_by}; work on a clone"
            )
        if packed is KEEP:
            return False
        self._unpacker = hooks.unpacker
        self._packed = packed
        self._storage = ref(tensor._storage)
        self._detached = ref(detached)
        if isinstance(packed, TensorBase):
            self._packed_version = packed._storage.version
        self._shape_dtype = (tensor._array.shape, tensor._array.dtype)
        return True

    def _edge_is_current(self, tensor: "Tensor") -> bool:
        """Return whether the kept tensor itself still has the edge it was saved with."""
        node = self._edge[0]
        if self._is_output:
            return False
        if node is None or tensor._grad_fn is None:
            return (node is None) == (not tensor._requires_grad)
        return tensor._grad_fn is node

    def _check_packed(self, packed: Any) -> None:
        """Raise if what the pack hook returned or holds was changed in place since."""
        if isinstance(packed, TensorBase) and packed._storage.version != self._packed_version:
            raise self._changed(packed, packed._storage.version, packed._storage.changed_by)
        # A hook that holds the tensor it was given holds the memory that was saved.
        detached = self._detached()
        if detached is not None and detached._storage.version != self._version:
            raise self._changed(detached)

    def _check_unpacked(self, tensor: Any) -> None:
        if not isinstance(tensor, TensorBase):
            raise TypeError(
                f"an unpack hook must return a tensor, but that of {self.origin()} returned "
                f"{type(tensor).__name__}"
            )
        shape, dtype = self._shape_dtype
        if tensor._array.shape != shape or tensor._array.dtype != dtype:
            raise RuntimeError(
                f"an unpack hook must return what was packed, but that of {self.origin()} returned "
                f"a {describe(tensor)} for a {dtype.name} tensor of shape {list(shape)}"
            )
        # A hook may have handed out the very memory that was saved: then its version counts.
        storage = self._storage()
        if (
            storage is not None
            and storage.version != self._version
            and np.may_share_memory(storage.root, tensor._array)
        ):
            raise self._changed(tensor, storage.version, storage.changed_by)

    def _rebuild(self, tensor: "Tensor") -> "Tensor":
        node, output_nr = (self._node(), self._edge[1]) if self._is_output else self._edge
        rebuilt = wrap(tensor._array, tensor._storage)
        if node is not None:
            node.attach(rebuilt, output_nr)
        return rebuilt

    def _changed(
        self, tensor: TensorBase, version: int | None = None, operation: str = ""
    ) -> RuntimeError:
        storage = tensor._storage
        return RuntimeError(
            "a tensor needed for backward must not be changed in place, but the "
            f"{describe(tensor)} that {self.origin()} saved at version {self._version} is at "
            f"version {storage.version if version is None else version}, last changed by "
            f"{operation or storage.changed_by}; use the out-of-place form, or change a clone "
            "(autograd.detect_anomaly() tells the line that saved it)"
        )
