"""Saved tensors, and the hooks that decide how they are kept.

Every tensor that a node saves for backward goes through a `SavedTensor`. Without hooks it keeps the
tensor itself (an input) or the tensor's memory (an output: a node that held its own output would be
a reference cycle). Under hooks it holds only the object that ``pack`` returned.
"""

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from offgrad.autograd import grad_mode
from offgrad.autograd.save_hooks import PairHooks, SaveHooks, Unpacker
from offgrad.autograd.tensor_base import TensorBase, address, describe, without_array, wrap
from offgrad.memory import POOL_THRESHOLD, Storage, copy, track_saver
from offgrad.memory.meta import MetaArray, meters

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor
    from offgrad.autograd.node import Edge, Node


class Save:
    """One tensor that a node saves: the facts that hooks get.

    Attributes:
        array: of the tensor.
        storage: the memory behind the array.
        owner: the tensor, with its history; its base if it is a view.
        op: the name of the node that saves.
        slot: the name under which the node saves it.
        is_output: whether it is an output of the node.
        is_parameter: whether it is a leaf that requires grad, an `nn.Parameter`, or a view of one.
        is_data: whether it came from outside the node, and neither it nor its base requires grad:
            an input, a target, a buffer, which the program may hold as well.
        node_covers_storage: whether the tensor has gaps that other saves of the node fill, as
            query, key and value do that are slices of one product.
    """

    __slots__ = (
        "_tensor", "array", "is_data", "is_output", "is_parameter", "node_covers_storage", "op",
        "owner", "slot", "storage",
    )  # fmt: skip

    def __init__(
        self, tensor: "Tensor", node: "Node | None", slot: str, is_output: bool, is_own: bool
    ) -> None:
        owner = tensor if tensor._base is None else tensor._base
        self.array = tensor._array
        self.storage = tensor._storage
        self.owner = owner
        self.op = "" if node is None else type(node).__name__
        self.slot = slot
        self.is_output = is_output
        self.is_parameter = not is_output and is_parameter(owner)
        self.is_data = not (is_output or is_own or self.is_parameter or owner._requires_grad)
        self.node_covers_storage = not self.array.flags.c_contiguous and _cover(
            getattr(node, "_saves", {}).values(), self.array, self.storage.root
        )
        self._tensor: Tensor | None = None

    @property
    def tensor(self) -> "Tensor":
        """The tensor, detached; it shares memory with the saved one."""
        if self._tensor is None:
            self._tensor = wrap(self.array, self.storage)
        return self._tensor


def _cover(saved: "Iterable[NDArray[Any] | None]", array: "NDArray[Any]", root: Any) -> bool:
    """Return whether the arrays in `root`, each a part of it as `array` is, cover it."""
    if array.nbytes >= root.nbytes or not root.flags.c_contiguous:
        return False
    begin = address(root)
    parts = {
        (start, each.shape, each.strides): each.nbytes
        for each in saved
        if each is not None and begin <= (start := address(each)) < begin + root.nbytes
    }
    return bool(sum(parts.values()) >= root.nbytes)


def is_parameter(tensor: TensorBase) -> bool:
    """Return whether it stays in memory anyway: a leaf that requires grad, or an `nn.Parameter`."""
    return tensor._grad_fn is None and (tensor._requires_grad or tensor._is_module_parameter)


KEEP = object()
"""`SaveHooks.pack` returns it to keep the tensor as if there were no hooks."""


class _State(threading.local):
    hooks: tuple[SaveHooks, ...] = ()
    disabled: str | None = None
    # Whether a checkpointed function is running: its hooks get all that it saves, so that policies
    # by module push none inside.
    checkpointed = False


state = _State()
# By thread, the memory that its running in-place form will overwrite, the tensor, the form's name.
targets: "dict[int, tuple[Storage, Tensor, str]]" = {}


def push_hooks(hooks: SaveHooks) -> None:
    """Make `hooks` the innermost of this thread.

    Raises:
        RuntimeError: inside `disable_saved_tensors_hooks`, with its message.
    """
    if state.disabled is not None:
        raise RuntimeError(state.disabled)
    state.hooks = (*state.hooks, hooks)


def pop_hooks(hooks: SaveHooks) -> None:
    """Remove the innermost occurrence of `hooks` from this thread; the others stay."""
    for index in reversed(range(len(state.hooks))):
        if state.hooks[index] is hooks:
            state.hooks = (*state.hooks[:index], *state.hooks[index + 1 :])
            return


current_module: Callable[[], str] = str
"""Returns the name of the running module; set by `offgrad.nn`."""

DEFAULT_MIN_NBYTES = 1 << 20
"""The size from which tensors that operations cheaply recompute go through `default_hooks`."""

default_hooks: Callable[[], SaveHooks] | None = None
"""Returns the hooks for such tensors where the thread has none; set by `offgrad.session`."""


class SavedTensor:
    """A tensor saved for backward: packed once, unpacked as often as asked, then released."""

    # Defaults are class attributes: most saved tensors are kept inputs.
    _tensor: "Tensor | None" = None
    # The name of the module that saved it, if known.
    module = ""
    # Whether hooks were asked, and left it in memory.
    kept_by_policy = False
    # Whether the default hooks packed it.
    _packed_by_default = False
    # Whether it is an output of its node.
    is_output = False
    # Of an output written into a view: the node of the view's history, and the output number.
    _view_edge: "tuple[ref[Node], int] | None" = None
    _released = False
    _unpacker: Unpacker | None = None
    _packed: Any = None
    _storage: "ref[Storage]"
    _detached: "ref[Tensor] | None"
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
        """Save `tensor` for `node`.

        Args:
            tensor: to be saved.
            node: the node that saves.
            slot: the name under which it saves.
            edge: where the gradient of the unpacked tensor goes. The edge of an output leads to
                `node` itself, and is built on each unpack to avoid a reference cycle.
            is_output: whether `tensor` is an output of `node`.
            is_own: whether `node` made it for backward alone.
        """
        storage = tensor._storage
        self._slot = slot
        self._node = ref(node)
        self._edge = edge
        self._version = storage.version
        hooks = state.hooks
        if storage.inference:
            raise RuntimeError(
                f"Inference tensors cannot be saved for backward: {self.origin()} needs a "
                f"{describe(tensor)} made in inference_mode(); use its clone(), or no_grad() "
                "instead of inference_mode()"
            )
        if is_output:
            self.is_output = True
        elif targets and storage is targets.get(threading.get_ident(), (None,))[0]:
            tensor = wrap(copy(tensor._array))
            self._version = 0
            is_own = True
        if hooks and not tensor._is_wrapped_number and self._pack(hooks[-1], tensor, is_own):
            return
        self._tensor = wrap(tensor._array, tensor._storage) if is_output else tensor
        storage = tensor._storage
        self._uid = storage.uid
        if storage.is_paged:
            self._tensor = without_array(self._tensor)
        elif tensor._array.nbytes >= POOL_THRESHOLD:
            if not hooks and self._pack_by_default(tensor, is_own):
                return
            track_saver(self)
            self.module = current_module()
            self.kept_by_policy = bool(hooks)

    @property
    def packed(self) -> "tuple[Unpacker, Any] | None":
        """The unpacker and the packed object; None if the tensor is kept."""
        # Read each once, in this order: another thread may release it meanwhile.
        packed, unpacker = self._packed, self._unpacker
        return None if unpacker is None else (unpacker, packed)

    def unpack(self) -> "Tensor":
        """Return the saved tensor.

        Raises:
            RuntimeError: after release; if the memory was changed in place since; if an unpack hook
                returned a tensor of another shape or dtype.
        """
        # Read each once, in this order: another thread may release it meanwhile.
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
                "Trying to backward through the graph a second time (or to read its saved tensors "
                f"after they have already been freed): an earlier backward() or grad() freed the "
                f"one that {self.origin()} saved. Specify retain_graph=True in that"
            )
        return self._rebuild(self._unpack(unpacker, packed))

    def unpack_array(self) -> NDArray[Any]:
        """Return the array of the saved tensor; see `unpack`."""
        packed, unpacker, tensor = self._packed, self._unpacker, self._tensor
        if tensor is not None:
            storage = tensor._storage
            if storage.version == self._version and storage.uid == self._uid:
                return tensor._array
        elif unpacker is not None:
            return self._unpack(unpacker, packed)._array
        return self.unpack()._array

    def _unpack(self, unpacker: Unpacker, packed: Any) -> "Tensor":
        self._check_packed(packed)
        tensor = unpacker.unpack(packed)
        self._check_packed(packed)
        self._check_unpacked(tensor)
        return tensor

    def register_hooks(
        self, pack: "Callable[[Tensor], Any]", unpack: "Callable[[Any], Tensor]"
    ) -> None:
        """Pack the tensor now with `pack`; from now on `unpack` makes it from the result.

        Raises:
            RuntimeError: if it is released, has hooks already, or was changed in place since.
        """
        if self._released:
            raise RuntimeError(
                "Calling register_hooks on a saved tensor after it has been freed, the one that "
                f"{self.origin()} saved; register hooks before it, or pass retain_graph=True to it"
            )
        tensor = self._tensor
        if tensor is None and self._packed_by_default:
            tensor = self.unpack()
        if tensor is None:
            raise RuntimeError(
                f"Calling register_hooks on a saved tensor of {self.origin()}, whose hooks have "
                "already been set (perhaps those of an enclosing saved_tensors_hooks or offload)"
            )
        for hook in (pack, unpack):
            if not callable(hook):
                raise TypeError(f"a hook must be callable, got {type(hook).__name__}")
        if self._tensor is not None and tensor._storage.version != self._version:
            raise self._changed(tensor)
        if self._pack(PairHooks(pack, unpack), tensor):
            self._tensor = None
            self._packed_by_default = False

    def release(self) -> None:
        """Drop the tensor, or the packed object."""
        self._released = True
        self._tensor = self._unpacker = self._packed = None

    def kept(self) -> "Tensor | None":
        """Return the kept tensor if it is as it was saved; None if it changed or is packed."""
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

    def _pack(self, hooks: SaveHooks, tensor: "Tensor", is_own: bool = False) -> bool:
        """Have `hooks` pack the tensor; return False if they leave it to be kept."""
        if type(tensor._array) is MetaArray and type(hooks) is not PairHooks and not meters:
            return False  # no memory to save
        storage, detached = tensor._storage, None
        version = storage.version
        # Operations of hooks, policies and stores are not recorded: else they would be packed, too.
        modes = grad_mode.state
        previous = modes.grad_mode, modes.grad_enabled
        try:
            modes.grad_mode = modes.grad_enabled = False
            if type(hooks) is PairHooks:
                detached = wrap(tensor._array, storage)
                packed = hooks.pack_tensor(detached)
            else:
                save = Save(tensor, self._node(), self._slot, self.is_output, is_own)
                packed = hooks.pack(save)
                detached = save._tensor
        finally:
            modes.grad_mode, modes.grad_enabled = previous
        if storage.version != version:
            raise RuntimeError(
                "A saved tensor pack hook is modifying its input in place: the tensor that "
                f"{self.origin()} saves was changed by {storage.changed_by}; work on a clone"
            )
        if packed is KEEP:
            return False
        self._unpacker = hooks.unpacker
        self._packed = packed
        self._storage = ref(storage)
        self._detached = None if detached is None else ref(detached)
        if isinstance(packed, TensorBase):
            self._packed_version = packed._storage.version
        self._shape_dtype = (tensor._array.shape, tensor._array.dtype)
        return True

    def _pack_by_default(self, tensor: "Tensor", is_own: bool) -> bool:
        """Have the default hooks pack a large tensor that can be recomputed; see `_pack`."""
        maker = tensor._grad_fn if tensor._base is None else tensor._base._grad_fn
        replay = None if maker is None else maker.replay
        # A parameter may be changed through its NumPy array, which is an error only if it is saved.
        if default_hooks is None or replay is None or replay.holds_parameters:
            return False
        if not self._pack(default_hooks(), tensor, is_own):
            return False
        self._tensor = None
        self._packed_by_default = True
        return True

    def _edge_is_current(self, tensor: "Tensor") -> bool:
        """Return whether the kept tensor still has the edge it was saved with."""
        node = self._edge[0]
        if self.is_output:
            return False
        if node is None or tensor._grad_fn is None:
            return (node is None) == (not tensor._requires_grad)
        return tensor._grad_fn is node

    def _check_packed(self, packed: Any) -> None:
        """Raise if a tensor that the pack hook returned or holds was changed in place since."""
        if isinstance(packed, TensorBase) and packed._storage.version != self._packed_version:
            raise self._changed(packed, packed._storage.version, packed._storage.changed_by)
        # A hook that holds its input holds the memory that was saved.
        detached = None if self._detached is None else self._detached()
        if detached is not None and detached._storage.version != self._version:
            raise self._changed(detached)

    def _check_unpacked(self, tensor: Any) -> None:
        if not isinstance(tensor, TensorBase):
            raise TypeError(
                "Output of saved tensor unpack_hook expected to be a Tensor but got result of type "
                f"{type(tensor).__name__}, for {self.origin()}"
            )
        shape, dtype = self._shape_dtype
        if tensor._array.shape != shape or tensor._array.dtype != dtype:
            raise RuntimeError(
                f"an unpack hook must return the packed tensor, but that of {self.origin()} "
                f"returned a {describe(tensor)} for a {dtype.name} tensor of shape {list(shape)}"
            )
        # If a hook returned the memory that was saved, its version counts.
        storage = self._storage()
        if (
            storage is not None
            and storage.version != self._version
            and np.may_share_memory(storage.root, tensor._array)
        ):
            raise self._changed(tensor, storage.version, storage.changed_by)

    def reach_by(self, view_edge: "Edge") -> None:
        """Have gradients of this output, which was written into a view, flow along `view_edge`.

        They do so while the view has this history, and go to the node itself afterwards.
        """
        node, output_nr = view_edge
        if node is not None:
            self._view_edge = ref(node), output_nr

    def _output_edge(self) -> "Edge":
        node = None if self._view_edge is None else self._view_edge[0]()
        if self._view_edge is None or node is None:
            return self._node(), self._edge[1]
        return node, self._view_edge[1]

    def _rebuild(self, tensor: "Tensor") -> "Tensor":
        node, output_nr = self._output_edge() if self.is_output else self._edge
        rebuilt = wrap(tensor._array, tensor._storage)
        if node is not None:
            node.attach(rebuilt, output_nr)
        return rebuilt

    def _changed(
        self, tensor: TensorBase, version: int | None = None, operation: str = ""
    ) -> RuntimeError:
        storage = tensor._storage
        return RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            "operation: the "
            f"{describe(tensor)} that {self.origin()} saved at version {self._version} is at "
            f"version {storage.version if version is None else version}, last changed in place by "
            f"{operation or storage.changed_by}; use the out-of-place form, or change a clone "
            "(autograd.detect_anomaly() tells the line that saved it)"
        )
