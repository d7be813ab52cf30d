"""The recorder: downsampling keeps the extremes."""

import gc
import sys
import threading
from types import FrameType
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from offgrad.profiler.recorder import Points, Recorder, extremes


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


def test_few_points_are_all_kept() -> None:
    points = Points(max_points=100)
    for value in range(99):
        points.add(value)
    seconds, nbytes = points.arrays()
    assert nbytes.tolist() == list(range(99))
    assert (np.diff(seconds) >= 0).all()


def test_downsampling_keeps_extremes() -> None:
    points = Points(max_points=1000)
    values = np.random.default_rng(0).integers(10, 1_000_000, 20_000)
    values[7_777] = 5_000_000
    values[12_345] = 1
    for value in values.tolist():
        points.add(value)
    _, nbytes = points.arrays()
    assert len(nbytes) < 1100
    assert (nbytes.max(), nbytes.min()) == (5_000_000, 1)
    assert (nbytes[0], nbytes[-1]) == (values[0], values[-1])


def test_a_pass_does_not_read_the_segments_before_it() -> None:
    def lines_of_the_last_pass(passes: int) -> int:
        recorder = Recorder()
        for _ in range(passes):
            recorder.on_backward(True)
            recorder.on_backward(False)
        lines = 0

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal lines
            lines += 1
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            recorder.on_backward(True)
        finally:
            sys.settrace(before)
        return lines

    gc.disable()
    try:
        assert lines_of_the_last_pass(1000) < 2 * lines_of_the_last_pass(50)
    finally:
        gc.enable()


def test_threads_lose_no_extreme() -> None:
    points = Points(max_points=500)

    def work(number: int) -> None:
        for value in range(5000):
            points.add(number * 100_000 + value)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds, nbytes = points.arrays()
    assert nbytes.max() == 404_999
    assert nbytes.min() == 100_000
    assert (np.diff(seconds) >= 0).all()


def test_large_counts_stay_exact() -> None:
    points = Points()
    points.add(2**50 + 1)
    assert points.arrays()[1].tolist() == [2**50 + 1]


def test_nested_and_concurrent_passes_are_one_segment() -> None:
    recorder = Recorder()
    for begins in (True, True, False, True, False, False):
        recorder.on_backward(begins)
    recorder.end()
    assert [segment.is_backward for segment in recorder.segments] == [False, True, False]


def test_a_pass_that_began_before_the_recording_is_ignored() -> None:
    recorder = Recorder()
    recorder.on_backward(False)
    recorder.on_backward(True)
    recorder.on_backward(False)
    recorder.end()
    assert [segment.is_backward for segment in recorder.segments] == [False, True, False]
