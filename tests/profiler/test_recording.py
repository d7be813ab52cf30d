"""What a recording keeps: extremes, and no more of ten thousand steps than of some thousand."""

import json
import threading

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import offgrad
from offgrad import memory
from offgrad.profiler import Profile, profile
from offgrad.profiler.account import MAX_ROWS, Account
from offgrad.profiler.events import MAX_EVENTS, TOTAL
from offgrad.profiler.extremes import extremes
from offgrad.profiler.recording import Recording


@given(hnp.arrays(np.float64, st.integers(1, 500), elements=st.integers(0, 50)), st.integers(1, 60))
def test_extremes_keep_smallest_largest_first_and_last(
    values: np.ndarray[tuple[int], np.dtype[np.float64]], bins: int
) -> None:
    chosen = extremes(values, bins)
    assert chosen[0] == 0
    assert chosen[-1] == values.size - 1
    assert (np.diff(chosen) > 0).all()
    assert values[chosen].max() == values.max()
    assert values[chosen].min() == values.min()
    assert chosen.size <= 2 * bins + 6


def test_downsampling_keeps_extremes() -> None:
    account = Account(0.0, 0.0)
    values = np.random.default_rng(0).integers(10, 1_000_000, 2 * MAX_ROWS)
    values[7_777] = 5_000_000
    values[52_345] = 1
    events = [(TOTAL, float(index), value) for index, value in enumerate(values.tolist())]
    for begin in range(0, len(events), 1_000):
        account.read(events[begin : begin + 1_000])
    table = account.table(float(len(events)))
    nbytes = table[:, 1:].sum(axis=1)
    assert len(table) <= MAX_ROWS + 1_001
    assert (nbytes.max(), nbytes.min()) == (5_000_000, 1)
    assert nbytes[0] == values[0]
    assert nbytes[-1] == values[-1]
    assert account.peak_nbytes == 5_000_000


def _step(prof: Profile, x: "offgrad.Tensor") -> None:
    (x * x).sum().backward()
    prof.step()


def test_ten_thousand_steps_take_no_more_than_some_thousand() -> None:
    x = offgrad.ones(4, requires_grad=True)
    tape = None
    lengths = []
    with profile(interval=None) as prof:
        tape = prof._recording.tape
        _step(prof, x)
        for count in (11_000, 4_000):
            for _ in range(count):
                tape._phases.begin_forward()
                tape.begin_pass([])
                tape.end_pass()
                prof.step()
            _step(prof, x)
            lengths.append(len(prof.to_json()))
    assert lengths[1] < 1.1 * lengths[0]
    figures = prof.to_dict()
    steps = figures["steps"]
    assert sum(each["count"] for each in steps) == 15_003
    assert len(steps) <= 1_000
    assert [each["index"] for each in steps[1:]] == [
        each["index"] + each["count"] for each in steps[:-1]
    ]
    assert figures["phase_totals"]["backward"]["count"] == 15_003
    assert len(figures["phases"]) <= 4_001


def test_events_do_not_wait_without_bound() -> None:
    recording = Recording(detailed=True)
    recording.open()
    try:
        for _ in range(MAX_EVENTS):
            offgrad.zeros(1)
        assert len(recording.tape.events) <= MAX_EVENTS + 10
    finally:
        recording.close()
    assert recording.account.total == memory.allocated()


def test_threads_lose_nothing() -> None:
    with profile() as prof:
        kept: list[object] = []

        def work() -> None:
            for _ in range(50):
                x = offgrad.ones(100, requires_grad=True)
                kept.append(x)
                x.sin().sum().backward()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        figures = prof.to_dict()
        assert figures["timeline"]["nbytes"][-1] == memory.allocated()
    assert figures["timeline"]["categories"]["gradient"][-1] == 200 * 400
    assert np.diff(figures["timeline"]["seconds"]).min() >= 0
    spans = {each["thread"] for each in figures["spans"] if each["kind"] == "op"}
    assert len(spans) == 4
    json.dumps(figures)
