"""Tape: what happens while a profile is active, noted as it happens.

Memory changes in any thread, also inside garbage collections, so that noting an event is one
`append`, which takes no lock. `Account` turns events into figures, some thousands at a time.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from threading import get_ident
from time import monotonic, perf_counter
from typing import Any
from weakref import ref

from offgrad_storage.executor.jobs import Job
from offgrad_storage.executor.observers import observers as store_observers
from offgrad_storage.interrupts import MaskedLock, masked
from offgrad_storage.memory.buffer_pool import lease_of

from offgrad import memory
from offgrad.autograd import engine
from offgrad.autograd.node import Node
from offgrad.autograd.op import Op, add_op_observer, remove_op_observer
from offgrad.autograd.saved_tensor import SavedTensor
from offgrad.memory import Storage
from offgrad.memory.allocator import counter
from offgrad.memory.forks import forkables
from offgrad.memory.storage import (
    Saver,
    add_role_observer,
    large_storages,
    remove_role_observer,
    saver_observers,
    savers,
)
from offgrad.nn.hooks import call_stack
from offgrad.nn.hooks.call_stack import Call, calls
from offgrad.nn.hooks.registry import track_calls, untrack_calls
from offgrad.optim.hooks import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from offgrad.profiler import events
from offgrad.profiler.events import MAX_EVENTS, Event, Running
from offgrad.profiler.names import Names
from offgrad.profiler.owners import kept_owner, owner_of
from offgrad.profiler.sites import UNKNOWN, find_site
from offgrad.session.saved_array import PackedTensor


class Tape:
    """Notes events while it is open.

    Attributes:
        lock: None, since a fork does not wait for passes to begin or end.

    Args:
        is_full: called by a thread that finds many events waiting.
        detailed: whether to note what memory is for; else only totals and passes.
    """

    lock = None

    def __init__(self, is_full: Callable[[], None], *, detailed: bool) -> None:
        self._is_detailed = detailed
        # Of the backward pass for which the sum was largest; only without details.
        self.saved_by_module: dict[str, int] = {}
        self.events: deque[Event | ref[SavedTensor]] = deque()
        self._on_saver_death = self.events.append  # in C, see `offgrad_storage.memory.counter`
        self.began = perf_counter()
        self._is_full = is_full
        self._running = Running()
        self._first = Node().sequence_nr
        self._names = Names()
        self._phase_lock = MaskedLock()
        self._passes: list[int] = []  # the threads that run one
        self._updates: list[int] = []  # the threads in which an optimizer steps
        self._in_forward = False
        self._phase = "other"
        self._open = ExitStack()
        forkables.add(self)

    # Opening and closing

    def open(self) -> None:
        """Begin to observe; events of what exists already come first."""
        key = object()
        with masked:
            counter.settle()
            stack = self._open
            counter.observers[key] = self._on_memory if self._is_detailed else self._on_total
            stack.callback(counter.observers.pop, key, None)
            engine.observers.append(self)
            stack.callback(_remove, engine.observers, self)
            track_calls()
            stack.callback(untrack_calls)
            if self._is_detailed:
                self._note_existing()
                self._observe_details(stack)

    def _observe_details(self, stack: ExitStack) -> None:
        add_role_observer(self._on_role)
        stack.callback(remove_role_observer, self._on_role)
        saver_observers.append(self._on_saver)
        stack.callback(_remove, saver_observers, self._on_saver)
        call_stack.observers.append(self._on_call)
        stack.callback(_remove, call_stack.observers, self._on_call)
        store_observers.append(self)
        stack.callback(_remove, store_observers, self)
        for handle in (
            register_optimizer_step_pre_hook(self._on_update),
            register_optimizer_step_post_hook(self._on_updated),
        ):
            stack.callback(handle.remove)
        add_op_observer(self._on_op)
        stack.callback(remove_op_observer, self._on_op)

    def close(self) -> None:
        """End observing."""
        with masked:
            counter.settle()
            self._open.close()

    def forget_other_threads(self) -> None:
        """In a forked child: their passes do not run."""
        thread = get_ident()
        self._passes = [each for each in self._passes if each == thread]
        self._updates = [each for each in self._updates if each == thread]
        self._note_phase()

    # Memory

    def _note_existing(self) -> None:
        now = self.began
        note = self.events.append
        for reference, nbytes in counter.living():
            owner = reference()
            if owner is not None:
                note(
                    (events.ADD, now, reference, nbytes, id(owner), None, None, None, UNKNOWN, None)
                )
                if isinstance(owner, Storage):
                    self._note_storage(owner)
        for storage in large_storages:
            self._note_storage(storage)
        for saver in savers:
            if isinstance(saver, SavedTensor):
                self._note_saved(saver, saver.origin().partition(".")[0], saver.module, now)

    def _note_storage(self, storage: Storage) -> None:
        owner = owner_of(storage)
        if owner is not None:
            array = None if storage.is_paged else storage.root
            if array is not None:
                self.events.append((events.SHAPE, self.began, owner, array.shape, array.dtype))
            self.events.append((events.ROLE, self.began, owner, storage.role))

    def _on_total(self, count: int, reference: Any, nbytes: int) -> None:
        self.events.append((events.TOTAL, perf_counter(), count))
        if len(self.events) > MAX_EVENTS:
            self._is_full()

    def _on_memory(self, count: int, reference: Any, nbytes: int) -> None:
        now = perf_counter()
        if nbytes < 0:
            self.events.append((events.DIE, now, reference))
            return
        running = self._running
        purpose, site = find_site(sys._getframe(1))
        owner = id(reference())
        made = (running.op, running.node, calls.innermost, purpose, site)
        self.events.append((events.ADD, now, reference, nbytes, owner, *made))
        if len(self.events) > MAX_EVENTS:
            self._is_full()

    def _on_role(self, storage: Storage, role: str) -> None:
        owner = owner_of(storage)
        if owner is not None:
            self.events.append((events.ROLE, perf_counter(), owner, role))

    # Operations and modules

    def _on_op(self, apply: Callable[..., list[Any]], cls: type[Op], *args: Any) -> list[Any]:
        running = self._running
        outer, running.op = running.op, cls
        call = calls.innermost
        if self._phase == "other" and call is not None:
            self._begin_forward()
        began = perf_counter()
        try:
            outputs = apply(cls, *args)
        finally:
            running.op = outer
        now = perf_counter()
        nbytes = 0
        note = self.events.append
        if not cls.is_view:
            for each in outputs:
                if each is not None:
                    array = each._array
                    nbytes += array.nbytes
                    owner = owner_of(each._storage)
                    if owner is not None:
                        note((events.SHAPE, now, owner, array.shape, array.dtype))
        if outer is None:
            note((events.OP, now, began, running.thread, cls, nbytes))
        first = outputs[0]
        node = None if first is None else first._grad_fn
        if type(node) is cls:
            if node._origin is None:
                node._origin = call, find_site(sys._getframe(1))[1]
            for saved in node._saved.values():
                self._note_saved(saved, cls.__name__, call, now)
            if self._phase == "other":
                self._begin_forward()
        return outputs

    def _note_names(self, names: Iterable[tuple[Storage, str, str, str]]) -> None:
        now = perf_counter()
        for storage, op, slot, module in names:
            owner = owner_of(storage)
            if owner is not None:
                self.events.append((events.NAME, now, owner, op, slot, module))
                if not storage.is_paged:
                    array = storage.root
                    self.events.append((events.SHAPE, now, owner, array.shape, array.dtype))

    def _note_saved(self, saved: SavedTensor, op: str, module: Any, now: float) -> None:
        owner = kept_owner(saved)
        if owner is not None:
            tensor = saved._tensor
            if tensor is not None and tensor._spec is None:
                array = tensor._array
                self.events.append((events.SHAPE, now, owner, array.shape, array.dtype))
            death = ref(saved, self._on_saver_death)
            self.events.append((events.SAVE, now, owner, id(saved), op, saved._slot, module, death))

    def _on_saver(self, saver: Saver) -> None:
        """What a custom Function or a checkpoint saves; `_on_op` notes what operations save."""
        if isinstance(saver, SavedTensor):
            node = saver._node()
            if node is not None and not isinstance(node, Op):
                self._note_saved(saver, node.name(), calls.innermost, perf_counter())

    def _on_call(self, call: Call) -> Callable[[], None]:
        thread = self._running.thread
        if call.caller is None:
            self._names.add_root(call.module)
        self.events.append((events.ENTER, perf_counter(), thread, call))
        if self._phase == "other":
            self._begin_forward()

        def end() -> None:
            self.events.append((events.EXIT, perf_counter(), thread, call))

        return end

    # Stores

    def on_hold(self, entry: Any, array: Any) -> None:
        """A store holds an array until it is written; see `StoreObserver`."""
        lease = lease_of(array)
        if lease is not None:
            self.events.append((events.FLY, perf_counter(), id(lease), id(entry)))

    def on_captured(self, entry: Any) -> None:
        """A store no longer holds the array of an entry."""
        self.events.append((events.LAND, perf_counter(), id(entry)))

    def on_job_end(self, job: Job) -> None:
        """A read, a write or other work of a store has ended."""
        now = perf_counter()
        began = now - (monotonic() - job.began)
        self.events.append((events.IO, now, began, job.thread, job.action, job.nbytes))

    # Phases

    def begin_pass(self, order: engine.Order) -> Callable[[Iterable[Any]], Iterable[Any]] | None:
        """A backward pass begins; see `engine.PassObserver`."""
        if not self._is_detailed:
            self._begin_plain_pass()
            return None
        now = perf_counter()
        for node, _ in order:
            # Other nodes' saves were noted as they happened; of these, small ones were not.
            if not isinstance(node, Op) or node.sequence_nr < self._first:
                for saved in node.saves():
                    self._note_saved(saved, node.name(), None, now)
        with self._phase_lock:
            self._passes.append(get_ident())
            self._note_phase()
        return self._watch

    def _begin_plain_pass(self) -> None:
        saved = memory.saved_by_module()
        with self._phase_lock:
            if sum(saved.values()) > sum(self.saved_by_module.values()):
                self.saved_by_module = saved
            self._passes.append(get_ident())
            self._note_phase()

    def end_pass(self) -> None:
        """The pass has ended."""
        thread = get_ident()
        with self._phase_lock:
            # One that began before the recording is seen only to end.
            if thread in self._passes:
                self._passes.remove(thread)
            self._in_forward = False
            self._note_phase()
        self._note_names(self._names.gradients())

    def _watch(self, order: Iterable[tuple[Node, bool]]) -> Iterator[tuple[Node, bool]]:
        running, note = self._running, self.events.append
        thread, outer = running.thread, running.node
        kept: list[tuple[SavedTensor, int]] = []
        try:
            for step in order:
                node = step[0]
                now = perf_counter()
                name, origin = node.name(), node._origin
                note((events.NODE, now, thread, name, origin))
                self._note_released(kept, now)
                kept = []
                for saved in node.saves():
                    owner = kept_owner(saved)
                    if owner is not None:
                        kept.append((saved, owner))
                    elif isinstance(saved._packed, PackedTensor):
                        self._note_use(saved._packed, now)
                running.node = name, origin
                yield step
        finally:
            now = perf_counter()
            running.node = outer
            self._note_released(kept, now)
            note((events.NODE, now, thread, "", None))
            self._note_names(self._names.parameters())

    def _note_released(self, kept: list[tuple[SavedTensor, int]], now: float) -> None:
        for saved, owner in kept:
            if saved._released:
                self.events.append((events.RELEASE, now, owner, id(saved)))

    def _note_use(self, packed: PackedTensor, now: float) -> None:
        """What was read ahead for a tensor is about to be used."""
        stored = packed.saved.stored
        buffer = None if stored is None else stored.buffer
        lease = lease_of(buffer)
        if lease is not None:
            self.events.append((events.USE, now, id(lease)))

    def _on_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        with self._phase_lock:
            # An error may have ended an earlier one of this thread.
            self._updates = [each for each in self._updates if each != get_ident()]
            self._updates.append(get_ident())
            self._in_forward = False
            self._note_phase()

    def _on_updated(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        thread = get_ident()
        with self._phase_lock:
            if thread in self._updates:
                self._updates.remove(thread)
            self._note_phase()
        self._note_names(self._names.states(optimizer))

    def _begin_forward(self) -> None:
        with self._phase_lock:
            self._in_forward = True
            self._note_phase()

    def step(self) -> None:
        """A step has ended."""
        with self._phase_lock:
            self._in_forward = False
            self._updates.clear()  # an error may have ended them
            memory.allocated()
            self.events.append((events.STEP, perf_counter()))
            self._note_phase()

    def _note_phase(self) -> None:
        if self._passes:
            phase = "backward"
        elif self._updates:
            phase = "optimizer"
        else:
            phase = "forward" if self._in_forward else "other"
        if phase != self._phase:
            memory.allocated()  # deaths before the phase count before it
            self._phase = phase
            self.events.append((events.PHASE, perf_counter(), phase))


def _remove(items: list[Any], item: Any) -> None:
    if item in items:
        items.remove(item)
