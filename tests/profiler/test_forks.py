"""Forks while other threads run backward passes that are recorded."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

import offgrad
from offgrad import memory
from offgrad.profiler import profile, profile_memory
from offgrad.profiler.recording import Recording
from tests.forked import run_in_child

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def _backward() -> None:
    x = offgrad.ones(8, requires_grad=True)
    (x * x).sum().backward()


@pytest.mark.parametrize("record", [profile_memory, profile])
def test_a_child_records_on_while_other_threads_run_backward_passes(
    record: Callable[[], AbstractContextManager[Any]],
) -> None:
    stopping = threading.Event()

    def repeat() -> None:
        while not stopping.is_set():
            _backward()

    threads = [threading.Thread(target=repeat) for _ in range(3)]
    with record() as prof:

        def in_child() -> None:
            _backward()
            assert prof.peak_nbytes > 0

        for each in threads:
            each.start()
        try:
            for _ in range(20):
                time.sleep(0.002)
                run_in_child(in_child)
        finally:
            stopping.set()
            for each in threads:
                each.join()
    figures = prof.to_dict() if record is profile else prof.as_dict()
    assert any(each["name"] == "backward" for each in figures["phases"])


def test_a_profile_ends_in_a_child() -> None:
    def in_child() -> None:
        with profile() as inner:
            offgrad.zeros(1000)
        assert inner.peak_nbytes >= 4000
        recording.__exit__(None, None, None)
        assert prof.to_dict()["timeline"]["nbytes"][-1] == memory.allocated()

    recording = profile()
    with recording as prof:
        kept = offgrad.zeros(100)
        run_in_child(in_child)
        del kept


def test_a_pass_of_another_thread_has_ended_in_the_child() -> None:
    recording = Recording(detailed=False)
    running, end = threading.Event(), threading.Event()

    def run_pass() -> None:
        recording.tape.begin_pass([])
        running.set()
        assert end.wait(60)
        recording.tape.end_pass()

    def names() -> list[str]:
        account = recording.read()
        return [each["name"] for each in account.steps.phases(recording.now, account.total)]

    def in_child() -> None:
        assert names() == ["other", "backward", "other"]
        recording.tape.begin_pass([])
        recording.tape.end_pass()
        assert names() == ["other", "backward", "other", "backward", "other"]

    thread = threading.Thread(target=run_pass)
    thread.start()
    assert running.wait(60)
    run_in_child(in_child)
    end.set()
    thread.join()
