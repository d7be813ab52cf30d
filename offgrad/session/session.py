"""OffloadSession: the machinery behind a policy.

`pack` gets each tensor that a node saves: the policy places it, and the session keeps, defers,
writes or recomputes it, once for all tensors that share its bytes. When a backward pass begins,
`plan` learns the order of use, and prefetches run ahead of it. `unpack` gives the tensors back.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from offgrad_storage import StoreError
from offgrad_storage.interrupts import MaskedLock, interruptible, masked

from offgrad import memory
from offgrad.autograd.saved_tensor import KEEP, Save
from offgrad.autograd.tensor_base import wrap
from offgrad.memory import Storage
from offgrad.memory.forks import forkables
from offgrad.nn import Module
from offgrad.nn.hooks.call_stack import calls
from offgrad.policies import Keep, Policy, Recompute, Spill, Store, as_policy
from offgrad.policies.rule_matches import rule_matches
from offgrad.session.blocks import Blocks
from offgrad.session.budgets import Budgets
from offgrad.session.dedup import DedupIndex
from offgrad.session.deferred_writes import DeferredWrites
from offgrad.session.ledger import Ledger
from offgrad.session.ledger_rows import LedgerCounter
from offgrad.session.open_stores import OpenStores
from offgrad.session.passes import BackwardPasses
from offgrad.session.pending_writes import PendingWrites
from offgrad.session.placement import decide, save_context, store_attributes
from offgrad.session.recompute import Recomputation, recomputation_for
from offgrad.session.saved_array import Array, PackedTensor, SavedArray, StorageRange
from offgrad.session.shown import ShownSession
from offgrad.session.states import Deferred, InMemory, Recomputed, Stored

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor
    from offgrad.policies import Placement, SaveContext


observers: "list[Callable[[OffloadSession], object]]" = []
"""Called with each session that is entered."""


class OffloadSession(ShownSession):
    """Applies a policy to every tensor saved for backward inside the ``with`` block, or while the
    decorated function runs.

    A session may be entered again, by one thread or several; each thread's innermost session
    applies. With `module`, or with a mapping of policies by module, it applies inside these modules
    only, in every thread that calls them: there it is the innermost session, and the innermost of
    nested modules decides. Outside these modules it has no effect.

    Bytes are written once, however many tensors share them. Writes of inputs, targets, masks and
    buffers that require no grad are deferred while the program still references them (lossy stores
    excepted). They happen on the next save or backward pass after the last reference is gone,
    before an allocation would exceed the memory limit, and before an in-place change. Arrays shared
    with NumPy (see `from_numpy`) are copied at once, because NumPy does not report changes; the
    array of ``tensor.numpy()`` must not be changed, as without a session.

    Example:
        >>> x = offgrad.randn(256, 256, requires_grad=True)
        >>> with offgrad.offload("disk") as session:
        ...     loss = x.sin().sum()
        >>> loss.backward()
    """

    _open_stores: Callable[[str | None], OpenStores] = OpenStores

    def __init__(
        self,
        policy: Any,
        *,
        module: Module | None = None,
        model: Module | None = None,
        directory: str | None = None,
        prefetch_nbytes: int | str = 32 << 20,
        budget: int | str | None = None,
    ) -> None:
        """Make a session.

        Args:
            policy: text, such as ``"disk:lz4"`` or ``"zarr,min=1MiB"`` (see `parse_policy`); a
                store; an object with a method ``place(context)``; a list of these, of which the
                first with an answer decides (see `First`); or a mapping of these by patterns of
                module names, as ``{"blocks.*.attn": "disk"}`` (see `ByModule`). ``"auto"`` chooses
                one after two steps, within `budget`.
            module: apply the policy inside this module only.
            model: the root of qualified module names; needed for a mapping. By default the root is
                the outermost module called inside the session.
            directory: where stores that the policy names write.
            prefetch_nbytes: the maximum read ahead of its use in backward; bytes or text.
            budget: for ``"auto"``, the bound of the memory held for backward; bytes or text.

        Raises:
            ValueError: if a pattern matches no module of `model`, or no model is given for it.
        """
        self.policy = as_policy(policy)
        self._model = model
        self._rules = rule_matches(self.policy)
        self._blocks = Blocks(self.policy, module, model)
        # Held briefly: no store is called, and no memory allocated, with it held.
        self._lock = MaskedLock(reentrant=True)
        self._stores = self._open_stores(directory)
        self._ledger = LedgerCounter()
        self._dedup = DedupIndex()
        self._pending = PendingWrites()
        self._deferred_writes = DeferredWrites(self._lock, self._pending.add)
        self._passes = BackwardPasses(self._lock, memory.parse_nbytes(prefetch_nbytes))
        prefetched_nbytes = self._passes.prefetched_nbytes
        self._budgets = Budgets(self._lock, self._stores.of, prefetched_nbytes)
        memory.register_reclaimable(self)
        forkables.add(self)

    def __enter__(self) -> "OffloadSession":
        self._blocks.check()
        for observer in tuple(observers):
            observer(self)
        entered = False
        try:
            with self._lock:
                self._blocks.enter(self)
                entered = True
        except BaseException:  # an interrupt after the block
            if entered:
                self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        is_ended = False
        try:
            with self._lock:
                self._blocks.exit(self)
                is_ended = True
        except KeyboardInterrupt:
            if not is_ended:  # it came before the lock masked it
                with self._lock:
                    self._blocks.exit(self)
            raise
        if self._rules and kind in (None, SystemExit) and not self._blocks.are_running:
            self._rules.warn()

    @property
    def ledger(self) -> Ledger:
        """The figures so far."""
        with self._lock:
            return self._ledger.ledger()

    # Forward

    def pack(self, save: Save, policy: Policy, recomputes: bool = True) -> Any:
        """Place a tensor by `policy`, which may `Recompute`; return a `PackedTensor`, or `KEEP`."""
        part = StorageRange.of(save.array, save.storage, save.node_covers_storage)
        recomputation = recomputation_for(save.owner, part, self) if recomputes else None
        ops = 0 if recomputation is None else recomputation.ops
        call = calls.innermost
        module = "" if call is None else call.name(self._model)
        context = save_context(save, module, self._blocks.entered - 1, ops)
        if self._rules is not None:
            self._rules.note(context)
        placement = decide(policy, context)
        recomputed = recomputation if isinstance(placement, Recompute) else None
        lossless = placement.lossless if recomputed is None else recomputed.lossless
        return self.carry_out(placement, lossless, context, part, recomputed, save.is_data)

    def carry_out(
        self, placement: "Placement", is_lossless: bool, context: "SaveContext",
        part: StorageRange, recomputed: Any, is_data: bool,
    ) -> Any:  # fmt: skip
        """Carry out a placement, which `recomputed` carries out if it is given: see `pack`."""
        is_kept = isinstance(placement, Keep) or not part.data.nbytes

        can_defer = is_data and is_lossless and not part.storage.external
        # The slices of one storage are not copied one by one, unless it is too large to read ahead.
        stores_whole = (
            part.node_covers_storage
            and 2 * part.storage.nbytes <= self._passes.window_nbytes
            and isinstance(placement, Store)
            and is_lossless
            and recomputed is None
            and not (is_data or part.storage.external or part.storage.exported)
        )

        with masked:  # stores' waits admit interrupts
            # Dedup
            if self._passes.dead or self._deferred_writes.released:
                self._catch_up()
            self._lock.acquire()
            try:
                ranges = self._dedup.ranges_of(part.storage)
                match = ranges.find(part, placement, lossless=is_lossless)
                saved = None if is_kept else match.saved
                key, layout, is_known = match.key, match.layout, match.is_known
                if saved is None and stores_whole:
                    part, layout = part.whole, part.layout_in_storage
                    whole = ranges.find(part, placement, lossless=True)
                    saved, key, is_known = whole.saved, whole.key, whole.is_known
                if saved is not None and isinstance(saved.state, InMemory):
                    saved.state.cached.budget.touch(saved.state.cached)
            finally:
                self._lock.release()
            if self._passes.cancelled:
                self._passes.cancel_prefetches()

            row = (context.op, context.slot, context.module)
            new: SavedArray | None = None
            began: float | None = None
            try:
                if is_kept:
                    return KEEP
                # Recompute, defer, hold or write
                if saved is None:
                    saved = new = SavedArray(part.data, row, self._ledger, is_lossless)
                    attributes = store_attributes(context)
                    if recomputed is not None:
                        if not self._recompute_later(saved, part, recomputed):
                            is_kept, new = True, None
                            return KEEP
                    elif isinstance(placement, Store) and can_defer:
                        store = self._stores.of(placement)
                        self._deferred_writes.defer(saved, part, store, attributes)
                    elif isinstance(placement, Spill):
                        began = time.perf_counter()
                        self._budgets.hold(saved, part, placement, attributes)
                    elif isinstance(placement, Store):
                        began = time.perf_counter()
                        self._write(saved, part, placement, attributes)
                    ranges.put(key, saved, part)
                return PackedTensor(saved, layout)
            finally:
                # Ledger
                seconds = 0.0 if began is None else time.perf_counter() - began
                unique_nbytes = 0 if is_known else part.data.nbytes
                self._lock.reacquire()  # not interrupted, unlike `acquire`
                try:
                    if new is not None and isinstance(new.state, Stored):
                        self._pending.add(new.state.handle)
                    counts = context.nbytes, unique_nbytes, is_kept
                    self._ledger.saved(row, *counts, new, placement, seconds)
                finally:
                    self._lock.release()

    def _recompute_later(
        self, saved: SavedArray, part: StorageRange, recomputation: Recomputation
    ) -> bool:
        """Recompute `part` on each use; return False if another thread has changed an input."""
        if not recomputation.pin():
            return False
        saved.enter(Recomputed(recomputation))
        if recomputation.lossless:
            saved.note_copy(part.storage, part.begin)
        return True

    def _write(
        self,
        saved: SavedArray,
        part: StorageRange,
        placement: Store,
        attributes: Mapping[str, object],
    ) -> None:
        """Begin to write `part`, or a copy of it."""
        data, storage, begin = part.data, part.storage, part.begin
        if not part.can_be_shared:
            data = memory.copy(data)
            storage, begin = Storage(data), 0
        handle = self._stores.of(placement).put(data, attributes=attributes)
        saved.enter(Stored(handle))
        if not handle.captured:
            storage.add_pending_write(handle)
        if saved.lossless:
            saved.note_copy(storage, begin)

    def _catch_up(self) -> None:
        """End passes that died with their frame, and write released memory. Without the lock.

        Raises:
            StoreError: of the store; the arrays stay in memory.
        """
        if self._passes.dead:
            with self._lock:
                self._passes.end_dead()
        self._deferred_writes.write_released()

    # Memory

    @property
    def lock(self) -> MaskedLock:
        """The lock of its state."""
        return self._lock

    def reclaim(self) -> bool:
        """Free memory: finish pending writes, drop prefetches, write deferred and budgeted arrays.
        Return whether there was any, or another thread holds the lock.

        Raises:
            StoreError, MemoryError: a store did not take an array; it stays in memory.
        """
        with masked:
            if not self._lock.acquire(blocking=False):
                return True
            failure: Exception | None = None
            try:
                held_nbytes = self._passes.prefetched_nbytes() + self._budgets.held_nbytes
                self._passes.shrink()
            finally:
                self._lock.release()
            self._passes.cancel_prefetches()
            try:
                self._catch_up()
            except StoreError as error:
                failure = error.with_traceback(None)  # its frames would hold memory
            with self._lock:
                failure = self._budgets.reclaim() or failure
                pending = self._pending.handles()
                is_freeing = (
                    self._passes.prefetched_nbytes() + self._budgets.held_nbytes < held_nbytes
                    or self._budgets.are_evicting
                    or self._deferred_writes.is_putting
                )
            for handle in pending:
                handle.wait_captured()
            try:
                if failure is not None:
                    raise failure
            finally:
                del failure  # this frame would hold the exception that holds it
            return bool(pending) or is_freeing or self._stores.are_writing

    def held_by_purpose(self) -> Mapping[str, int]:
        """Return the bytes held besides tensors, by purpose."""
        return {"prefetched for backward": self._passes.prefetched_nbytes()}

    # Backward

    def plan(self, packed: Sequence[Any]) -> Callable[[], None]:
        """Learn the order of unpacking, and begin to prefetch; return a function for the end."""
        with masked:
            with suppress(StoreError):
                self._catch_up()
            self._passes.cancel_prefetches()
            uses = [each.saved for each in packed]
            return self._passes.begin(uses, self._budgets, self._ledger.count_written)

    def unpack(self, packed: PackedTensor) -> "Tensor":
        """Return the saved tensor: from memory if it is there, else recomputed or read."""
        saved, layout = packed
        with masked:  # stores' waits, recomputation and user code admit interrupts
            self._lock.acquire()
            try:
                found = saved.find_in_memory()
                buffer = saved.take_buffer() if found is None else None
                if found is not None:
                    self._ledger.found(saved)
            finally:
                self._lock.release()
            if found is None:
                data = self._bring_back(saved, buffer)
                storage = Storage(data)
                saved.note_copy(storage, 0)
            else:
                storage, data = found
            tensor = wrap(layout.view(data), storage)
            self._passes.consume(saved, storage, was_found=found is not None)
            if self._passes.cancelled:
                self._passes.cancel_prefetches()
            return tensor

    def _bring_back(self, saved: SavedArray, buffer: Array | None) -> Array:
        """Return an array that is not in memory as it was saved."""
        state = saved.state
        if isinstance(state, Recomputed):
            return self._recompute(saved, state.recomputation)
        if isinstance(state, Deferred):  # with gaps
            copied = self._deferred_writes.copy(saved)
            if copied is not None:
                with self._lock:
                    self._ledger.found(saved)
                return copied
        data = self._read(saved, buffer)
        if saved.budget is not None:
            saved.budget.trim_packs()
        return data

    def _recompute(self, saved: SavedArray, recomputation: Recomputation) -> Array:
        with interruptible:
            data = recomputation.data(self.unpack)
        with self._lock:
            self._ledger.recomputed(saved)
        return data

    def _read(self, saved: SavedArray, buffer: Array | None) -> Array:
        began = time.perf_counter()
        try:
            data = saved.read(buffer)
        except BaseException:
            if buffer is not None:  # the store may still fill it
                self._passes.cancelled.append(saved.handle)
            raise
        seconds = time.perf_counter() - began
        self._lock.reacquire()
        try:
            self._ledger.read(saved, seconds, prefetched=buffer is not None)
        finally:
            self._lock.release()
        return data

    def forget_other_threads(self) -> None:
        """In a forked child: end the work of other threads, which do not exist there."""
        self._blocks.forget_other_threads()
        self._passes.forget_other_threads()
        self._deferred_writes.forget_other_threads()
        self._pending.clear()  # stores of the parent do not write here
        self._budgets.forget_other_threads()


OffloadSession.__init__.__qualname__ = "offload"  # in Python's messages about arguments
