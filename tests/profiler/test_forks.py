"""Forks while other threads run backward passes that are recorded."""

import os
import threading
import time

import pytest

import offgrad
from offgrad.profiler import profile_memory
from offgrad.profiler.recorder import Points, Recorder
from tests.forked import run_in_child

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def _backward() -> None:
    x = offgrad.ones(8, requires_grad=True)
    (x * x).sum().backward()


def test_a_child_records_on_while_other_threads_run_backward_passes() -> None:
    stopping = threading.Event()

    def repeat() -> None:
        while not stopping.is_set():
            _backward()

    threads = [threading.Thread(target=repeat) for _ in range(3)]
    with profile_memory() as profile:
        for each in threads:
            each.start()
        try:
            for _ in range(30):
                time.sleep(0.002)
                run_in_child(_backward)
        finally:
            stopping.set()
            for each in threads:
                each.join()
    assert any(each.name == "backward" for each in profile.phases)


def test_a_pass_of_another_thread_has_ended_in_the_child() -> None:
    recorder = Recorder()
    running, end = threading.Event(), threading.Event()

    def run_pass() -> None:
        recorder.on_backward(True)
        running.set()
        assert end.wait(60)
        recorder.on_backward(False)

    def in_child() -> None:
        assert [each.is_backward for each in recorder.segments] == [False, True, False]
        recorder.on_backward(True)
        recorder.on_backward(False)
        assert [each.is_backward for each in recorder.segments] == [False, True, False, True, False]

    thread = threading.Thread(target=run_pass)
    thread.start()
    assert running.wait(60)
    run_in_child(in_child)
    end.set()
    thread.join()


def test_points_are_downsampled_in_a_child_of_a_fork_during_a_downsampling() -> None:
    points = Points(max_points=1000)
    stopping = threading.Event()

    def fill() -> None:
        while not stopping.is_set():
            points.downsample(500)

    def in_child() -> None:
        for nbytes in range(3000):
            points.add(nbytes)
        assert len(points) <= 1000

    for nbytes in range(999):
        points.add(nbytes)
    thread = threading.Thread(target=fill)
    thread.start()
    try:
        for _ in range(50):
            time.sleep(0.0005)
            run_in_child(in_child)
    finally:
        stopping.set()
        thread.join()
