"""PyTorch's face of the profiler: activities, schedules, key_averages and traces."""

import json
from pathlib import Path
from typing import Any

import pytest

import offgrad as og
from offgrad.profiler import (
    ProfilerAction,
    ProfilerActivity,
    profile,
    record_function,
    schedule,
    supported_activities,
    tensorboard_trace_handler,
)


def work() -> None:
    x = og.rand(20, 20, requires_grad=True)
    (x @ x).tanh().sum().backward()


def by_name(prof: Any) -> dict[str, Any]:
    return {row.key: row for row in prof.key_averages()}


def test_averages_count_operations_of_forward_and_backward() -> None:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, interval=None) as prof:
        for _ in range(3):
            with record_function("a step"):
                work()
    rows = by_name(prof)
    assert rows["a step"].count == 3
    assert rows["MmBackward0"].count == 6  # forward and backward
    assert rows["TanhBackward0"].cpu_memory_usage >= 3 * 1600
    inner = sum(row.self_cpu_time_total for name, row in rows.items() if name != "a step")
    step = rows["a step"]
    assert step.cpu_time_total == pytest.approx(step.self_cpu_time_total + inner)
    assert step.cpu_time == pytest.approx(step.cpu_time_total / 3)
    assert step.cuda_time_total == step.device_time_total == 0
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        _ = step.colour
    total = prof.key_averages().total_average()
    assert total.self_cpu_time_total == pytest.approx(step.cpu_time_total)


def test_the_table_is_sorted_and_limited() -> None:
    with profile(interval=None) as prof:
        work()
    averages = prof.key_averages(group_by_input_shape=True)
    lines = averages.table(sort_by="count", row_limit=2, header="What ran").splitlines()
    assert lines[0] == "What ran"
    assert lines[2].split()[:3] == ["operation", "self", "%"]
    counts = [int(line.split()[-1]) for line in lines[3:5]]
    assert counts == sorted((row.count for row in averages), reverse=True)[:2]
    assert len(averages.table(row_limit=-1).splitlines()) == len(averages) + 3
    with pytest.raises(AttributeError, match="weight"):
        averages.table(sort_by="weight")


def test_a_schedule_chooses_the_steps_that_count() -> None:
    seen: list[int] = []
    plan = schedule(wait=1, warmup=1, active=2, repeat=2)
    with profile(
        schedule=plan,
        on_trace_ready=lambda prof: seen.append(by_name(prof)["mark"].count),
        interval=None,
    ) as prof:
        assert prof.key_averages() == []
        for _ in range(10):
            with record_function("mark"):
                work()
            prof.step()
    assert seen == [2, 2]
    assert by_name(prof)["mark"].count == 2


def test_actions_of_a_schedule() -> None:
    plan = schedule(wait=1, warmup=1, active=2, repeat=1, skip_first=1)
    none, warmup = ProfilerAction.NONE, ProfilerAction.WARMUP
    record, save = ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE
    assert [plan(step) for step in range(7)] == [none, none, warmup, record, save, none, none]
    again = schedule(wait=0, warmup=0, active=1)
    assert [again(step) for step in range(2)] == [save, save]
    early = schedule(wait=2, warmup=0, active=1, skip_first=1, skip_first_wait=1)
    assert [early(step) for step in range(5)] == [none, save, none, none, save]
    for wrong in ({"active": 0}, {"wait": -1}):
        with pytest.raises(ValueError, match="active above 0"):
            schedule(**{"wait": 1, "warmup": 1, "active": 1, **wrong})


def test_without_a_schedule_the_trace_is_ready_at_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    with profile(on_trace_ready=tensorboard_trace_handler(str(folder), "me"), interval=None):
        work()
    (path,) = folder.iterdir()
    assert path.name.startswith("me.")
    assert path.name.endswith(".pt.trace.json")
    assert json.loads(path.read_text())["traceEvents"]
    with pytest.raises(NotImplementedError, match="gzip"):
        tensorboard_trace_handler(str(folder), use_gzip=True)


def test_an_error_in_the_block_shows_no_trace() -> None:
    with (
        pytest.raises(ZeroDivisionError),
        profile(on_trace_ready=lambda prof: pytest.fail("shown"), interval=None),
    ):
        _ = 1 / 0


def test_start_and_stop(tmp_path: Path) -> None:
    prof = profile(interval=None)
    with pytest.raises(AttributeError, match="before it has begun"):
        prof.step()
    with pytest.raises(RuntimeError, match="nothing is being recorded"):
        prof.stop()
    prof.start()
    work()
    prof.step()
    prof.stop()
    assert by_name(prof)["TanhBackward0"].count == 2
    prof.export_chrome_trace(str(tmp_path / "trace.json"))
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_the_first_profiler_of_autograd() -> None:
    with og.autograd.profiler.profile(use_cuda=False) as prof:
        work()
    assert by_name(prof)["MmBackward0"].count == 2
    with og.autograd.profiler.profile(enabled=False) as nothing:
        work()
    assert nothing is None


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match="no option colour"):
        profile(colour=1)
    assert supported_activities() == {ProfilerActivity.CPU}


def test_marks_cost_nothing_and_nest_without_a_profile() -> None:
    mark = record_function("again")
    with mark, mark:
        pass
    assert og.autograd.profiler._observers == []
