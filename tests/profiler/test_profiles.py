"""profile: figures against bytes counted by hand."""

import copy
import gc
import inspect
import json
import pickle
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from weakref import ref

import pytest

import offgrad
from offgrad import memory, nn, storage
from offgrad.autograd import engine
from offgrad.autograd.op import Op
from offgrad.nn.hooks import call_stack
from offgrad.profiler import Profile, events, profile
from offgrad.profiler.categories import CATEGORIES, PARAMETER

ROWS, WIDTH = 64, 256
NBYTES = ROWS * WIDTH * 4  # of an activation


def _model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())


def _nbytes(model: nn.Module) -> int:
    return sum(each.nbytes for each in model.parameters())


def _at(figures: dict[str, Any], nbytes: int) -> dict[str, int]:
    """Return the bytes by category where the timeline has its peak."""
    index = figures["timeline"]["nbytes"].index(nbytes)
    return {name: values[index] for name, values in figures["timeline"]["categories"].items()}


def test_categories_of_a_training_step() -> None:
    model = _model()
    optimizer = offgrad.optim.AdamW(model.parameters())
    with profile() as prof:
        for _ in range(2):
            x = offgrad.randn(ROWS, WIDTH)
            loss = model(x).sum()
            held = prof.to_dict()["timeline"]["categories"]
            loss.backward()
            del loss
            graded = prof.to_dict()["timeline"]["categories"]
            optimizer.step()
            stepped = prof.to_dict()["timeline"]["categories"]
            optimizer.zero_grad()
            prof.step()
    assert held["parameter"][-1] >= _nbytes(model)
    # The outputs of Tanh, of which the first is saved twice.
    assert held["saved for backward"][-1] == 2 * NBYTES
    assert held["input"][-1] - held["input"][0] == NBYTES
    assert graded["gradient"][-1] == _nbytes(model)
    assert graded["saved for backward"][-1] == 0
    assert stepped["optimizer state"][-1] == 2 * _nbytes(model) + 4 * 4


def test_the_total_is_that_of_the_allocator() -> None:
    model = _model()
    memory.reset_peak()
    with profile() as prof:
        model(offgrad.randn(ROWS, WIDTH)).square().mean().backward()
        peak = memory.max_allocated()
        figures = prof.to_dict()
        assert figures["timeline"]["nbytes"][-1] == memory.allocated()
    assert prof.peak_nbytes == peak == max(figures["timeline"]["nbytes"])
    assert sum(_at(figures, peak).values()) == peak
    assert set(_at(figures, peak)) == set(CATEGORIES)
    assert sum(row["nbytes"] for row in figures["peak"]["contents"]) == peak


def test_the_peak_names_op_slot_module_and_line() -> None:
    model = nn.Sequential(nn.Tanh())
    with profile() as prof:
        x = offgrad.randn(ROWS, WIDTH, requires_grad=True)
        y = model(x)  # makes it
        y.sum().backward()
    rows = [row for row in prof.to_dict()["peak"]["contents"] if row["op"] == "TanhBackward0"]
    (row,) = [row for row in rows if row["slot"] == "result"]
    assert row["category"] == "saved for backward"
    assert (row["module"], row["shape"], row["dtype"]) == ("0", [ROWS, WIDTH], "float32")
    path, _, rest = row["line"].rpartition(":")
    assert path == __file__
    with open(path) as file:
        assert "makes it" in file.readlines()[int(rest.split()[0]) - 1]


def test_steps_and_phases() -> None:
    model = _model()
    optimizer = offgrad.optim.SGD(model.parameters())
    with profile() as prof:
        for _ in range(3):
            model(offgrad.randn(ROWS, WIDTH)).sum().backward()
            optimizer.step()
            prof.step()
    figures = json.loads(prof.to_json())
    assert [step["index"] for step in figures["steps"]] == [0, 1, 2]
    for index in range(3):
        names = [each["name"] for each in figures["phases"] if each["step"] == index]
        assert [name for name in names if name != "other"] == ["forward", "backward", "optimizer"]
    for phase in figures["phases"]:
        assert phase["start"] <= phase["end"]
        assert phase["peak_nbytes"] >= max(phase["start_nbytes"], phase["end_nbytes"])


def test_modules() -> None:
    with profile() as prof:
        _model()(offgrad.randn(ROWS, WIDTH)).sum().backward()
    modules = {each["name"]: each for each in prof.to_dict()["modules"]}
    assert set(modules) == {"", "0", "1", "2", "3"}
    assert (modules["1"]["type"], modules["1"]["calls"]) == ("Tanh", 1)
    assert modules["1"]["saved_nbytes"] == NBYTES
    assert modules[""]["forward_seconds"] >= modules["0"]["forward_seconds"] > 0
    assert modules[""]["backward_seconds"] >= modules["0"]["backward_seconds"] > 0
    assert modules[""]["forward_peak_nbytes"] >= modules["3"]["forward_peak_nbytes"]


def test_nothing_is_observed_afterwards() -> None:
    plain = Op.__dict__["_apply"]
    with pytest.raises(ValueError, match="stop"), profile(), profile():
        raise ValueError("stop")
    assert Op.__dict__["_apply"] is plain
    assert not engine.observers
    assert not call_stack.observers
    assert not memory.allocator.counter.observers
    assert isinstance(memory.Storage.__dict__["role"], str)


def test_profiles_nest() -> None:
    model = _model()
    with profile() as outer:
        model(offgrad.randn(ROWS, WIDTH)).sum().backward()
        with profile() as inner:
            model(offgrad.randn(ROWS, WIDTH)).sum().backward()
    names = [
        [each["name"] for each in prof.to_dict()["phases"] if each["name"] == "backward"]
        for prof in (outer, inner)
    ]
    assert [len(each) for each in names] == [2, 1]
    saved = [each["saved_nbytes"] for prof in (outer, inner) for each in prof.to_dict()["modules"]]
    assert saved[:5] == saved[5:]


def test_a_decorator_records_each_call() -> None:
    @profile()
    def train() -> int:
        offgrad.zeros(ROWS, WIDTH)
        return 3

    assert train() == 3
    assert isinstance(train.profile, Profile)  # type: ignore[attr-defined]
    assert train.profile.peak_nbytes >= NBYTES  # type: ignore[attr-defined]


def test_a_decorator_refuses_functions_that_pause() -> None:
    def generate() -> Iterator[int]:
        yield 1

    async def generate_later() -> AsyncIterator[int]:
        yield 1

    for each in (generate, generate_later):
        with pytest.raises(TypeError, match="run to their end, got generate"):
            profile()(each)


@pytest.mark.parametrize("interval", [0, -1, float("nan"), float("inf"), "1"])
def test_intervals_that_no_thread_can_wait(interval: Any) -> None:
    with pytest.raises(ValueError, match="number of seconds above 0, or None, got"):
        profile(interval=interval)


def test_nothing_changes_a_profile_after_its_block() -> None:
    with profile(interval=None) as prof:
        offgrad.zeros(ROWS, WIDTH)
        prof.step()
    figures = prof.to_dict()
    prof.step()
    _model()(offgrad.randn(ROWS, WIDTH)).sum().backward()
    assert prof.to_dict() == figures
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"prof\.to_dict\(\)"):
            duplicate(prof)


def test_an_error_inside_ends_the_recording() -> None:
    with (
        pytest.raises(offgrad.OutOfMemoryError),
        memory.limit(memory.allocated() + 512 * 1024),
        profile() as prof,
    ):
        [offgrad.zeros(128, 256) for _ in range(5)]
    figures = prof.to_dict()
    assert prof.peak_nbytes - figures["timeline"]["nbytes"][0] == 512 * 1024


def test_the_smallest_of_very_many_are_added_up() -> None:
    with profile(interval=None) as prof:
        kept = [offgrad.zeros(index) for index in range(1, 1_100)]
    peak = prof.to_dict()["peak"]
    assert sum(each["nbytes"] for each in peak["contents"]) == peak["nbytes"]
    assert len(peak["contents"]) < 1_000 + 9
    del kept


def _categories(prof: Profile) -> dict[str, list[int]]:
    figures: dict[str, list[int]] = prof.to_dict()["timeline"]["categories"]
    return figures


def test_a_session_on_disk() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Tanh(), nn.Tanh())
    with profile() as prof:
        with offgrad.offload("disk"):
            loss = model(offgrad.randn(ROWS, WIDTH)).sum()
        assert _categories(prof)["saved for backward"][-1] == 0
        loss.backward()
    figures = prof.to_dict()
    categories = figures["timeline"]["categories"]
    assert max(categories["in flight"]) > 0
    modules = {each["name"]: each for each in figures["modules"]}
    assert modules["2"]["packs"] == modules["2"]["unpacks"] == 1
    assert figures["ledger"]["saves"] == prof.ledger.saves == 4
    assert {each["kind"] for each in figures["spans"]} >= {"module", "op", "phase"}


def test_tensors_read_ahead_are_prefetched_until_they_are_used() -> None:
    x = offgrad.randn(ROWS, WIDTH, requires_grad=True)
    with offgrad.offload("disk") as session:
        loss = x.sin().sin().sin().sum()
    session.reclaim()
    with profile() as prof:
        loss.backward()
    contents = prof.to_dict()["peak"]["contents"]
    ahead = max(_categories(prof)["prefetched"])
    assert ahead % NBYTES == 0
    assert ahead > 0
    assert _categories(prof)["prefetched"][-1] == 0
    rows = [each for each in contents if each["category"] == "prefetched"]
    assert all((each["op"], each["slot"]) == ("SinBackward0", "self") for each in rows)


def test_what_a_budget_holds_is_saved_for_backward() -> None:
    with profile() as prof, offgrad.offload("budget:1GiB"):
        loss = offgrad.randn(ROWS, WIDTH, requires_grad=True).sin().sin().sum()
        # The input is a leaf that requires grad, and so not saved.
        assert _categories(prof)["saved for backward"][-1] == NBYTES
        del loss


def test_pages_count_as_what_they_hold() -> None:
    model = _model()
    total = _nbytes(model)
    pages = offgrad.offload_model(model, "disk", window=f"{total // 2}B")
    optimizer = offgrad.optim.SGD(model.parameters(), momentum=0.9)
    with profile() as prof:
        for _ in range(2):
            model(offgrad.randn(ROWS, WIDTH)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            categories = _categories(prof)
            lasting = ("parameter", "gradient", "optimizer state")
            held = sum(categories[name][-1] for name in lasting)
            assert held >= pages.resident_nbytes
    assert max(categories["optimizer state"]) > 0
    assert prof.pages.reads > 0
    assert prof.to_dict()["pages"]["reads"] == prof.pages.reads
    ops = {each["op"] for each in prof.to_dict()["peak"]["contents"]}
    assert "Parameter" in ops
    del pages


class _Triple(offgrad.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = x * 3
        ctx.save_for_backward(y)
        return y.sum()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return ctx.saved_tensors[0] * 0 + grad * 3


def test_what_custom_functions_save_is_saved_for_backward() -> None:
    x = offgrad.randn(ROWS, WIDTH, requires_grad=True)
    with profile(interval=None) as prof:
        total = _Triple.apply(x)
        assert _categories(prof)["saved for backward"][-1] == NBYTES
        total.backward()
        assert _categories(prof)["saved for backward"][-1] == 0


def test_small_saves_of_custom_functions_count() -> None:
    x = offgrad.randn(64, requires_grad=True)
    with profile(interval=None) as prof:
        total = _Triple.apply(x)
        assert _categories(prof)["saved for backward"][-1] == x.nbytes
        del total
        assert _categories(prof)["saved for backward"][-1] == 0


def test_what_a_recorder_of_saves_holds_is_saved_for_backward() -> None:
    with profile(interval=None, saves=True) as prof:
        y = offgrad.randn(ROWS, WIDTH, requires_grad=True) * 3
        z = y.sin()
        del y
        assert _categories(prof)["saved for backward"][-1] == NBYTES
        z.sum().backward()
        assert _categories(prof)["saved for backward"][-1] == 0


def test_tensors_that_a_pack_hook_returns_are_saved_for_backward() -> None:
    x = offgrad.randn(ROWS, WIDTH, requires_grad=True)
    hooks = offgrad.autograd.graph.saved_tensors_hooks(lambda each: each.clone(), lambda each: each)
    with profile(interval=None) as prof, hooks:
        y = (x * 3).sin()
        assert _categories(prof)["saved for backward"][-1] == NBYTES
        del y
        assert _categories(prof)["saved for backward"][-1] == 0


def test_data_from_before_the_recording_is_input_once_it_is_used() -> None:
    model = _model()
    x, unused = offgrad.randn(ROWS, WIDTH), offgrad.randn(ROWS, WIDTH)
    output = model(x)
    with profile(interval=None) as prof:
        assert _categories(prof)["input"][-1] == 0
        loss = (model(x) + output).sum()
        assert _categories(prof)["input"][-1] == NBYTES
    (row,) = [row for row in prof.to_dict()["peak"]["contents"] if row["category"] == "input"]
    assert (row["shape"], row["nbytes"]) == ([ROWS, WIDTH], NBYTES)
    del unused, output, loss


def test_a_profile_keeps_no_module_in_memory() -> None:
    x = offgrad.randn(ROWS, WIDTH)
    with profile(interval=None) as prof:
        model = _model()
        loss = model(x).sum()
        reference = ref(model)
        before = gc.isenabled()
        gc.disable()
        try:
            del model
            assert reference() is None
        finally:
            if before:
                gc.enable()
        loss.backward()
    modules = {each["name"]: each for each in prof.to_dict()["modules"]}
    assert modules["1"]["backward_seconds"] > 0


def test_what_a_forgotten_graph_saved_is_saved_no_longer() -> None:
    x = offgrad.randn(ROWS, WIDTH, requires_grad=True)
    with profile(interval=None) as prof:
        y = x * 3
        first, second = y.sin(), y.cos()
        del first
        assert _categories(prof)["saved for backward"][-1] == NBYTES
        del second
        assert _categories(prof)["saved for backward"][-1] == 0
        outlived = y.sin()
    figures = prof.to_dict()
    del outlived
    assert prof.to_dict() == figures


def test_a_profile_keeps_no_graph_in_memory() -> None:
    x = offgrad.randn(ROWS, WIDTH, requires_grad=True)
    with profile(interval=None):
        loss = x.sin().exp().sum()
        loss.backward(retain_graph=True)
        x.grad = None
        held = memory.allocated()
        del loss
        assert memory.allocated() <= held - NBYTES


def test_a_pack_is_no_page_of_those_in_it(tmp_path: Path) -> None:
    model = nn.Sequential(*[nn.Linear(320, 320) for _ in range(6)])
    sizes = {each.nbytes for each in model.parameters()}  # no pack has such a size
    # A named store would have no packs in so small a window.
    options: Any = {"allocate": memory.empty, "hold": memory.empty}
    store = storage.DiskStore(tmp_path, **options)
    pages = offgrad.offload_model(model, store, window=f"{_nbytes(model) // 2}B")
    with profile(interval=None) as prof:
        for _ in range(2):
            model.zero_grad()
            model(offgrad.randn(4, 320)).sum().backward()
        noted = prof._recording.tape.events.copy()
    made = [each for each in noted if isinstance(each, tuple) and each[0] == events.ADD]
    purposes = [(each[3], each[8]) for each in made]  # bytes, and what they are for
    assert prof.pages.reads > 0
    assert {nbytes for nbytes, purpose in purposes if purpose.category == PARAMETER} <= sizes
    assert [nbytes for nbytes, purpose in purposes if purpose.row == ("Pack", "", "")]
    del pages, model
    store.close()


def test_pages_on_their_way_when_a_recording_begins_count_as_what_they_hold() -> None:
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(12)])
    pages = offgrad.offload_model(model, "disk", window=f"{_nbytes(model)}B")
    optimizer = offgrad.optim.AdamW(model.parameters())
    x = offgrad.randn(4, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    step()
    step()  # the third step is foreseen
    with profile(interval=None) as prof:
        step()
    # The inputs of all layers together are smaller than one weight.
    assert max(_categories(prof)["saved for backward"]) < WIDTH * WIDTH * 4
    del pages


def test_sessions_count_from_the_begin_of_the_recording_on() -> None:
    x = offgrad.randn(ROWS, WIDTH, requires_grad=True)
    session = offgrad.offload("disk")
    with session:
        x.sin().sum()
    with profile() as prof:
        with session:
            x.sin().exp().sum()
        for _ in range(3):
            with offgrad.offload("keep"):
                x.sin()
            prof.step()
    assert session.ledger.saves == 3
    assert prof.ledger.saves == 2 + 3


def test_resident_memory_shows_what_the_allocator_does_not_see() -> None:
    resolution = 16 << 20
    memory.pool.trim()
    with profile(interval=0.001) as prof:
        tensor = offgrad.ones(16 << 20)
        array = [bytearray(b"x" * (64 << 20))]
    sampled = prof.to_dict()["sampled"]
    growth = sampled["rss_nbytes"][-1] - sampled["rss_nbytes"][0]
    assert len({len(each) for each in sampled.values()}) == 1
    assert abs(growth - tensor.nbytes - len(array[0])) < resolution


def test_an_error_in_backward_ends_the_watch_of_its_pass() -> None:
    x = offgrad.ones(300, 300, requires_grad=True)

    def fail(grad: offgrad.Tensor) -> None:
        raise ValueError("a hook")

    x.register_hook(fail)
    with profile(), pytest.raises(ValueError, match="a hook") as failure:
        (x * 2).sum().backward()
    # The error holds the frames of the pass, and these hold the generator that watches it.
    watches = [
        each
        for each in gc.get_objects()
        if inspect.isgenerator(each) and each.__qualname__ == "Tape._watch"
    ]
    assert failure.value is not None
    assert [each.gi_frame for each in watches] == [None] * len(watches)
