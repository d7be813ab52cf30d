"""The figures of a session."""

from pathlib import Path

from offgrad_storage import DiskStore, PoolStore

from offgrad import memory
from tests.policies.backends import RecordingStore
from tests.policies.graphs import normal
from tests.policies.helpers import everything, settle, unary_chain


def test_the_ledger_by_hand(tmp_path: Path) -> None:
    x = normal(1, 100, 100)
    with DiskStore(tmp_path, allocate=memory.empty) as store:
        session = everything(store)
        with session:
            y = x.clone()
            a = y.sin()  # y: 40000
            b = y.t().cos()  # y again
            c = x.exp()  # its result: 40000
            d = c[:, :50].sin()  # a part of it: 20000
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
        assert ledger.unique_nbytes == 40000 + 40000 + 20000 + 40000
        assert ledger.stored_nbytes == 100000
        assert ledger.written_nbytes == ledger.stored_nbytes
        assert ledger.read_nbytes == 0
        del a, b, c, d, e, y
        loss.backward()
        ledger = session.ledger
        # y was read once: after its use by one node it was held for that by the next.
        assert ledger.read_nbytes == 2 * 40000 + 20000
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


def test_a_session_counts_its_own_part_of_a_store(store: RecordingStore) -> None:
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
