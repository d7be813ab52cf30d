"""OffloadSession: the mechanics behind a policy.

What a node saves comes in at `pack`: the policy places it, and what is to be stored goes to the
store once, however many tensors share its bytes. When a backward pass begins, `plan` learns what
will be wanted in which order; reads run ahead of it. `unpack` gives the tensors back.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import ref

from offgrad_storage import AbstractArrayStore, Handle, StoreError

from offgrad import memory
from offgrad.autograd.handles import RemovableHandle
from offgrad.autograd.saved_tensor import (
    KEEP,
    Save,
    SavedTensor,
    pop_hooks,
    push_hooks,
)
from offgrad.autograd.tensor_base import wrap
from offgrad.memory import Storage
from offgrad.nn import Module
from offgrad.nn.hooks.call_stack import calls, current_module_name
from offgrad.nn.hooks.registry import register_module_forward_pre_hook, track_calls, untrack_calls
from offgrad.policies.base import (
    Keep,
    Policy,
    Recompute,
    SaveContext,
    Spill,
    Store,
    as_policy,
)
from offgrad.policies.by_module import ByModule
from offgrad.session.budget import Residents
from offgrad.session.dedup import Key, SavesByStorage
from offgrad.session.deferred_writes import Loans
from offgrad.session.layout import (
    Array,
    Layout,
    address,
    compact,
)
from offgrad.session.ledger import Ledger
from offgrad.session.ledger_rows import Tallies, Tally
from offgrad.session.named_stores import open_store
from offgrad.session.placement import attributes_of, context_of, place
from offgrad.session.prefetcher import ReadAhead
from offgrad.session.recompute import Packed, Recipe, recipe_of
from offgrad.session.saved_array import Entry
from offgrad.session.scope import Route, modules_concerned, routes_to

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


class OffloadSession:
    """Applies a policy to every tensor saved for backward inside the ``with`` block.

    It may be entered again, by one thread or several; each thread's innermost session counts.

    With `module`, or with a mapping of policies by module, it applies inside these modules only,
    whichever thread calls them: there it is the innermost, of nested modules the inner one, and
    what is saved elsewhere goes as if it were not there.

    Memory is written once, whatever tensors share it. Inputs, targets, masks and buffers that
    require no grad are not written to a `Store` while somebody besides the graph holds them, unless
    it rounds. When nobody does any more, they are with the next save or backward pass, or
    before an allocation would exceed the memory's limit; and before a change in place. Of memory
    that is NumPy's (see `from_numpy`) nobody tells when it changes, so it is copied at once; that
    of ``tensor.numpy()`` must not be changed, as without a session.

    Attributes:
        policy: what decides.
    """

    def __init__(
        self,
        policy: Any,
        *,
        module: Module | None = None,
        model: Module | None = None,
        directory: str | None = None,
        prefetch_nbytes: int | str = 32 << 20,
    ) -> None:
        """Make a session.

        Args:
            policy: text, such as ``"keep"``, ``"pool"``, ``"disk:lz4"``, ``"zarr,min=1MiB"``,
                ``"cast:float16"`` (see `parse_policy`); a store; an object with a
                method ``place(context)``; a list of these, of which the first that has an answer
                counts (see `First`); or a mapping of these by patterns of module names, such as
                ``{"blocks.*.attn": "disk"}`` (see `ByModule`).
            module: apply the policy inside this module only.
            model: where qualified names of modules begin; needed for a mapping. By default they
                begin at the outermost module called inside the session.
            directory: where stores that the policy names write.
            prefetch_nbytes: how far reads run ahead of backward; bytes or text.

        Raises:
            ValueError: if a pattern matches no module of `model`, or no model is given for it.
        """
        self.policy = as_policy(policy)
        self._model = model
        self._modules = modules_concerned(self.policy, module, model)
        if self._modules is None:
            self._outside: Policy | None = self.policy
        else:
            self._outside = self.policy.otherwise if isinstance(self.policy, ByModule) else None
        self._entered = 0
        self._hook: RemovableHandle | None = None
        self._directory = directory
        self._prefetch_nbytes = memory.parse_nbytes(prefetch_nbytes)
        self._lock = threading.RLock()
        self._steps = 0
        self._tallies = Tallies()
        self._saves = SavesByStorage()
        self._pending: list[ref[Handle]] = []
        self._passes: list[ReadAhead] = []
        self._residents: dict[Spill, Residents] = {}
        self._loans = Loans(self._lock)
        memory.register_reclaimable(self)

    def __enter__(self) -> "OffloadSession":
        if self._modules is not None:
            self._modules.check()
        if self._outside is not None:
            push_hooks(Route(self, self._outside))
        track_calls()
        with self._lock:
            self._steps += 1
            self._entered += 1
            if self._modules is not None and self._hook is None:
                self._hook = register_module_forward_pre_hook(self._enter_call)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._lock:
            if not self._entered:
                raise RuntimeError(
                    f"{self} is left as often as it is entered, but this is once more; use `with`"
                )
            self._entered -= 1
            if not self._entered and self._hook is not None:
                self._hook.remove()
                self._hook = None
        for route in [each for each in routes_to(self) if each.call is None][:1]:
            pop_hooks(route)
        untrack_calls()

    def _enter_call(self, module: Module, args: Any) -> None:
        """Apply inside the call that begins, if it is of a module concerned: a forward pre-hook."""
        call = calls.innermost
        if call is not None and self._modules is not None:
            self._modules.enter(self, call)

    def __repr__(self) -> str:
        return f"<OffloadSession {self.policy}>"

    @property
    def ledger(self) -> Ledger:
        """The figures so far."""
        with self._lock:
            return self._tallies.ledger()

    # Forward

    def pack(self, save: Save, policy: Policy) -> Any:
        """Place the tensor by `policy`; return what stands for it, or `KEEP`."""
        array, storage = save.tensor._array, save.tensor._storage
        data, layout, dense = compact(array)
        recipe = recipe_of(save.owner, data, self) if dense else None
        ops = 0 if recipe is None else recipe.ops
        context = context_of(save, current_module_name(self._model), self._steps - 1, ops)
        placement = place(policy, context)
        lossless = placement.lossless
        if isinstance(placement, Recompute) and recipe is not None:
            lossless = recipe.lossless
        begin = address(data) - address(storage.root)
        key: Key = (begin, data.dtype, data.nbytes if dense else (data.shape, data.strides))
        with self._lock:
            self._settle()
            saves = self._saves.of(storage)
            tally = self._tallies.of(context)
            # Within a bound there may be room for a part where there is none for the whole.
            apart = storage.external or isinstance(placement, Spill)
            covering = None if apart else saves.covering(data.nbytes)
            is_known = covering is not None or (key in saves.entries and not storage.external)
            tally.saved(array.nbytes, 0 if is_known else data.nbytes)
            saves.entries.setdefault(key, None)
            if isinstance(placement, Keep) or not data.nbytes:
                tally.kept_nbytes += array.nbytes
                return KEEP
            if not lossless:  # for those alone who want it rounded
                key = (*key, placement)
            # What foreign memory held at an earlier save, it may not hold any more.
            entry = None if storage.external else saves.get(key)
            if entry is None and covering is not None and lossless:
                entry = covering
                offset = address(array) - address(storage.root)
                layout = Layout(array.shape, array.dtype, array.strides, offset)
            if entry is not None and entry.residence is not None and entry.residents is not None:
                entry.residents.touch(entry.residence)
        if entry is None:
            # Of a change of foreign memory nobody tells, so it must be copied.
            whole = dense and storage.root.flags.c_contiguous and not storage.external
            is_lent = save.is_data and lossless and not storage.external
            if isinstance(placement, Recompute):
                assert recipe is not None
                entry = self._remember(recipe, storage, data, begin, tally)
            elif is_lent and isinstance(placement, Store):
                at = begin if whole else None
                entry = self._lend(placement, storage, data, at, context, tally)
            else:
                source = storage if whole else None
                entry = self._save(placement, source, data, begin, context, tally)
            entry.lossless = lossless
            saves.put(key, entry, is_whole=dense and data.nbytes == storage.root.nbytes)
        return Packed(entry, layout)

    def _remember(
        self, recipe: Recipe, storage: Storage, data: Array, begin: int, tally: Tally
    ) -> Entry:
        """Compute `data`, the bytes of `storage` from `begin` on, again when it is wanted."""
        entry = Entry(data, tally)
        entry.recipe = recipe
        recipe.hold()
        if recipe.lossless:
            entry.is_also_in(storage, begin)
        return entry

    def _lend(
        self,
        placement: Store,
        storage: Storage,
        data: Array,
        begin: int | None,
        context: SaveContext,
        tally: Tally,
    ) -> Entry:
        """Have `data`, a part of `storage`, written when nobody else holds `storage` any more."""
        entry = Entry(data, tally)
        store = self._open(placement)
        with self._lock:
            self._loans.lend(entry, storage, data, begin, store, attributes_of(context))
        return entry

    def _save(
        self,
        placement: Store | Spill,
        storage: Storage | None,
        data: Array,
        begin: int,
        context: SaveContext,
        tally: Tally,
    ) -> Entry:
        """Hold or store `data`: the bytes of `storage` from `begin` on, or else to be copied."""
        entry = Entry(data, tally)
        facts = attributes_of(context)
        began = time.perf_counter()
        try:
            if isinstance(placement, Spill):
                with self._lock:
                    residents = entry.residents = self._residents_of(placement)
                    if storage is None and residents.make_room(data.nbytes):
                        data = memory.copy(data)
                        storage, begin = Storage(data), 0
                    if storage is not None:
                        entry.is_also_in(storage, begin)
                        if residents.add(entry, storage, data, facts):
                            return entry
                handle = self._put(residents.store, entry, data, facts)
                handle.wait_captured()  # there is no room to hold it until then
                handle.check()
            else:
                if storage is None:
                    data = memory.copy(data)
                    storage, begin = Storage(data), 0
                handle = self._put(self._open(placement), entry, data, facts)
                self._hold_until_written(storage, handle)
        finally:
            seconds = time.perf_counter() - began
            with self._lock:
                tally.waited_to_write(seconds)
        if placement.lossless and storage is not None:
            entry.is_also_in(storage, begin)
        return entry

    def _put(
        self, store: AbstractArrayStore, entry: Entry, data: Array, facts: Mapping[str, object]
    ) -> Handle:
        handle = entry.stored = store.put(data, attributes=facts)
        with self._lock:
            entry.tally.wrote(id(entry), handle)
        return handle

    def _open(self, placement: Store) -> AbstractArrayStore:
        return open_store(placement.store, self._directory, placement.codec)

    def _residents_of(self, spill: Spill) -> Residents:
        found = self._residents.get(spill)
        if found is None:
            opened = partial(self._open, spill.store)
            found = Residents(spill, opened, self._lock, self._ahead_nbytes)
            self._residents[spill] = found
        return found

    def _hold_until_written(self, storage: Storage, handle: Handle) -> None:
        """Have a change of `storage` in place wait for the write."""
        if not handle.captured:
            storage.add_pending_write(handle)
            with self._lock:
                pending = [each for each in self._pending if (one := each()) and not one.captured]
                self._pending = [*pending, ref(handle)]

    def _settle(self) -> None:
        """Begin to write what was lent and nobody else holds any more. With the lock held.

        Raises:
            StoreError: as the store says it; nothing is lost, and it stays in memory.
        """
        if self._loans.due:
            for storage, handle in self._loans.settle():
                self._hold_until_written(storage, handle)

    # Memory

    def reclaim(self) -> None:
        """Give back memory held for pending writes, once written, for reads ahead, and what was
        lent and nobody else holds any more.

        Raises:
            StoreError, MemoryError: a store did not take all that is held; the rest stays.
        """
        # Another thread may hold the lock and wait for memory: then it is relieved itself.
        if not self._lock.acquire(blocking=False):
            return
        try:
            with suppress(StoreError):
                self._settle()
            pending = [handle for each in self._pending if (handle := each()) is not None]
            for reads in self._passes:
                reads.give_back()
            with ExitStack() as others:  # make room, even if one cannot
                for residents in list(self._residents.values()):
                    others.callback(residents.reclaim)
        finally:
            self._lock.release()
            for handle in pending:
                handle.wait_captured()

    def held_by_purpose(self) -> Mapping[str, int]:
        """Return the bytes held besides tensors, by what for."""
        return {"read ahead for backward": self._ahead_nbytes()}

    def _ahead_nbytes(self) -> int:
        return sum(reads.held_nbytes() for reads in list(self._passes))

    def _has_room(self, entry: Entry, nbytes: int) -> bool:
        if entry.recipe is not None:  # it takes of all that is bounded
            return all(each.fits(nbytes) for each in self._residents.values())
        return entry.residents is None or entry.residents.fits(nbytes)

    # Backward

    def plan(self, packed: Sequence[Any]) -> Callable[[], None]:
        """Learn the order of unpacking, and begin to read; return what ends the pass."""
        with self._lock, suppress(StoreError):
            self._settle()
        orders: dict[AbstractArrayStore, list[Handle]] = {}
        reads = ReadAhead([each.entry for each in packed], self._prefetch_nbytes, self._has_room)
        entries = reads.order()
        for entry in entries:
            if entry.stored is not None:
                orders.setdefault(entry.stored.store, []).append(entry.stored)
        for store, order in orders.items():
            store.plan(order)
        with self._lock:
            sharing = list(self._residents.values())
            for residents in sharing:
                residents.plan([each for each in entries if each.residents is residents])
            self._passes.append(reads)
            reads.advance()

        def finish() -> None:
            with self._lock:
                self._passes.remove(reads)
                reads.close()
                for residents in sharing:
                    residents.finish()

        return finish

    def sources(self) -> Iterable[SavedTensor]:
        """Nothing: stores need no saved tensors."""
        return ()

    def unpack(self, packed: Packed) -> "Tensor":
        """Return the saved tensor: from memory if it is there, still or again, or its store."""
        entry, layout = packed
        with self._lock:
            found = entry.in_memory()
            if found is not None:
                entry.tally.hits += 1
            buffer = entry.take_buffer() if found is None else None
        computed = found is None and entry.recipe is not None
        if found is None:
            if entry.recipe is not None:
                data = entry.recipe.data(self.unpack)
                with self._lock:
                    entry.tally.recomputed(data.nbytes)
            else:
                began = time.perf_counter()
                data = entry.read(buffer)
                seconds = time.perf_counter() - began
                with self._lock:
                    entry.tally.read(data.nbytes, seconds, ahead=buffer is not None)
            found = Storage(data), data
            entry.is_also_in(found[0], 0)
        storage, data = found
        tensor = wrap(layout.view(data), storage)
        with self._lock:
            for reads in self._passes:
                reads.used(entry, storage, computed)
                reads.advance()
        return tensor
