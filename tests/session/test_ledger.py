"""The ledger of a session: its figures by op, slot and module."""

import json
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from numpy.typing import ArrayLike, NDArray
from offgrad_storage import (
    DiskStore,
    Entry,
    Handle,
    PoolStore,
)

import offgrad
from offgrad import memory, nn
from offgrad.policies import (
    Budget,
    Last,
    Offload,
)
from offgrad.session import Ledger, LedgerRow, OffloadSession
from tests.session.backends import MemoryBackend, RecordingStore, memory_store
from tests.session.graphs import normal
from tests.session.helpers import everything, in_threads, settle, unary_chain

Key = tuple[str, str, str]


class CountingStore(RecordingStore):
    """Counts the figures of a ledger independently, from the attributes of each array.

    Attributes:
        puts, put_nbytes, gets, get_nbytes: by op, slot and module.
        prefetched_gets: gets of arrays that were prefetched before.
    """

    def __init__(self, threads: int = 1) -> None:
        super().__init__(threads)
        self.puts: Counter[Key] = Counter()
        self.put_nbytes: Counter[Key] = Counter()
        self.gets: Counter[Key] = Counter()
        self.get_nbytes: Counter[Key] = Counter()
        self.prefetched_gets = 0
        self._keys: WeakKeyDictionary[Handle, Key] = WeakKeyDictionary()
        self._prefetched: set[int] = set()

    def put(self, array: ArrayLike, *, attributes: Mapping[str, object] | None = None) -> Handle:
        handle = super().put(array, attributes=attributes)
        assert attributes is not None
        op, slot, module = (str(attributes[name]) for name in ("op", "slot", "module"))
        self._keys[handle] = key = (op, slot, module)
        self.puts[key] += 1
        self.put_nbytes[key] += handle.nbytes
        return handle

    def prefetch(self, handle: Handle, out: NDArray[Any] | None = None) -> None:
        super().prefetch(handle, out)
        self._prefetched.add(id(handle))

    def get(self, handle: Handle, out: NDArray[Any] | None = None) -> NDArray[Any]:
        key = self._keys[handle]
        self.gets[key] += 1
        self.get_nbytes[key] += handle.nbytes
        self.prefetched_gets += id(handle) in self._prefetched
        self._prefetched.discard(id(handle))
        return super().get(handle, out)


class CountingSession(OffloadSession):
    """Counts unpacks."""

    unpacks = 0

    def unpack(self, packed: Any) -> Any:
        self.unpacks += 1
        return super().unpack(packed)


class SlowReads(MemoryBackend):
    """Delays reads as well as writes."""

    def read(self, entry: Entry, out: NDArray[Any]) -> None:
        time.sleep(self.delay)
        super().read(entry, out)


def nonzero(rows: list[LedgerRow], name: str) -> dict[Key, int]:
    """Return one figure by op, slot and module, without zeros."""
    found = {(row.op, row.slot, row.module): getattr(row, name) for row in rows}
    assert len(found) == len(rows)
    return {key: value for key, value in found.items() if value}


def row_of(ledger: Ledger, op: str) -> LedgerRow:
    """Return the one row of an op."""
    (row,) = (each for each in ledger.rows if each.op == op)
    return row


def test_the_ledger_by_hand(tmp_path: Path) -> None:
    x = normal(1, 100, 100)
    with DiskStore(tmp_path, allocate=memory.empty) as store:
        session = everything(store)
        with session:
            y = x.clone()
            a = y.sin()  # y: 40000
            b = y.t().cos()  # y as well
            c = x.exp()  # its result: 40000
            d = c[:, :50].sin()  # half of it
            e = x.sin()  # a parameter: kept
            loss = (a + b + c).sum() + d.sum() + e.sum()
        settle(store)
        ledger = session.ledger
        assert ledger.saves == 5
        assert ledger.logical_nbytes == 4 * 40000 + 20000
        assert ledger.kept_nbytes == 40000
        assert ledger.by_slot["SinBackward0", "self"] == 40000 + 20000 + 40000
        assert ledger.by_slot["CosBackward0", "self"] == 40000
        assert ledger.by_slot["ExpBackward0", "result"] == 40000
        assert ledger.unique_nbytes == 40000 + 40000 + 40000
        assert ledger.stored_nbytes == 80000
        assert ledger.written_nbytes == ledger.stored_nbytes
        assert ledger.read_nbytes == 0
        del a, b, c, d, e, y
        loss.backward()
        ledger = session.ledger
        # Each was read once and held from its use by one node to that by the next.
        assert ledger.read_nbytes == 2 * 40000
        assert ledger.stall_seconds > 0
        figures = ledger.as_dict()
        assert figures["by_slot"]["SinBackward0.self"] == 100000
        assert figures["saves"] == ledger.saves
        text = str(ledger)
        assert "SinBackward0.self" in text
        assert f"{ledger.saves} tensors saved" in text


def test_bytes_in_a_pool_are_not_on_disk() -> None:
    with PoolStore(allocate=memory.empty, hold=memory.empty) as store:
        session = everything(store)
        with session:
            loss = unary_chain(normal(1, 32, 32), 3)
        assert session.ledger.stored_nbytes == 3 * 4096
        assert session.ledger.written_nbytes == 0
        loss.backward()
        assert session.ledger.read_nbytes == 3 * 4096


def test_empty_tensors_count_and_are_kept(store: RecordingStore) -> None:
    with everything(store) as session:
        out = normal(1, 0, 5).exp()
    assert (session.ledger.saves, session.ledger.logical_nbytes) == (1, 0)
    assert store.events == []
    out.sum().backward()


def test_a_session_counts_only_its_own_arrays_in_a_shared_store(store: RecordingStore) -> None:
    first, second = everything(store), everything(store)
    with first:
        a = unary_chain(normal(1, 32, 32), 2)
    settle(store)
    assert first.ledger.stored_nbytes == 2 * 4096
    assert second.ledger.stored_nbytes == 0
    with second:
        b = unary_chain(normal(1, 32, 32), 1)
    settle(store)
    assert second.ledger.stored_nbytes == 4096
    (a + b).backward()


@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize("kind", ["everything", "budget", "last"])
def test_rows_equal_the_counts_of_the_store(kind: str, threads: int) -> None:
    block = [nn.Linear(24, 24), nn.GELU(), nn.LayerNorm(24)]
    model = nn.Sequential(nn.Sequential(*block), nn.Tanh(), nn.Sequential(*block))
    with CountingStore(threads) as store:
        policy = {
            "everything": Offload(store, min_nbytes=0),
            "budget": Budget(5000, store),
            "last": Last(2, Offload(store, min_nbytes=0)),
        }[kind]
        session = CountingSession(policy)
        with session:
            loss = model(normal(1, 16, 24).clone()).sin().sum()
        settle(store)
        for _ in range(2):
            loss.backward(retain_graph=True)
        del loss
        ledger = session.ledger
        assert len(store.puts) > 3
        assert nonzero(ledger.rows, "writes") == dict(store.puts)
        assert nonzero(ledger.rows, "stored_nbytes") == dict(store.put_nbytes)
        assert nonzero(ledger.rows, "reads") == dict(store.gets)
        assert nonzero(ledger.rows, "read_nbytes") == dict(store.get_nbytes)
        assert ledger.hits == session.unpacks - store.gets.total() + store.prefetched_gets
        assert ledger.written_nbytes == ledger.stored_nbytes == store.stats().written_nbytes
        assert {row.module for row in ledger.rows} >= {"", "0.0", "0.1", "0.2", "1"}


def test_totals_are_the_sums_of_the_rows(store: RecordingStore) -> None:
    with everything(store) as session:
        loss = unary_chain(normal(1, 32, 32), 3) + normal(2, 32, 32).exp().sin().sum()
    loss.backward()
    ledger = session.ledger
    assert len(ledger.rows) == 3
    for name, total in ledger.as_dict().items():
        if name not in ("by_slot", "by_module", "rows"):
            rows = [getattr(row, name) for row in ledger.rows]
            assert total == getattr(ledger, name) == pytest.approx(sum(rows))
    assert ledger.rows[0].logical_nbytes == max(row.logical_nbytes for row in ledger.rows)
    assert ledger.by_slot.total() == ledger.by_module.total() == ledger.logical_nbytes


def test_two_sessions_at_work_on_one_store(store: RecordingStore) -> None:
    first, second = everything(store), everything(store)
    with first:
        a = unary_chain(normal(1, 32, 32), 2)
        with second:
            b = unary_chain(normal(2, 32, 32), 5)
        c = unary_chain(normal(3, 32, 32), 1)
    settle(store)
    b.backward()
    assert (first.ledger.writes, first.ledger.stored_nbytes) == (3, 3 * 4096)
    assert (first.ledger.reads, first.ledger.read_nbytes) == (0, 0)
    assert first.ledger.read_stall_seconds == 0
    (a + c).backward()
    assert (second.ledger.writes, second.ledger.stored_nbytes) == (5, 5 * 4096)
    assert (second.ledger.reads, second.ledger.read_nbytes) == (5, 5 * 4096)
    assert (first.ledger.reads, first.ledger.read_nbytes) == (3, 3 * 4096)


def test_a_tensor_saved_by_several_ops_is_written_in_the_row_of_the_first(
    store: RecordingStore,
) -> None:
    with everything(store) as session:
        y = normal(1, 16, 16).clone()
        loss = (y.sin() + y.cos() + y.t().exp().t().sin()).sum()
    del y
    settle(store)
    loss.backward()
    cos = row_of(session.ledger, "CosBackward0")
    assert (cos.saves, cos.logical_nbytes) == (1, 1024)
    assert (cos.unique_nbytes, cos.writes, cos.stored_nbytes, cos.reads) == (0, 0, 0, 0)
    sin = row_of(session.ledger, "SinBackward0")
    assert (sin.saves, sin.unique_nbytes, sin.writes) == (2, 1024, 1)
    exp = row_of(session.ledger, "ExpBackward0")
    assert (exp.saves, exp.unique_nbytes, exp.writes) == (1, 1024, 1)


def test_the_write_of_an_evicted_tensor_counts_in_its_own_row(store: RecordingStore) -> None:
    session = offgrad.offload(Budget(2 * 4096, store))
    with session:
        x = normal(1, 32, 32)
        loss = x.tanh().exp().sigmoid().sum()
    settle(store)
    ledger = session.ledger
    assert nonzero(ledger.rows, "writes") == {("TanhBackward0", "result", ""): 1}
    assert nonzero(ledger.rows, "stored_nbytes") == {("TanhBackward0", "result", ""): 4096}
    loss.backward()
    ledger = session.ledger
    assert nonzero(ledger.rows, "reads") == {("TanhBackward0", "result", ""): 1}
    assert row_of(ledger, "ExpBackward0").hits == row_of(ledger, "SigmoidBackward0").hits == 1
    assert ledger.writes == 1


def test_each_backward_of_a_retained_graph_counts() -> None:
    with RecordingStore(threads=0) as store:
        with everything(store) as session:
            loss = unary_chain(normal(1, 32, 32), 3)
        for passes in (1, 2, 3):
            loss.backward(retain_graph=True)
            ledger = session.ledger
            assert (ledger.reads, ledger.read_nbytes) == (3 * passes, 3 * passes * 4096)
            assert (ledger.writes, ledger.stored_nbytes, ledger.hits) == (3, 3 * 4096, 0)


def test_unpacks_are_hits_while_the_tensor_lives(store: RecordingStore) -> None:
    with everything(store) as session:
        y = normal(1, 16, 16).clone()
        loss = (y.sin() + y.cos()).sum()
    loss.backward(retain_graph=True)
    assert store.all("get") == []
    assert (session.ledger.reads, session.ledger.hits) == (0, 2)
    assert row_of(session.ledger, "SinBackward0").hits == 2
    assert (session.ledger.read_waits, session.ledger.read_stall_seconds) == (0, 0)


def test_waits_and_their_time_count_for_saves_and_for_unpacks() -> None:
    backend = SlowReads(delay=0.002)
    with memory_store(backend, threads=0) as store:
        with everything(store) as session:
            loss = unary_chain(normal(1, 32, 32), 3)
        ledger = session.ledger
        assert (ledger.write_waits, ledger.read_waits, ledger.waits) == (3, 0, 3)
        assert ledger.write_stall_seconds >= 3 * 0.002
        loss.backward()
        ledger = session.ledger
        assert (ledger.write_waits, ledger.read_waits, ledger.waits) == (3, 3, 6)
        assert ledger.read_stall_seconds >= 3 * 0.002
        assert ledger.stall_seconds == ledger.write_stall_seconds + ledger.read_stall_seconds


def test_dropped_writes_count_no_stored_bytes() -> None:
    backend = MemoryBackend()
    with memory_store(backend) as store:
        backend.gate.clear()
        session = everything(store)
        with session:
            lost = unary_chain(normal(1, 32, 32), 3)
        assert (session.ledger.writes, session.ledger.stored_nbytes) == (3, 0)
        del lost
        backend.gate.set()
        settle(store)
        with session:
            loss = unary_chain(normal(1, 32, 32), 2)
        settle(store)
        assert (session.ledger.writes, session.ledger.stored_nbytes) == (5, 2 * 4096)
        del loss
        assert (session.ledger.writes, session.ledger.stored_nbytes) == (5, 2 * 4096)


def test_stored_bytes_are_the_encoded_bytes(tmp_path: Path) -> None:
    with DiskStore(tmp_path, codec="zstd", allocate=memory.empty) as store:
        with everything(store) as session:
            loss = (offgrad.zeros(256, 256, requires_grad=True) + 0).exp().sum()
        settle(store)
        ledger = session.ledger
        assert 0 < ledger.stored_nbytes < ledger.logical_nbytes / 10
        assert ledger.stored_nbytes == store.stats().written_nbytes
        loss.backward()
        assert session.ledger.stored_nbytes == ledger.stored_nbytes
        assert session.ledger.read_nbytes == ledger.logical_nbytes


def test_encoded_bytes_are_counted_apart_from_stored_ones(tmp_path: Path) -> None:
    """The codec makes 2 bytes of each 4, and a direct write takes whole pages."""
    x, y = normal(1, 60, 60), normal(1, 30, 60)
    for pack_below_nbytes, stored in ((0, 8192 + 4096), (1 << 20, 7200 + 3600)):
        with DiskStore(
            tmp_path, codec="bfloat16", pack_below_nbytes=pack_below_nbytes, allocate=memory.empty
        ) as store:
            with everything(store) as session:
                loss = x.tanh().sum() + y.exp().sum()
            settle(store)
            rows = session.ledger.rows
            tanh, exp = ("TanhBackward0", "result", ""), ("ExpBackward0", "result", "")
            assert nonzero(rows, "logical_nbytes") == {tanh: 14400, exp: 7200}
            assert nonzero(rows, "encoded_nbytes") == {tanh: 7200, exp: 3600}
            assert sum(nonzero(rows, "stored_nbytes").values()) == stored
            del loss  # arrays that are gone still count
            ledger = session.ledger
            assert (ledger.encoded_nbytes, ledger.stored_nbytes) == (10800, stored)
            assert ledger.as_dict()["encoded_nbytes"] == 10800
            assert "10.5 KiB encoded" in str(ledger)


def test_without_a_codec_encoded_bytes_are_the_written_bytes() -> None:
    backend = MemoryBackend()
    with memory_store(backend) as pending:
        backend.gate.clear()
        with everything(pending) as session:
            loss = unary_chain(normal(1, 32, 32), 2)
        assert session.ledger.encoded_nbytes == 0
        backend.gate.set()
        settle(pending)
        assert session.ledger.encoded_nbytes == 2 * 4096
        loss.backward()


def test_a_ledger_does_not_change_afterwards(store: RecordingStore) -> None:
    with everything(store) as session:
        before = session.ledger
        loss = unary_chain(normal(1, 8, 8), 1)
    assert (before.saves, before.rows) == (0, [])
    settle(store)
    middle = session.ledger
    loss.backward()
    assert (middle.reads, session.ledger.reads) == (0, 1)


def test_json_round_trips_to_the_dict(store: RecordingStore) -> None:
    block = nn.Sequential(nn.Sequential(nn.GELU()), nn.Tanh())
    with everything(store) as session:
        loss = block(normal(1, 16, 16).clone()).sum()
    loss.backward()
    ledger = session.ledger
    figures = json.loads(ledger.to_json(indent=1))
    assert figures == ledger.as_dict()
    assert json.loads(ledger.to_json()) == figures
    assert figures["by_module"] == {"0.0": 1024, "1": 1024}
    names = [(row["op"], row["slot"], row["module"]) for row in figures["rows"]]
    assert sorted(names) == [("GeluBackward0", "self", "0.0"), ("TanhBackward0", "result", "1")]
    rows = [
        LedgerRow(**{k: v for k, v in row.items() if k not in ("waits", "stall_seconds")})
        for row in figures["rows"]
    ]
    assert Ledger.of(rows) == ledger


def test_the_table_has_a_line_for_each_of_the_largest_rows_and_one_for_the_rest() -> None:
    rows = [
        LedgerRow(op=f"Op{n}", slot="self", logical_nbytes=n, saves=1, store="disk" * (n % 2))
        for n in range(1, 15)
    ]
    summary, table, legend = str(Ledger.of(rows)).split("\n\n")
    assert summary.startswith("14 tensors saved for backward, 105 B")
    lines = table.splitlines()
    assert lines[0].split() == ["op", "and", "slot", "store", "saves", "saved"]
    assert lines[1].split() == ["Op14.self", "-", "1", "14", "B"]
    assert lines[2].split() == ["Op13.self", "disk", "1", "13", "B"]
    assert lines[-1].split() == ["(4", "more)", "disk", "4", "10", "B"]
    assert len(lines) == 1 + 10 + 1
    assert legend.startswith("store: where the policy sends them; saves: tensors saved")
    assert "recomputed" not in legend
    assert str(Ledger()).startswith("0 tensors saved")
    assert repr(Ledger()).startswith("<Ledger: 0 tensors saved")


def test_threads_that_share_a_session_lose_no_count() -> None:
    with RecordingStore(threads=2) as store:
        session = everything(store)

        def work() -> None:
            for _ in range(20):
                with session:
                    loss = unary_chain(normal(1, 8, 8), 4)
                settled = session.ledger
                assert settled.stored_nbytes <= settled.logical_nbytes
                loss.backward()

        in_threads(*[work] * 4)
        ledger = session.ledger
        assert (ledger.saves, ledger.writes) == (320, 320)
        assert ledger.reads == len(store.all("get"))
        assert ledger.read_nbytes == 256 * ledger.reads


def test_arrays_that_are_gone_leave_no_entries_in_the_ledger(store: RecordingStore) -> None:
    session = everything(store)
    for _ in range(50):
        with session:
            loss = unary_chain(normal(1, 8, 8), 2)
        settle(store)
        loss.backward()
        del loss
    (counter,) = session._ledger._rows.values()
    assert len(counter._pending) <= 4
    assert session.ledger.stored_nbytes == 100 * 256
