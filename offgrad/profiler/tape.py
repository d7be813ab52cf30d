"""Tape: what happens while a profile is active, noted as it happens.

Memory changes in any thread, also inside garbage collections, so that noting an event is one
`append`, which takes no lock. `Account` turns events into figures, some thousands at a time.
"""

import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack
from time import monotonic, perf_counter
from typing import Any
from weakref import ref

from offgrad_storage.executor.jobs import Job
from offgrad_storage.executor.observers import observers as store_observers
from offgrad_storage.interrupts import masked
from offgrad_storage.memory.buffer_pool import lease_of

from offgrad import memory
from offgrad.autograd import engine, profiler
from offgrad.autograd.node import Node
from offgrad.autograd.op import Op, add_op_observer, remove_op_observer
from offgrad.autograd.saved_tensor import SavedTensor
from offgrad.memory import Storage
from offgrad.memory.allocator import counter
from offgrad.memory.forks import forkables
from offgrad.memory.storage import (
    OTHER_TENSORS,
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
from offgrad.profiler.events import MAX_EVENTS, Event, Place, Threads, place_of
from offgrad.profiler.names import Names
from offgrad.profiler.owners import kept_owner, owner_of
from offgrad.profiler.phases import Phases
from offgrad.profiler.sites import UNKNOWN, find_site, site_of_op
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
        self._threads = Threads()
        self._unknown: set[int] = set()  # storages from before without a role, by uid
        self._first = Node().sequence_nr
        self._names = Names()
        self._phases = Phases(self.events)
        self.step = self._phases.step
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
        profiler._observers.append(self._on_mark)
        stack.callback(_remove, profiler._observers, self._on_mark)
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
        self._phases.forget_other_threads()

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
            if storage.role == OTHER_TENSORS:
                self._unknown.add(storage.uid)
            array = None if storage.is_paged else storage.root
            form = (None, None) if array is None else (array.shape, array.dtype)
            self.events.append((events.ROLE, self.began, owner, storage.role, *form))

    def _on_total(self, count: int, reference: Any, nbytes: int) -> None:
        self.events.append((events.TOTAL, perf_counter(), count))
        if len(self.events) > MAX_EVENTS:
            self._is_full()

    def _on_memory(self, count: int, reference: Any, nbytes: int) -> None:
        now = perf_counter()
        if nbytes < 0:
            self.events.append((events.DIE, now, reference))
            return
        running = self._threads.running
        purpose, site = find_site(sys._getframe(1), running)
        op, node, place = running.op, running.node, place_of(calls.innermost)
        self.events.append(
            (events.ADD, now, reference, nbytes, id(reference()), op, node, place, purpose, site)
        )
        if len(self.events) > MAX_EVENTS:
            self._is_full()

    def _on_role(self, storage: Storage, role: str) -> None:
        owner = owner_of(storage)
        if owner is not None:
            self.events.append((events.ROLE, perf_counter(), owner, role, None, None))

    # Operations and modules

    def _on_op(
        self,
        apply: Callable[..., list[Any]],
        cls: type[Op],
        inputs: tuple[Any, ...],
        parameters: dict[str, Any],
    ) -> list[Any]:
        running = self._threads.running
        outer, running.op, running.found = (running.op, running.found), cls, None
        call = calls.innermost
        if call is not None and self._phases.now == "other":
            self._phases.begin_forward()
        began = perf_counter()
        try:
            outputs = apply(cls, inputs, parameters)
            first = outputs[0]
            node = None if first is None else first._grad_fn
            if type(node) is cls:
                origin = node._origin
                if origin is None:
                    site = site_of_op(sys._getframe(1), running)[1]
                    origin = node._origin = place_of(call), site
                if node._saved:
                    self._note_saves(node._saved.values(), cls.__name__, origin[0])
                if self._phases.now == "other":
                    self._phases.begin_forward()
        finally:
            running.op, running.found = outer
        now = perf_counter()
        nbytes = 0
        made: list[Any] = []
        if not cls.is_view:
            for each in outputs:
                if each is not None:
                    array = each._array
                    nbytes += array.nbytes
                    owner = owner_of(each._storage)
                    if owner is not None:
                        made.append((owner, array.shape, array.dtype))
        thread = running.thread if outer[0] is None else None
        self.events.append((events.OP, now, began, thread, cls, nbytes, made))
        if self._unknown:
            self._note_inputs(inputs, now)
        return outputs

    def _note_inputs(self, inputs: Iterable[Any], now: float) -> None:
        """An operation takes what was there before the recording."""
        for each in inputs:
            if each is not None and each._grad_fn is None:
                storage = each._storage
                if storage.uid in self._unknown:
                    self._unknown.discard(storage.uid)
                    owner = owner_of(storage)
                    if owner is not None and storage.role == OTHER_TENSORS:
                        self.events.append((events.ROLE, now, owner, "input", None, None))

    def _note_names(self, names: Iterable[tuple[Storage, str, str, str]]) -> None:
        now = perf_counter()
        for storage, op, slot, module in names:
            owner = owner_of(storage)
            if owner is not None:
                array = None if storage.is_paged else storage.root
                form = (None, None) if array is None else (array.shape, array.dtype)
                self.events.append((events.NAME, now, owner, op, slot, module, *form))

    def _note_saves(self, saves: Iterable[SavedTensor], op: str, place: Place | None) -> None:
        now, module = perf_counter(), "" if place is None else place.name
        for saved in saves:
            self._note_saved(saved, op, module, now)

    def _note_saved(self, saved: SavedTensor, op: str, module: str, now: float) -> None:
        owner = kept_owner(saved)
        if owner is not None:
            tensor: Any = saved._tensor
            is_known = tensor is not None and tensor._spec is None
            form = (tensor._array.shape, tensor._array.dtype) if is_known else (None, None)
            row = id(saved), op, saved._slot, module, ref(saved, self._on_saver_death)
            self.events.append((events.SAVE, now, owner, *row, *form))

    def _on_saver(self, saver: Saver) -> None:
        """What a custom Function or a checkpoint saves; `_on_op` notes what operations save."""
        if isinstance(saver, SavedTensor) and (node := saver._node()) is not None:
            if node._origin is None:
                running = self._threads.running
                site = find_site(sys._getframe(1), running)[1]
                node._origin = place_of(calls.innermost), site
            self._note_saves((saver,), node.name(), node._origin[0])

    def _on_call(self, call: Call) -> Callable[[], None]:
        thread, place = self._threads.running.thread, place_of(call)
        if call.caller is None:
            self._names.add_root(call.module)
        self.events.append((events.ENTER, perf_counter(), thread, place))
        if self._phases.now == "other":
            self._phases.begin_forward()

        def end() -> None:
            self.events.append((events.EXIT, perf_counter(), thread, place))

        return end

    def _on_mark(self, name: str, began: float) -> None:
        """A block of `record_function` has ended."""
        self.events.append((events.MARK, perf_counter(), began, self._threads.running.thread, name))

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

    def begin_pass(
        self, order: engine.Order
    ) -> Callable[[Iterable[Any]], Generator[Any, None, None]] | None:
        """A backward pass begins; see `engine.PassObserver`."""
        if not self._is_detailed:
            self._begin_plain_pass()
            return None
        for node, _ in order:
            # Of the saves before the recording, small ones were not noted.
            if node.sequence_nr < self._first:
                self._note_saves(node.saves(), node.name(), None)
        self._phases.begin_pass()
        return self._watch

    def _begin_plain_pass(self) -> None:
        saved = memory.saved_by_module()
        if sum(saved.values()) > sum(self.saved_by_module.values()):
            self.saved_by_module = saved
        self._phases.begin_pass()

    def end_pass(self) -> None:
        """The pass has ended."""
        self._phases.end_pass()
        self._note_names(self._names.gradients())

    def _watch(
        self, order: Iterable[tuple[Node, bool]]
    ) -> Generator[tuple[Node, bool], None, None]:
        running, note = self._threads.running, self.events.append
        thread, outer = running.thread, running.node
        saves: list[SavedTensor] = []
        try:
            for step in order:
                node = step[0]
                now = perf_counter()
                name, origin = node.name(), node._origin
                note((events.NODE, now, thread, name, origin, _released(saves)))
                saves = list(node.saves())
                for saved in saves:
                    if type(saved._packed) is PackedTensor:
                        self._note_use(saved._packed, now)
                running.node = name, origin
                yield step
        finally:
            running.node = outer
            note((events.NODE, perf_counter(), thread, "", None, _released(saves)))
            self._note_names(self._names.parameters())

    def _note_use(self, packed: PackedTensor, now: float) -> None:
        """What was read ahead for a tensor is about to be used."""
        stored = packed.saved.stored
        buffer = None if stored is None else stored.buffer
        lease = lease_of(buffer)
        if lease is not None:
            self.events.append((events.USE, now, id(lease)))

    def _on_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._phases.begin_update()

    def _on_updated(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._phases.end_update()
        self._note_names(self._names.states(optimizer))


def _released(saves: list[SavedTensor]) -> list[int]:
    """Return the ids of those that a backward pass has released."""
    return [id(each) for each in saves if each._released]


def _remove(items: list[Any], item: Any) -> None:
    if item in items:
        items.remove(item)
