"""replay: what a recorded step would take under a policy.

The session itself carries the policy's decisions out, on meta arrays and simulated stores: dedup,
budgets, deferred writes, prefetches and recomputation are the real ones. Memory is what these hold,
plus what the program had besides.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import numpy as np
from offgrad_storage import StoreError

from offgrad import memory
from offgrad.autograd.saved_tensor import KEEP
from offgrad.memory import POOL_THRESHOLD, Storage
from offgrad.memory.meta import MetaArray, meta_empty
from offgrad.memory.meter import metered
from offgrad.policies import Policy, Recompute, Spill, as_policy
from offgrad.policies.base import MAX_RECOMPUTE_OPS, may_recompute
from offgrad.prediction.drive import Drive
from offgrad.prediction.machine import Machine, parse_rate
from offgrad.prediction.recording import Kind, Recipe, Recording, SavedTensorRecord
from offgrad.prediction.simulated_session import (
    SimulatedMemory,
    SimulatedSession,
    SimulatedStores,
)
from offgrad.session.placement import decide
from offgrad.session.saved_array import Layout, PackedTensor, SavedArray, StorageRange

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Replay:
    """What a step takes under a policy, as predicted.

    Attributes:
        policy: as text.
        peak_nbytes: of all tensor memory.
        seconds: of the step.
        stall_seconds: of these, waits for stores.
        recompute_seconds: of these, recomputation.
        written_nbytes, read_nbytes: by stores, other than pools, as a session's ledger counts them:
            small arrays count once they are in a pack, which is written when it is full.
        kept_nbytes: of saves that the policy keeps.
        reads: of arrays from stores, by op, slot and module of their first save.
        notes: what the figures cannot know.
    """

    policy: str
    peak_nbytes: int
    seconds: float
    stall_seconds: float
    recompute_seconds: float
    written_nbytes: int
    read_nbytes: int
    kept_nbytes: int
    reads: Mapping[tuple[str, str, str], int] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()


def replay(
    recording: Recording,
    policy: Any,
    *,
    machine: Machine | None = None,
    bandwidth: float | str | None = None,
    prefetch_nbytes: int | str = 32 << 20,
    rounds: int = 2,
) -> Replay:
    """Return what the recorded step would take under a policy.

    Args:
        recording: of a step.
        policy: in any form that `offgrad.offload` takes.
        machine: the rates of the drive and of memory; None for typical ones.
        bandwidth: of the drive, instead of the machine's: bytes per second, or text as ``"1GB/s"``.
        prefetch_nbytes: as for `offgrad.offload`.
        rounds: how often the step is replayed; the last one counts. Those before leave stores and
            budgets as a step before would.

    Raises:
        ValueError: if the text names no policy, or a policy gives an answer that it must not give.
        TypeError: if it is no policy, or its answer no placement.
    """
    machine = Machine() if machine is None else machine
    if bandwidth is not None:
        machine = machine.with_bandwidth(parse_rate(bandwidth))
    run = _Run(recording, as_policy(policy), machine, memory.parse_nbytes(prefetch_nbytes))
    result: Replay | None = None
    with metered(run.memory.meter):
        for _ in range(max(rounds, 1)):
            result = run.step()
    assert result is not None
    return result


class _Recomputation:
    """How a replay computes an array again: see `offgrad.session.recompute.Recomputation`."""

    def __init__(self, run: "_Run", recipe: Recipe, layout: Layout, shape: tuple[int, ...]) -> None:
        self._run, self._recipe = run, recipe
        self.layout, self._shape = layout, shape
        self._inputs = [each for each in _inputs(recipe) if run.packed[each] is not None]
        saved = [run.saved_array(each) for each in self._inputs]
        before = [each.recomputation for each in saved]
        self.ops = _ops(recipe) + sum(each.ops for each in before if each is not None)
        self.lossless = all(each.lossless for each in saved)
        # The inputs live as long as this.
        self._packed = [run.packed[each] for each in self._inputs]

    def pin(self) -> bool:
        return True

    def data(self, unpack: Callable[[PackedTensor], Any]) -> Array:
        """Take as long as the operations; return the memory."""
        result = self._compute(self._recipe, iter(self._packed), unpack)
        return np.ndarray.__new__(MetaArray, self._shape, self.layout.dtype, result)

    # No closure: one that calls itself would be a cycle, which holds memory.
    def _compute(
        self,
        recipe: Recipe,
        packed: "Iterator[PackedTensor | None]",
        unpack: Callable[[PackedTensor], Any],
    ) -> Array:
        held: list[Any] = []
        for each in recipe.inputs:
            if isinstance(each, Recipe):
                held.append(self._compute(each, packed, unpack))
            elif each in self._inputs and (one := next(packed)) is not None:
                held.append(unpack(one))
        result = memory.empty((recipe.nbytes,), np.uint8)
        self._run.recompute(recipe.seconds)
        return result

    def saved_inputs(self) -> Iterator[SavedArray]:
        for each in self._packed:
            if each is not None:
                yield each.saved


class _Run:
    """A replay of one recording under one policy."""

    def __init__(
        self, recording: Recording, policy: Policy, machine: Machine, prefetch_nbytes: int
    ) -> None:
        self._recording, self._policy = recording, policy
        self._recomputes = may_recompute(policy)
        self._drive = Drive(machine)
        self._key: tuple[str, str, str] = ("", "", "")
        self._stores = SimulatedStores(self._drive, self._ratio)
        self._session = SimulatedSession(self._stores, prefetch_nbytes)
        self.memory = SimulatedMemory()
        self._step = 0
        self._ratios = {
            (each.key, codec): ratio
            for each in recording.saves
            for codec, ratio in each.ratios.items()
        }

    def step(self) -> Replay:
        """Replay the step once."""
        recording, drive = self._recording, self._drive
        drive.finish()
        self.packed: list[PackedTensor | None] = [None] * len(recording.saves)
        self._kept: dict[int, Storage] = {}
        self._using: dict[int, Any] = {}
        self._storages: dict[int, Storage] = {}
        self._ends: list[Callable[[], None]] = []
        self._recompute_seconds, self._kept_nbytes = 0.0, 0
        drive.stall_seconds = 0.0
        written, read = self._stores.moved_nbytes()
        reads = self._reads()
        began, last = drive.now, 0.0
        self.memory.set_rest(next(self._values(Kind.MEMORY), 0))
        self.memory.reset_peak()
        events = zip(recording.kinds, recording.times, recording.values, strict=True)
        for kind, when, value in events:
            drive.compute(max(0.0, when - last))
            last = max(last, when)
            self._handlers[Kind(kind)](self, value)
        drive.compute(max(0.0, recording.seconds - last))
        self._end_all()
        self._step += 1
        written_now, read_now = self._stores.moved_nbytes()
        return Replay(
            policy=str(self._policy),
            peak_nbytes=self.memory.peak_nbytes,
            seconds=drive.now - began,
            stall_seconds=drive.stall_seconds,
            recompute_seconds=self._recompute_seconds,
            written_nbytes=written_now - written,
            read_nbytes=read_now - read,
            kept_nbytes=self._kept_nbytes,
            reads=self._reads() - reads,
            notes=tuple(
                f"{each}: bytes after encoding depend on values; counted as if not encoded"
                for each in sorted(self._stores.unknown_sizes)
            ),
        )

    def saved_array(self, number: int) -> SavedArray:
        """Return the array in which a save is."""
        packed = self.packed[number]
        assert packed is not None
        return packed.saved

    def recompute(self, seconds: float) -> None:
        """Let a recomputation take its time."""
        self._recompute_seconds += seconds
        self._drive.compute(seconds)

    def _reads(self) -> Counter[tuple[str, str, str]]:
        """Return how many arrays were read from stores so far."""
        rows = self._session.ledger.rows
        return Counter({(each.op, each.slot, each.module): each.reads for each in rows})

    def _values(self, kind: Kind) -> Iterator[int]:
        pairs = zip(self._recording.kinds, self._recording.values, strict=True)
        return (value for each, value in pairs if each == kind)

    def _ratio(self, codec: str, attributes: Mapping[str, object]) -> float:
        op, slot, module = (str(attributes.get(name)) for name in ("op", "slot", "module"))
        return self._ratios.get(((op, slot, module), codec), 1.0)

    # Events

    def _on_memory(self, nbytes: int) -> None:
        self.memory.set_rest(nbytes)

    def _on_save(self, number: int) -> None:
        save = self._recording.saves[number]
        storage = self._storage(save.memory)
        root: Any = storage.root
        array = np.ndarray.__new__(
            MetaArray, save.shape, np.dtype(save.dtype), root, save.begin, save.strides
        )
        part = StorageRange.of(array, storage, node_covers_storage=save.node_covers_storage)
        recomputation = self._recomputation(save, part)
        ops = 0 if recomputation is None else recomputation.ops
        context = save.context(storage.uid, self._step, ops)
        placement = decide(self._policy, context)
        recomputed = recomputation if isinstance(placement, Recompute) else None
        lossless = placement.lossless if recomputed is None else recomputed.lossless
        puts = self._stores.puts
        packed = self._session.carry_out(
            placement, lossless, context, part, recomputed, save.is_data
        )
        if isinstance(placement, Spill):
            evicted = self._stores.puts - puts
            self._drive.compute(evicted * self._drive.machine.evict_seconds)
        if packed is KEEP:
            if not save.is_parameter:
                self._kept[number] = storage
                self._kept_nbytes += save.nbytes
            return
        self.packed[number] = packed
        self._drive.compute(self._drive.machine.pack_seconds)

    def _storage(self, number: int) -> Storage:
        """Return the program's storage, while it has one."""
        storage = self._storages.get(number)
        if storage is None:
            facts = self._recording.memories[number]
            root = meta_empty((facts.nbytes,), np.uint8)
            # As external it is not counted: the recording counts it among the program's own.
            storage = self._storages[number] = Storage(root, external=True)
            storage.external = facts.is_external
        return storage

    def _recomputation(self, save: SavedTensorRecord, part: StorageRange) -> _Recomputation | None:
        if not self._recomputes or save.recipe is None:
            return None
        made = _Recomputation(self, save.recipe, part.layout, part.data.shape)
        return made if made.ops <= MAX_RECOMPUTE_OPS else None

    def _on_free(self, number: int) -> None:
        """The program drops a memory: from now on what is left of it is held for backward."""
        storage = self._storages.pop(number, None)
        if storage is None:
            return
        facts = self._recording.memories[number]
        is_large = facts.nbytes >= POOL_THRESHOLD
        owner = ref(storage.root) if is_large else ref(storage)
        del storage
        held = owner()
        if held is not None and not facts.is_external:
            self.memory.own(held, facts.nbytes)

    def _on_begin(self, number: int) -> None:
        uses = [self.packed[each] for each in self._recording.passes[number]]
        planned = [each for each in uses if each is not None]
        self._ends.append(self._session.plan(planned) if planned else _nothing)

    def _on_use(self, number: int) -> None:
        packed = self.packed[number]
        if packed is not None:
            self._using[number] = self._session.unpack(packed)
            self._drive.compute(self._drive.machine.unpack_seconds)

    def _on_drop(self, number: int) -> None:
        self._using.pop(number, None)
        self._kept.pop(number, None)
        self.packed[number] = None

    def _on_done(self, number: int) -> None:
        self._using.pop(number, None)

    def _on_end(self, number: int) -> None:
        self._using.clear()
        if self._ends:
            self._ends.pop()()

    def _on_change(self, number: int) -> None:
        storage = self._storages.get(number)
        if storage is not None:
            storage.write("an in-place operation")

    def _end_all(self) -> None:
        self._using.clear()
        self._kept.clear()
        self.packed = [None] * len(self.packed)
        for number in list(self._storages):
            self._on_free(number)
        while self._ends:
            self._ends.pop()()
        with suppress(StoreError):
            self._session._catch_up()

    _handlers = {
        Kind.MEMORY: _on_memory, Kind.SAVE: _on_save, Kind.FREE: _on_free, Kind.BEGIN: _on_begin,
        Kind.USE: _on_use, Kind.DROP: _on_drop, Kind.END: _on_end, Kind.CHANGE: _on_change,
        Kind.DONE: _on_done,
    }  # fmt: skip


def _ops(recipe: Recipe) -> int:
    return 1 + sum(_ops(each) for each in recipe.inputs if isinstance(each, Recipe))


def _inputs(recipe: Recipe) -> Sequence[int]:
    found: list[int] = []
    for each in recipe.inputs:
        if isinstance(each, Recipe):
            found += _inputs(each)
        elif each is not None:
            found.append(each)
    return found


def _nothing() -> None:
    pass
