"""One call of a checkpointed function: its run in forward, and those in backward."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from offgrad.autograd import engine, grad_mode, saved_tensor
from offgrad.autograd.node import Grads, Node, connect
from offgrad.autograd.saved_tensor import (
    KEEP,
    Save,
    SavedTensor,
    pop_hooks,
    push_hooks,
)
from offgrad.autograd.tensor_base import TensorBase, wrap
from offgrad.ops._random import replay as draws
from offgrad.utils.checkpoint.save_log import (
    CheckpointError,
    Facts,
    difference,
    digest,
)

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


class _Stop(BaseException):
    """All that a recomputation is for has been saved. No `except Exception` of a user's gets it."""

    def __init__(self, run: "_Again") -> None:
        super().__init__("a checkpoint's function is left early; let this exception pass")
        self.run = run


class _Input(Node):
    """What made an input of a function that runs again; its gradients go nowhere from here."""

    def run(self, grads: Grads) -> Grads:
        return ()


class _Placeholder:
    """Stands for a tensor among the arguments."""

    def __init__(self, slot: str, tensor: "Tensor") -> None:
        self.slot = slot
        self.requires_grad = tensor.requires_grad
        self.is_leaf = tensor.is_leaf
        self.digest: int | None = None


def _replace(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Return `value`, lists, tuples and dicts made anew, with each `kind` in it changed."""
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
        metadata: whether operation, shape and dtype of each save are compared.
        content: whether contents are.
        debug: whether errors list all saves.
        early_stop: whether a run in backward ends with the last tensor that is wanted.
        preserve_rng_state: whether it draws the same random numbers.
    """

    metadata: bool
    content: bool
    debug: bool
    early_stop: bool
    preserve_rng_state: bool


class _Values:
    """What one backward pass wants of a checkpoint, and what has been computed of it."""

    def __init__(self, wanted: Iterable[int] = ()) -> None:
        self.wanted = set(wanted)
        self.found: dict[int, tuple[Tensor, int]] = {}

    def clear(self) -> None:
        """The pass is over."""
        self.found = {}


class Checkpoint(Node):
    """One call of a checkpointed function: it saves the inputs, as a node, and reads for all nodes
    that the function recorded. It is not part of the graph: they hold it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Any,
        context: AbstractContextManager[Any],
        options: Options,
    ) -> None:
        super().__init__()
        self.options = options
        self.facts = Facts(options.debug)
        # False while the function runs: its own backward may want what it saved so far.
        self.is_complete = False
        self._function = function
        self._context = context
        self._draws: list[draws.Draw] | None = None
        self._modes = grad_mode.state.grad_mode, grad_mode.state.inference
        self._saved: dict[str, SavedTensor] = {}
        self._arguments = _replace(arguments, TensorBase, self._save)

    def _save(self, tensor: "Tensor") -> _Placeholder:
        slot = str(len(self._saved))
        saved = self._saved[slot] = SavedTensor(tensor, self, slot, (None, 0))
        placeholder = _Placeholder(slot, tensor)
        if self.options.content and saved.packed is not None:
            placeholder.digest = digest(tensor._array)
        return placeholder

    # Forward

    def call(self, context: AbstractContextManager[Any], args: Any, kwargs: Any) -> Any:
        """Return what the function returns, noting what it saves and which numbers it draws."""
        with ExitStack() as ends:
            _enter(ends, _First(self))
            if self.options.preserve_rng_state:
                self._draws = ends.enter_context(draws.recording())
            with context:
                result = self._function(*args, **kwargs)
                self.is_complete = True
        if not self.is_complete:
            raise RuntimeError(
                "checkpoint: the first context of context_fn must let exceptions pass, but it "
                "suppressed one of the function, which so has no result"
            )
        self.facts.forget_digests()
        return result

    # Backward

    def sources(self) -> Iterable[SavedTensor]:
        """The inputs."""
        return self.saves()

    def plan(self, packed: Sequence[int]) -> Callable[[], None]:
        """Learn what the pass that begins wants."""
        values = engine.state.passes[-1].per_pass[self] = _Values(packed)
        return values.clear

    def unpack(self, packed: int) -> "Tensor":
        """Return what was saved as number `packed`; run the function again unless it is there.

        Raises:
            CheckpointError: if the function does something else than in forward.
            RuntimeError: if the function changed in place what it saved.
        """
        passes = engine.state.passes
        values = (passes[-1].per_pass.get(self) if passes else None) or _Values()
        if packed not in values.found:
            values.found = self._run_again({packed, *values.wanted})
        values.wanted.discard(packed)
        tensor, version = values.found.pop(packed)
        storage = tensor._storage
        if storage.version != version:
            raise RuntimeError(
                "a tensor needed for backward must not be changed in place, but "
                f"{self.facts.known[packed]}, saved inside a checkpoint at version {version}, is "
                f"at version {storage.version}, last changed by {storage.changed_by}; use the "
                "out-of-place form, or change a clone"
            )
        return tensor

    def _run_again(self, wanted: set[int]) -> "dict[int, tuple[Tensor, int]]":
        is_same = True

        def load(placeholder: _Placeholder) -> "Tensor":
            nonlocal is_same
            saved = self._saved[placeholder.slot].unpack()
            if placeholder.digest is not None and placeholder.digest != digest(saved._array):
                is_same = False
            tensor = wrap(saved._array, saved._storage, requires_grad=placeholder.requires_grad)
            if not placeholder.is_leaf:
                connect(tensor, _Input())
            return tensor

        args, kwargs = _replace(self._arguments, _Placeholder, load)
        # After a lossy codec contents are not those of forward, and not expected to be.
        again = _Again(self, wanted, self.options.content and is_same)
        try:
            with ExitStack() as ends:
                ends.callback(grad_mode.state.set, *grad_mode.state.set(*self._modes))
                _enter(ends, again)
                if self._draws is not None:
                    ends.enter_context(draws.replaying(self._draws, again.differs))
                with self._context:
                    self._function(*args, **kwargs)
        except _Stop as stop:
            if stop.run is not again:
                raise
        again.check_end()
        return again.found


def _enter(ends: ExitStack, hooks: "_First | _Again") -> None:
    """Let what is saved go to `hooks` until the end."""
    push_hooks(hooks)
    ends.callback(pop_hooks, hooks)
    ends.callback(setattr, saved_tensor.state, "checkpointed", saved_tensor.state.checkpointed)
    saved_tensor.state.checkpointed = True


class _First:
    """The hooks of a function's run in forward."""

    needs_replay = False

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.unpacker = checkpoint

    def pack(self, save: Save) -> Any:
        """Note the facts; return a number, unless it is a parameter, which stays anyway."""
        number = len(self.unpacker.facts.known)
        content = self.unpacker.options.content and not save.is_parameter
        self.unpacker.facts.note(save, content)
        return KEEP if save.is_parameter else number


class _Again:
    """The hooks of a function's run in backward: they take what is wanted, and see that it is what
    it was.
    """

    needs_replay = False

    def __init__(self, checkpoint: Checkpoint, wanted: set[int], content: bool) -> None:
        self.unpacker = checkpoint
        self.found: dict[int, tuple[Tensor, int]] = {}
        self._wanted = wanted
        self._content = content
        self._stops = checkpoint.options.early_stop or not checkpoint.is_complete
        self._facts = Facts(checkpoint.options.debug)
        self._error = ""

    def pack(self, save: Save) -> Any:
        """Keep the tensor, which the function's own backward may want, and remember it if wanted.

        Raises:
            CheckpointError: if it is not what was saved in forward.
            _Stop: when all that is wanted was saved.
        """
        if self._error:  # the function went on
            raise CheckpointError(self._error)
        number = len(self._facts.known)
        forward = self.unpacker.facts
        is_wanted = number in self._wanted
        self._facts.note(save, self._content and is_wanted)
        if number >= len(forward.known):
            raise self.differs(
                f"it saved another tensor, {self._facts.known[-1]}, after the {number} of forward"
                f"{_last(forward)}"
            )
        if self.unpacker.options.metadata and (what := difference(number, forward, self._facts)):
            raise self.differs(what)
        if is_wanted:
            self.found[number] = save.tensor, save.tensor._storage.version
        if self._stops and len(self.found) == len(self._wanted):
            raise _Stop(self)
        return KEEP

    def differs(self, what: str) -> CheckpointError:
        """Return the error that says so, and remember it: the function may catch it."""
        self._error = (
            "checkpoint: the function must do in backward what it did in forward, but in backward "
            f"{what}. Take out of it what changes from call to call: random numbers other than "
            "offgrad's, counters, tensors that are changed in between"
        )
        if self.unpacker.options.debug:
            self._error += f"\nSaved in forward:\n{self.unpacker.facts}\nSaved now:\n{self._facts}"
        else:
            self._error += " (debug=True lists all it saves, and where)"
        return CheckpointError(self._error)

    def check_end(self) -> None:
        """Raise unless all was saved that should have been."""
        if self._error:
            raise CheckpointError(self._error)
        count, expected = len(self._facts.known), len(self.unpacker.facts.known)
        is_short = count < expected and not self._stops
        if is_short or len(self.found) < len(self._wanted):
            raise self.differs(
                f"it saved {count} tensors instead of {expected}{_last(self._facts)}; the next one "
                f"was {self.unpacker.facts.known[count]}, in forward"
            )


def _last(facts: Facts) -> str:
    return f", the last of them {facts.known[-1]}" if facts.known else ""
