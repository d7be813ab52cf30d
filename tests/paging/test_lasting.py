"""Long runs, copies, moves between policies, threads, forks and Ctrl-C."""

import gc
import itertools
import os
import threading
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from offgrad_storage import ForkedStoreError

import offgrad
from offgrad import memory, nn, optim
from offgrad.nn import functional as F
from offgrad.policies import Offload
from offgrad.session.paging.use_order import UseOrder
from tests.forked import run_in_child
from tests.interrupts import interrupt_everywhere
from tests.paging.models import WIDTH, assert_same, batches, mlp, paging, result_of
from tests.paging.test_faults import OPTIMIZERS, is_untouched, prepared, same, values
from tests.session.backends import MemoryBackend, memory_store

pytestmark = pytest.mark.usefixtures("kind_of_cache")

PAGE = WIDTH * WIDTH * 4


def step(model: nn.Module, optimizer: Any) -> float:
    """Train one step."""
    x, y = next(batches(1))
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return float(loss.item())


def sizes(offload: Any) -> dict[str, int]:
    """Return how much an offload knows."""
    gc.collect()
    offload.reclaim()  # no write is under way afterwards, and no page is in memory by chance
    caches = [*offload._caches.values()]
    for each in caches:
        each.open_store().trim()  # packs of small arrays hold 4 MiB each
    known = {name: len(getattr(offload, name)) for name in ("_names", "_rows")}
    return known | {
        "pages": sum(len(each.table) for each in caches),
        "files": len(os.listdir("/proc/self/fd")),
        "bytes": memory.allocated() // PAGE,
    }


def copies(model: Any, optimizer: Any) -> None:
    deepcopy(model)(offgrad.ones(1, WIDTH))


def new_state(model: Any, optimizer: Any) -> None:
    optimizer.load_state_dict(optimizer.state_dict())
    model.load_state_dict(model.state_dict())


def new_data(model: Any, optimizer: Any) -> None:
    for each in model.parameters():
        each.data = each.data.clone()


def dtypes(model: Any, optimizer: Any) -> None:
    model.double()
    model.float()


def nothing(model: Any, optimizer: Any) -> None:
    pass


@pytest.mark.parametrize("change", [nothing, copies, new_state, new_data, dtypes])
def test_nothing_grows(change: Any) -> None:
    with paging("disk") as offload:
        model = mlp(2)
    optimizer = optim.AdamW(model.parameters())
    seen = []
    for _ in range(2):
        for _ in range(40):
            step(model, optimizer)
            change(model, optimizer)
        seen.append(sizes(offload))
    for name, count in seen[1].items():
        assert count <= max(seen[0][name] + 8, 200 if name[0] == "_" else 0), (name, seen)


def resources(offload: Any) -> dict[str, int]:
    """Return what a process must not lose from step to step."""
    found = sizes(offload)
    stores = [each.open_store() for each in offload._caches.values()]
    with open("/proc/self/statm") as file:
        rss = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return found | {
        "stored": sum(each.stats().stored_nbytes for each in stores),
        "handles": sum(each.stats().live_handles for each in stores),
        "threads": threading.active_count(),
        "objects": len(gc.get_objects()),
        "files' size": sum(map(_size, os.listdir("/proc/self/fd"))),
        "rss": rss,
    }


def _size(descriptor: str) -> int:
    try:
        return os.stat(f"/proc/self/fd/{descriptor}").st_blocks * 512
    except OSError:  # that of the listing itself
        return 0


@pytest.mark.slow
@pytest.mark.parametrize("inside", [False, True])
def test_nothing_grows_in_a_thousand_steps(inside: bool) -> None:
    with paging("disk", window=4 * PAGE) as offload:
        model = mlp(2)
    optimizer = optim.AdamW(model.parameters())
    if inside:
        optim.step_in_backward(optimizer)
    seen = []
    for _ in range(5):
        for _ in range(200):
            step(model, optimizer)
        seen.append(resources(offload))
    # More writes may be under way at once than before: as many as the window holds.
    slack = {"rss": 8 << 20, "objects": 300, "files' size": 4 * PAGE}
    for name, count in seen[-1].items():
        assert count <= seen[1][name] + slack.get(name, 0), (name, seen)


def test_the_learned_order_is_bounded() -> None:
    order = UseOrder()
    for number in range(200_000):
        order.use(number)
    assert len(order._next) <= 1 << 16


@pytest.mark.parametrize("policies", [("disk", "zarr", "disk"), ("pool", "keep"), ("keep", "disk")])
def test_moves_between_policies_keep_all_bits(policies: tuple[str, ...]) -> None:
    results = []
    for moves in (policies, ()):
        offgrad.manual_seed(3)
        model = mlp()
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)
        if moves:
            offload = offgrad.offload_model(model, moves[0], window=1)
        losses = [step(model, optimizer)]
        view = model[2].weight.detach()[1]
        for policy in moves[1:]:
            first = offload
            offload = offgrad.offload_model(model, policy, window=1)
            assert first.resident_nbytes == 0
            if policy != "keep" and moves[0] != "keep":
                assert offload.resident_nbytes <= 2 * PAGE  # and the state has left as well
                assert sum(page.name.role == "optimizer state" for page in offload._pages()) == 8
            losses.append(step(model, optimizer))
        for _ in range(len(policies) - len(losses)):
            losses.append(step(model, optimizer))
        losses.append(view.sum().item())
        losses.append(step(model, optimizer))
        results.append(result_of(losses, model, optimizer))
    assert_same(*results)


def test_a_model_is_moved_part_by_part() -> None:
    stores = [memory_store(MemoryBackend()) for _ in range(2)]
    with paging(stores[0], window=1):
        model = mlp(8)
    held = memory.allocated()
    memory.reset_peak()
    offgrad.offload_model(model, stores[1], window=1)
    assert memory.max_allocated() <= held + 3 * PAGE


def run_all(*works: Any) -> None:
    """Run functions in threads; raise what one of them raises."""
    errors: list[BaseException] = []

    def run(work: Any) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(each,)) for each in works]
    for each in threads:
        each.start()
    for each in threads:
        each.join(120)
        assert not each.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def test_two_threads_train_models_of_one_offload() -> None:
    results: dict[Any, Any] = {}
    for placement in ("disk", None):
        offgrad.manual_seed(3)
        with paging(placement, window=1):
            models = [mlp(3), mlp(3)]
        done: list[Any] = [None, None]

        def train(number: int, models: Any = models, done: Any = done) -> None:
            optimizer = optim.AdamW(models[number].parameters(), lr=1e-2)
            losses = [step(models[number], optimizer) for _ in range(6)]
            done[number] = result_of(losses, models[number], optimizer)

        run_all(lambda train=train: train(0), lambda train=train: train(1))
        results[placement] = done
    for ours, theirs in zip(results["disk"], results[None], strict=True):
        assert_same(ours, theirs)


def test_threads_share_one_model() -> None:
    with paging("disk", window=1):
        model = mlp()
    x, _ = next(batches(1))
    expected = model(x).detach().numpy()

    def infer() -> None:
        for _ in range(15):
            with offgrad.no_grad():
                np.testing.assert_array_equal(model(x).numpy(), expected)

    def change() -> None:
        for number in range(30):
            with offgrad.no_grad():
                model[number % 4 * 2].weight.mul_(1)

    run_all(infer, infer, infer, change)


def test_no_change_of_many_threads_is_lost() -> None:
    with paging("disk", window=1):
        model = mlp()
    weights = [model[2 * number].weight for number in range(4)]
    with offgrad.no_grad():
        for each in weights:
            each.zero_()

    def add(weight: Any) -> None:
        for _ in range(40):
            with offgrad.no_grad():
                weight.add_(1)

    def read() -> None:
        for _ in range(80):
            for each in weights:
                each.detach().sum()

    run_all(*[lambda each=each: add(each) for each in weights], read, read)
    for each in weights:
        assert bool((each == 40).all())


def test_a_forked_child_gets_a_clear_error() -> None:
    with paging("disk", window=1):
        model = mlp()
    x, _ = next(batches(1))
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    step(model, optimizer)
    expected = model(x).detach().numpy()

    def work() -> None:
        for _ in range(2):
            with pytest.raises(ForkedStoreError, match=r"paged Parameter 0.weight: .* before the"):
                step(model, optimizer)

    run_in_child(work)
    np.testing.assert_array_equal(model(x).detach().numpy(), expected)
    step(model, optimizer)


def test_a_fork_beside_pending_writes_gets_a_clear_error() -> None:
    backend = MemoryBackend()
    with memory_store(backend) as store:
        with offgrad.offload_model(Offload(store), window=3 * PAGE):
            model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(6)])
        store.flush()
        backend.delay = 1.0
        with offgrad.no_grad():
            for layer in list(model)[:4]:  # the last writes are pending
                layer.weight.mul_(2)

        def work() -> None:
            for _ in range(2):
                with pytest.raises(ForkedStoreError, match=r"paged Parameter .* before the fork"):
                    model(offgrad.ones(1, WIDTH))

        run_in_child(work)
        backend.delay = 0
        assert bool(model(offgrad.ones(1, WIDTH)).isfinite().all())


def test_loader_workers_beside_a_paged_model() -> None:
    with paging("disk", window=1):
        model = mlp(2)
    data = offgrad.utils.data.TensorDataset(offgrad.randn(12, WIDTH), offgrad.arange(12) % 5)
    optimizer = optim.AdamW(model.parameters())
    for x, y in offgrad.utils.data.DataLoader(data, batch_size=4, num_workers=2):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def test_two_offloads_under_one_limit_in_threads() -> None:
    models = []
    for _ in range(2):
        with paging("disk", window=4 * PAGE):
            models.append(mlp(3))
    bound = memory.allocated() + 14 * PAGE
    memory.reset_peak()

    def train(model: Any) -> None:
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(6):
            with offgrad.offload("budget:128KiB"):
                step(model, optimizer)

    with memory.limit(bound):
        run_all(lambda: train(models[0]), lambda: train(models[1]))
    assert memory.max_allocated() <= bound


def test_ctrl_c_at_points_of_a_step() -> None:
    make = OPTIMIZERS["AdamW"]
    plain, other = prepared(None, make, 1, 1)
    before = values(plain, other)
    other.step()
    after = values(plain, other)
    run = prepared("pool", make, 1, 8 * PAGE)

    def check() -> None:
        nonlocal run
        for each, old, new in zip(values(*run), before, after, strict=True):
            assert same(each, new) or is_untouched(each, old)
        if not all(same(*each) for each in zip(values(*run), after, strict=True)):
            run[1].step()
            assert all(same(*each) for each in zip(values(*run), after, strict=True))
        run = prepared("pool", make, 1, 8 * PAGE)

    modules = [offgrad.session.paging, offgrad.optim]
    assert interrupt_everywhere(modules, lambda: run[1].step(), check, every=67) > 5


def test_ctrl_c_at_points_of_moves() -> None:
    run = prepared("pool", OPTIMIZERS["AdamW"], 1, PAGE)
    expected = values(*run)
    policies = itertools.cycle(["pool", "disk", "keep"])

    def check() -> None:
        assert all(same(*each) for each in zip(values(*run), expected, strict=True))

    def move() -> None:
        offgrad.offload_model(run[0], next(policies), window=PAGE)

    modules = [offgrad.session.paging, offgrad.memory]
    assert interrupt_everywhere(modules, move, check, every=53) > 5


def test_a_page_stays_from_the_note_of_a_change_to_the_change() -> None:
    with paging("disk", window="1MiB") as offload:
        weight = mlp(2)[0].weight
    page: Any = weight._storage.page
    for number in range(2):
        held = page.array if number else None
        weight._storage.write("test")
        del held  # as a store drops an array that it has written
        offload.reclaim()
        assert page.is_resident
        run_all(lambda: page.array.sum(), offload.reclaim)  # another thread's use
        assert page.is_resident
        page.array[...] = 3
        offload.reclaim()
        assert not page.is_resident
        assert bool((weight == 3).all())


def test_names_in_the_ledger() -> None:
    with paging("disk") as offload:
        model = nn.Sequential(mlp(2), mlp(1))
    offload.ledger
    names = {(row.module, row.slot) for row in offload._rows.values()}
    assert names == {("0.0", "weight"), ("0.2", "weight"), ("1.0", "weight")}
    assert model is not None


def test_a_window_of_writes_is_in_flight_before_a_put_waits() -> None:
    with paging("disk", window="64MiB") as offload:
        mlp(1)
    with paging("budget:128MiB,spill=disk") as budget:
        mlp(1)
    bounds = [
        each.open_store()._executor._table.max_inflight_nbytes
        for each in (*offload._caches.values(), *budget._caches.values())
    ]
    assert bounds == [64 << 20, 128 << 20]
