"""The node of one call of a checkpointed function: its forward run, and its recomputations."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from offgrad_storage.interrupts import interruptible, masked

from offgrad.autograd import engine, grad_mode, override_state, saved_tensor
from offgrad.autograd.node import Grads, Node, connect
from offgrad.autograd.saved_tensor import (
    KEEP,
    Save,
    SavedTensor,
    pop_hooks,
    push_hooks,
)
from offgrad.autograd.tensor_base import TensorBase, wrap
from offgrad.memory.storage import saver_observers
from offgrad.ops._core.autocast import current_autocast
from offgrad.ops._random import replay as draws
from offgrad.utils.checkpoint.save_log import (
    CheckpointError,
    SaveLog,
    difference,
    digest,
)

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


class _StopRecomputation(BaseException):
    """All requested tensors have been saved. Not an Exception, so that user code lets it pass."""

    def __init__(self, hooks: "_RecomputeHooks") -> None:
        super().__init__("checkpoint: the function is stopped early; let this exception propagate")
        self.hooks = hooks


class _InputNode(Node):
    """The node of a non-leaf input in a recomputation; gradients end here."""

    def run(self, grads: Grads) -> Grads:
        return ()


class _Placeholder:
    """Stands for a tensor among the kept arguments."""

    def __init__(self, slot: str, tensor: "Tensor") -> None:
        self.slot = slot
        self.requires_grad = tensor.requires_grad
        self.is_leaf = tensor.is_leaf
        self.digest: int | None = None


def _replace(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Return `value` with each instance of `kind` changed, in new lists, tuples and dicts."""
    if isinstance(value, kind):
        return change(value)
    if type(value) is dict:
        return {key: _replace(each, kind, change) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_replace(each, kind, change) for each in value)
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(_replace(each, kind, change) for each in value)
    return value


class Options(NamedTuple):
    """How a checkpoint runs.

    Attributes:
        metadata: compare operation, shape and dtype of each save.
        content: compare contents.
        debug: list all saves in errors.
        early_stop: end a recomputation at the last requested tensor.
        preserve_rng_state: draw the same random numbers in recomputations.
    """

    metadata: bool
    content: bool
    debug: bool
    early_stop: bool
    preserve_rng_state: bool


class _PassState:
    """The tensors that a backward pass requests of a checkpoint, and those recomputed for it.

    Attributes:
        requested: numbers of the saves that the pass will still unpack.
        recomputed: tensors, with their versions when saved, by number.
    """

    def __init__(self, requested: Iterable[int] = ()) -> None:
        self.requested = set(requested)
        self.recomputed: dict[int, tuple[Tensor, int]] = {}

    def clear(self) -> None:
        self.recomputed = {}


class Checkpoint(Node):
    """One call of a checkpointed function.

    As a node it saves the inputs; as an unpacker it recomputes the tensors that the nodes inside
    saved. It is not part of the graph: those nodes hold it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Any,
        recompute_context: AbstractContextManager[Any],
        options: Options,
    ) -> None:
        super().__init__()
        self.options = options
        self.save_log = SaveLog(options.debug)
        # False during the forward run, in which the function's own backward may unpack saves.
        self.is_complete = False
        self._function = function
        self._recompute_context = recompute_context
        self._draws: list[draws.Draw] | None = None
        self._modes = grad_mode.state.grad_mode, grad_mode.state.inference
        self._autocast = current_autocast()
        self._vmaps = override_state.state.levels, override_state.state.apply_function
        self._saved: dict[str, SavedTensor] = {}
        self._arguments = _replace(arguments, TensorBase, self._save)

    def _save(self, tensor: "Tensor") -> _Placeholder:
        slot = str(len(self._saved))
        saved = self._saved[slot] = SavedTensor(tensor, self, slot, (None, 0))
        for observer in tuple(saver_observers):
            observer(saved)
        placeholder = _Placeholder(slot, tensor)
        if self.options.content and saved.packed is not None:
            placeholder.digest = digest(tensor._array)
        return placeholder

    # Forward

    def call(self, context: AbstractContextManager[Any], args: Any, kwargs: Any) -> Any:
        """Return the function's result; record its saves and its random draws."""
        with masked, ExitStack() as stack:
            _enter(stack, _ForwardHooks(self))
            if self.options.preserve_rng_state:
                self._draws = stack.enter_context(draws.recording())
            with interruptible, context:
                result = self._function(*args, **kwargs)
                self.is_complete = True
        if not self.is_complete:
            raise RuntimeError(
                "checkpoint: the first context of context_fn must let exceptions pass, but it "
                "suppressed an exception of the function, which therefore has no result"
            )
        self.save_log.forget_digests()
        return result

    # Backward

    def sources(self) -> Iterable[SavedTensor]:
        """The inputs."""
        return self.saves()

    def plan(self, packed: Sequence[int]) -> Callable[[], None]:
        """Note the saves that the beginning pass will unpack; return the action for its end."""
        state = engine.state.passes[-1].per_pass[self] = _PassState(packed)
        return state.clear

    def unpack(self, packed: int) -> "Tensor":
        """Return save number `packed`; recompute all requested ones if it is not there.

        Raises:
            CheckpointError: if the function saves other tensors than in forward.
            RuntimeError: if the function changed in place a tensor that it had saved.
        """
        passes = engine.state.passes
        state = (passes[-1].per_pass.get(self) if passes else None) or _PassState()
        if packed not in state.recomputed:
            state.recomputed = self._recompute({packed, *state.requested})
        state.requested.discard(packed)
        tensor, version = state.recomputed.pop(packed)
        storage = tensor._storage
        if storage.version != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: {self.save_log.records[packed]}, saved inside a checkpoint at "
                f"version {version}, is at version {storage.version}, last changed in place by "
                f"{storage.changed_by}; use the out-of-place form, or change a clone"
            )
        return tensor

    def _recompute(self, requested: set[int]) -> "dict[int, tuple[Tensor, int]]":
        inputs_are_equal = True

        def load(placeholder: _Placeholder) -> "Tensor":
            nonlocal inputs_are_equal
            saved = self._saved[placeholder.slot].unpack()
            if placeholder.digest is not None and placeholder.digest != digest(saved._array):
                inputs_are_equal = False
            tensor = wrap(saved._array, saved._storage, requires_grad=placeholder.requires_grad)
            if not placeholder.is_leaf:
                connect(tensor, _InputNode())
            return tensor

        args, kwargs = _replace(self._arguments, _Placeholder, load)
        # After a lossy codec the contents differ from those of forward, rightly.
        hooks = _RecomputeHooks(self, requested, self.options.content and inputs_are_equal)
        try:
            with masked, ExitStack() as stack:
                stack.callback(grad_mode.state.set, *grad_mode.state.set(*self._modes))
                stack.enter_context(override_state.within(*self._vmaps))
                _enter(stack, hooks)
                if self._draws is not None:
                    stack.enter_context(draws.replaying(self._draws, hooks.mismatch))
                with interruptible, self._autocast(), self._recompute_context:
                    self._function(*args, **kwargs)
        except _StopRecomputation as stop:
            if stop.hooks is not hooks:
                raise
        hooks.check_end()
        return hooks.recomputed


def _enter(stack: ExitStack, hooks: "_ForwardHooks | _RecomputeHooks") -> None:
    """Pass saved tensors to `hooks` until `stack` closes."""
    push_hooks(hooks)
    stack.callback(pop_hooks, hooks)
    stack.callback(setattr, saved_tensor.state, "checkpointed", saved_tensor.state.checkpointed)
    saved_tensor.state.checkpointed = True


class _ForwardHooks:
    """The saved-tensor hooks of the forward run."""

    needs_replay = False

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.unpacker = checkpoint

    def pack(self, save: Save) -> Any:
        """Log the save and return its number; parameters are kept, since they stay in memory."""
        number = len(self.unpacker.save_log.records)
        with_digest = self.unpacker.options.content and not save.is_parameter
        self.unpacker.save_log.add(save, with_digest)
        return KEEP if save.is_parameter else number


class _RecomputeHooks:
    """The saved-tensor hooks of a recomputation: they collect the requested tensors and check that
    the saves are those of forward.

    Attributes:
        recomputed: the requested tensors so far, with their versions, by number.
    """

    needs_replay = False

    def __init__(self, checkpoint: Checkpoint, requested: set[int], compare_content: bool) -> None:
        self.unpacker = checkpoint
        self.recomputed: dict[int, tuple[Tensor, int]] = {}
        self._requested = requested
        self._compare_content = compare_content
        self._stops_early = checkpoint.options.early_stop or not checkpoint.is_complete
        self._save_log = SaveLog(checkpoint.options.debug)
        self._error = ""

    def pack(self, save: Save) -> Any:
        """Collect the tensor if it is requested. It is kept, too: the function's own backward may
        unpack it.

        Raises:
            CheckpointError: if it differs from the save of forward.
            _StopRecomputation: when all requested tensors have been saved.
        """
        if self._error:  # the function caught the exception and continued
            raise CheckpointError(self._error)
        number = len(self._save_log.records)
        forward = self.unpacker.save_log
        is_requested = number in self._requested
        self._save_log.add(save, self._compare_content and is_requested)
        if number >= len(forward.records):
            raise self.mismatch(
                f"it saved another tensor, {self._save_log.records[-1]}, after the {number} of "
                f"forward{_last_of(forward)}",
                "trying to save more tensors during recomputation than in forward: ",
            )
        if self.unpacker.options.metadata:
            changed = difference(number, forward, self._save_log)
            if changed:
                raise self.mismatch(changed, _OTHER_TENSORS)
        if is_requested:
            self.recomputed[number] = save.tensor, save.tensor._storage.version
        if self._stops_early and len(self.recomputed) == len(self._requested):
            raise _StopRecomputation(self)
        return KEEP

    def mismatch(self, description: str, rule: str = "") -> CheckpointError:
        """Return the error for a difference, and note it, since the function may catch it."""
        self._error = (
            f"checkpoint: {rule}the function must do in backward what it did in forward, but in "
            f"backward {description}. Remove from it everything that changes from call to call: "
            "random numbers other than offgrad's, counters, tensors that are changed in between"
        )
        if self.unpacker.options.debug:
            self._error += (
                f"\nSaved in forward:\n{self.unpacker.save_log}\nSaved now:\n{self._save_log}"
            )
        else:
            self._error += " (debug=True lists all saved tensors, with the lines that saved them)"
        return CheckpointError(self._error)

    def check_end(self) -> None:
        """Raise CheckpointError unless all expected tensors were saved."""
        if self._error:
            raise CheckpointError(self._error)
        count, expected = len(self._save_log.records), len(self.unpacker.save_log.records)
        is_short = count < expected and not self._stops_early
        if is_short or len(self.recomputed) < len(self._requested):
            raise self.mismatch(
                f"it saved {count} tensors instead of {expected}{_last_of(self._save_log)}; the "
                f"next one was {self.unpacker.save_log.records[count]}, in forward",
                "A different number of tensors was saved in forward and recomputation: ",
            )


_OTHER_TENSORS = (
    "Recomputed values for the following tensors have different metadata than in forward: "
)


def _last_of(save_log: SaveLog) -> str:
    return f", the last of them {save_log.records[-1]}" if save_log.records else ""
