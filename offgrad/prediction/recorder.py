"""SaveRecorder: records what training steps save for backward.

While it runs, sessions that the program enters do not apply their policies. The recorder holds what
is saved instead: the memory, not the `Storage`, so that it sees when the program drops it. Its own
work does not count in the times. The bits of all results stay the same.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from weakref import ref

import numpy as np
from offgrad_storage.interrupts import MaskedLock, masked

from offgrad import memory
from offgrad.autograd.saved_tensor import KEEP, Save, SavedTensor, pop_hooks, push_hooks
from offgrad.autograd.tensor_base import wrap
from offgrad.memory import Storage
from offgrad.memory.forks import forkables
from offgrad.nn.hooks.call_stack import calls
from offgrad.nn.hooks.registry import track_calls, untrack_calls
from offgrad.prediction.held_memory import DeathNote, HeldMemory, Packed
from offgrad.prediction.machine import machine_facts
from offgrad.prediction.recipes import Recipes
from offgrad.prediction.recording import Kind, Recipe, Recording, SavedMemory, SavedTensorRecord
from offgrad.session import scope
from offgrad.session.saved_array import Array, address

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor
    from offgrad.nn import Module

_MAX_EVENTS = 2_000_000
"""For one step; later ones are dropped."""


class _Known:
    """The number of a memory in the recording, and how the recorder holds it now."""

    __slots__ = ("held", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.held: ref[HeldMemory] | None = None


class _Step:
    """The recording of a step while it is made."""

    def __init__(self) -> None:
        self.recording = Recording(machine=machine_facts())
        self.began = time.perf_counter()
        self.own_seconds = 0.0
        self.memories: dict[int, _Known] = {}  # by the uid of the storage
        self.refs: dict[int, DeathNote] = {}
        self.last_nbytes = -1

        self._paused: float | None = None

    @property
    def now(self) -> float:
        """Seconds since the beginning, without the recorder's own."""
        at = time.perf_counter() if self._paused is None else self._paused
        return at - self.began - self.own_seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock inside the block."""
        if self._paused is not None:
            yield
            return
        self._paused = time.perf_counter()
        try:
            yield
        finally:
            self.own_seconds += time.perf_counter() - self._paused
            self._paused = None


class SaveRecorder:
    """Records steps; `recording` is the one that saved most.

    Enter it around training. Each `step` ends one step and begins the next. Without a call of
    `step`, all of the block is one step.

    Args:
        max_nbytes: how much memory that only backward needs may stay; the rest goes to the disk,
            and the time for that does not count. None for no bound.
        model: the root of qualified module names; None for the outermost module called.
        session: record what this session gets, and nothing else; None for all that is saved.

    Attributes:
        session: as given.
        on_pass_end: called when a backward pass has ended.

    Example:
        >>> with offgrad.prediction.SaveRecorder() as recorder:
        ...     offgrad.randn(256, 256, requires_grad=True).sin().sum().backward()
        >>> len(recorder.recording.saves)
        1
    """

    needs_replay = True

    def __init__(
        self,
        max_nbytes: int | str | None = None,
        model: "Module | None" = None,
        *,
        session: Any = None,
    ) -> None:
        self.session = session
        self.on_pass_end: Callable[[], None] = _nothing
        self._max_nbytes = None if max_nbytes is None else memory.parse_nbytes(max_nbytes)
        self._model = model
        self._step: _Step | None = None
        self._recording: Recording | None = None
        self._recipes = Recipes(self)
        self._is_busy = False  # in its own work, whose memory does not count
        self._alone_nbytes = 0  # held for backward alone
        self._alone: deque[ref[HeldMemory]] = deque()
        # From weak references, whose callbacks run no Python.
        self._freed: deque[DeathNote] = deque()
        self._done: deque[DeathNote] = deque()
        self._dropped: deque[DeathNote] = deque()
        self._gone: deque[DeathNote] = deque()
        self._refs: dict[int, DeathNote] = {}
        self._block = ExitStack()
        # Briefly held, but for reads and writes of what is above the bound.
        self.lock = MaskedLock(reentrant=True)
        forkables.add(self)
        memory.register_reclaimable(self)

    @property
    def recording(self) -> Recording:
        """Of the complete steps with a backward pass the one that saved most, else of all; among
        equals the latest, whose kernels are compiled.

        The last step of an epoch has often a smaller batch, and an evaluation is no training.

        Raises:
            RuntimeError: there is none yet.
        """
        if self._recording is None:
            raise RuntimeError("no step was recorded; enter the recorder around one")
        return self._recording

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with masked:
            if kind is None:
                self.step()
            self.stop()

    @property
    def has_recording(self) -> bool:
        """Whether a step is complete."""
        return self._recording is not None

    @property
    def is_running(self) -> bool:
        """Whether it records."""
        return self._step is not None

    @property
    def has_saves(self) -> bool:
        """Whether the step so far has saved anything."""
        return self._step is not None and bool(self._step.recording.saves)

    def start(self) -> None:
        """Begin to record, unless it records already."""
        with masked, ExitStack() as block:
            if self._step is not None:
                return
            if self.session is None:
                push_hooks(self)
                block.callback(pop_hooks, self)
            track_calls()
            block.callback(untrack_calls)
            scope.stand_ins.append(self)
            block.callback(scope.stand_ins.remove, self)
            self._step = _Step()
            block.enter_context(memory.observe(self._on_memory_change))
            self._note_memory(memory.allocated())
            self._block = block.pop_all()

    def stop(self) -> None:
        """Record no more, and drop the step that has not ended."""
        with masked:
            self._block.close()
            self._step = None

    def step(self) -> None:
        """End a step, if it saved anything, and begin the next."""
        with masked:
            step = self._step
            if step is None:
                return
            self._look(memory.allocated())
            if step.recording.saves:
                step.recording.seconds = step.now
                known = self._recording
                if known is None or _weight(step.recording) >= _weight(known):
                    self._recording = step.recording
            self._step = _Step()
            self._note_memory(memory.allocated())

    # Forward

    @property
    def unpacker(self) -> "SaveRecorder":
        """Itself."""
        return self

    def pack(self, save: Save) -> Any:
        """Record a save, and hold its memory. See `SaveHooks.pack`."""
        step = self._step
        if step is None or len(step.recording.kinds) >= _MAX_EVENTS:
            return KEEP
        with self.lock, step.paused():
            self._look(memory.allocated())
            number = len(step.recording.saves)
            step.recording.saves.append(self._record(save, step))
            step.recording.add(Kind.SAVE, step.now, number)
            if save.is_parameter or not save.array.nbytes:
                return KEEP
            packed = Packed(number, self._hold(save.storage, step), save, step)
            self._watch(packed, self._dropped, number, step)
            return packed

    def _record(self, save: Save, step: _Step) -> SavedTensorRecord:
        array, maker, call = save.array, save.owner._grad_fn, calls.innermost
        return SavedTensorRecord(
            op=save.op,
            slot=save.slot,
            module="" if call is None else call.name(self._model),
            dtype=array.dtype.name,
            shape=array.shape,
            is_parameter=save.is_parameter,
            is_output=save.is_output,
            made_by="" if maker is None else type(maker).__name__,
            is_data=save.is_data,
            node_covers_storage=save.node_covers_storage,
            memory=self._memory_of(save.storage, step),
            begin=address(array) - address(save.storage.root),
            strides=array.strides,
            recipe=self._recipe_of(save, step),
            ratios={"packbits": 0.125} if array.dtype == np.bool_ else {},
        )

    def _recipe_of(self, save: Save, step: _Step) -> Recipe | None:
        self._is_busy = True
        try:
            return self._recipes.of(save, step)
        finally:
            self._is_busy = False

    def _memory_of(self, storage: Storage, step: _Step) -> int:
        """Return the number of a memory in the recording."""
        known = step.memories.get(storage.uid)
        if known is not None:
            return known.number
        number = len(step.recording.memories)
        step.recording.memories.append(SavedMemory(_extent(storage.root), storage.external))
        step.memories[storage.uid] = known = _Known(number)
        self._watch(storage, self._freed, storage.uid, step)
        return number

    def _hold(self, storage: Storage, step: _Step) -> HeldMemory:
        known = step.memories[storage.uid]
        held = None if known.held is None else known.held()
        if held is None or held.version != storage.version:
            held = HeldMemory(known.number, storage, self._on_change)
            known.held = ref(held)
            storage.add_pending_write(held)
            storage.is_noted = True  # backward gets tensors over this memory
            self._watch(held, self._gone, known.number, step).room = held.room
        return held

    def _watch(self, target: Any, deaths: "deque[Any]", number: int, step: _Step) -> DeathNote:
        reference = DeathNote(target, deaths.append)
        reference.number, reference.step = number, step
        # What outlives its step is of no interest to later ones, but for the memory that it takes.
        refs = self._refs if deaths is self._gone else step.refs
        refs[id(reference)] = reference
        return reference

    # Memory

    def _on_change(self, held: HeldMemory) -> None:
        """The program is about to change a memory that backward needs as it is."""
        step = self._step
        with self.lock, nullcontext() if step is None else step.paused():
            self._look(memory.allocated())
            held.become_copy()
            if step is not None:
                self._take_room(held)
                step.recording.add(Kind.CHANGE, step.now, held.number)

    def _on_memory_change(self, nbytes: int) -> None:
        """Note a growth of memory. After a decrease the next look notes what is left."""
        step = self._step
        if step is None or self._is_busy or len(step.recording.kinds) >= _MAX_EVENTS:
            return
        if nbytes > step.last_nbytes:
            self._look(nbytes)
        else:
            step.last_nbytes = nbytes

    def _look(self, allocated: int) -> None:
        """Note deaths since the last look, and the memory now."""
        with self.lock:
            step = self._step
            while self._freed:
                reference = self._freed.popleft()
                reference.step.refs.pop(id(reference), None)
                known = reference.step.memories.get(reference.number)
                if known is None:
                    continue
                held = None if known.held is None else known.held()
                if held is not None:
                    self._take_room(held)
                if reference.step is step:
                    step.recording.add(Kind.FREE, step.now, known.number)
            for deaths, kind in ((self._done, Kind.DONE), (self._dropped, Kind.DROP)):
                while deaths:
                    reference = deaths.popleft()
                    reference.step.refs.pop(id(reference), None)
                    if reference.step is step:
                        step.recording.add(kind, step.now, reference.number)
            while self._gone:
                reference = self._gone.popleft()
                self._refs.pop(id(reference), None)
                self._alone_nbytes -= reference.room.nbytes
            self._note_memory(allocated)

    def _take_room(self, held: HeldMemory) -> None:
        """Count `held` as memory that only backward needs, and spill some above the bound."""
        if held.room.nbytes or not held.is_pooled or held.root is None:
            return
        held.room.nbytes = held.root.nbytes
        self._alone_nbytes += held.root.nbytes
        self._alone.append(ref(held))
        self._shrink(self._max_nbytes)

    def _shrink(self, max_nbytes: int | None) -> None:
        """Spill the oldest memory above a bound."""
        bound = self._alone_nbytes if max_nbytes is None else max_nbytes
        while self._alone and (self._alone_nbytes > bound or not self._alone[0]()):
            oldest = self._alone.popleft()()
            if oldest is not None and oldest.room.nbytes and oldest.spill():
                self._alone_nbytes -= oldest.room.nbytes
                oldest.room.nbytes = 0

    def reclaim(self) -> bool:
        """Spill all that only backward needs. See `offgrad.memory.register_reclaimable`."""
        with masked:
            if not self.lock.acquire(blocking=False):
                return True
            try:
                step, before = self._step, self._alone_nbytes
                with nullcontext() if step is None else step.paused():
                    self._look(memory.allocated())
                    self._shrink(0)
                return self._alone_nbytes < before
            finally:
                self.lock.release()

    def held_by_purpose(self) -> dict[str, int]:
        """Return what only backward needs, for messages of the memory limit."""
        return {"tensors of a recording": self._alone_nbytes}

    def _note_memory(self, allocated: int) -> None:
        step = self._step
        if step is not None:
            step.last_nbytes = allocated
            rest = max(0, allocated - self._alone_nbytes)
            step.recording.add(Kind.MEMORY, step.now, rest)

    # Backward

    def plan(self, packed: Sequence[Packed]) -> Callable[[], None]:
        """Record the order of use. See `Unpacker.plan`."""
        step = self._step
        if step is None:
            return _nothing
        self._look(memory.allocated())
        number = len(step.recording.passes)
        step.recording.passes.append([each.number for each in packed if each.step is step])
        step.recording.add(Kind.BEGIN, step.now, number)
        return lambda: self._end_pass(step, number)

    def _end_pass(self, step: _Step, number: int) -> None:
        if step is self._step:
            self._look(memory.allocated())
            step.recording.add(Kind.END, step.now, number)
            self.on_pass_end()

    def sources(self) -> Iterable[SavedTensor]:
        """Return nothing. See `Unpacker.sources`."""
        return ()

    def unpack(self, packed: Packed) -> "Tensor":
        """Return the saved tensor, and record its use."""
        step, held = self._step, packed.held
        with self.lock, nullcontext() if step is None else step.paused():
            if step is not None and not self._is_busy:
                self._look(memory.allocated())
                if packed.step is step:
                    step.recording.add(Kind.USE, step.now, packed.number)
            was_spilled, was_busy, self._is_busy = held.root is None, self._is_busy, True
            try:
                root = held.bring_back()
            finally:
                self._is_busy = was_busy
            array = packed.view(root)
            storage = held.living_storage()
            if storage is None:
                storage = Storage(root, external=packed.array is not None)
            if was_spilled and step is not None:
                self._take_room(held)
            if step is not None and packed.step is step and not self._is_busy:
                self._watch(array, self._done, packed.number, step)
            return wrap(array, storage)

    def forget_other_threads(self) -> None:
        """In a forked child: nothing of theirs is left."""


def _weight(recording: Recording) -> tuple[bool, int]:
    return bool(recording.passes), recording.saved_nbytes


def _extent(root: Array) -> int:
    """Return the bytes from the first element of an array to the last, both included."""
    if not root.size:
        return 0
    steps = zip(root.shape, root.strides, strict=True)
    return int(sum((n - 1) * abs(step) for n, step in steps)) + root.itemsize


def _nothing() -> None:
    pass
