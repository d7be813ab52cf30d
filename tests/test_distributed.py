"""torch.distributed of one process."""

from collections.abc import Iterator
from typing import Any

import pytest

import offgrad as og
from offgrad import distributed as dist


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_group_begins_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not dist.is_initialized()
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    dist.init_process_group("nccl", init_method="env://")
    try:
        assert dist.is_initialized()
        assert (dist.get_backend(), dist.get_rank(), dist.get_world_size()) == ("nccl", 0, 1)
        with pytest.raises(ValueError, match="twice"):
            dist.init_process_group("gloo")
    finally:
        dist.destroy_process_group()
    assert not dist.is_initialized()


@pytest.mark.parametrize("options", [{"world_size": 2, "rank": 0}, {"world_size": 1, "rank": 1}])
def test_more_processes_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="one process"):
        dist.init_process_group("gloo", **options)
    assert not dist.is_initialized()


def test_a_world_of_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ValueError, match="rank 0 of 4"):
        dist.init_process_group()


def test_collectives_need_a_group() -> None:
    for call in (dist.barrier, lambda: dist.all_reduce(og.ones(1)), dist.get_backend):
        with pytest.raises(ValueError, match="has not been initialized"):
            call()
    with pytest.raises(ValueError, match="one process"):
        dist.send(og.ones(1), 0)


@pytest.mark.usefixtures("group")
def test_collectives_copy() -> None:
    x = og.arange(3.0)
    for reduction in (dist.all_reduce, dist.reduce, dist.broadcast):
        assert reduction(x, 0) is None if reduction is not dist.all_reduce else True
    work: Any = dist.all_reduce(x, op=dist.ReduceOp.AVG, async_op=True)
    assert work.wait()
    assert work.is_completed()
    assert x.tolist() == [0, 1, 2]
    outputs = [og.zeros(3) for _ in range(6)]
    dist.all_gather([outputs[0]], x)
    dist.gather(x, [outputs[1]])
    dist.scatter(outputs[2], [x])
    dist.reduce_scatter(outputs[3], [x])
    dist.all_to_all([outputs[4]], [x])
    dist.all_to_all_single(outputs[5], x)
    assert all(each.tolist() == [0, 1, 2] for each in outputs)
    stacked = og.zeros(1, 3)
    dist.all_gather_into_tensor(stacked, x)
    assert stacked.tolist() == [[0, 1, 2]]
    found: list[Any] = [None]
    dist.all_gather_object(found, "a")
    assert found == ["a"]
    dist.broadcast_object_list(found, src=0)
    dist.barrier()
    calls: list[Any] = [dist.scatter, dist.gather, lambda x: dist.all_gather([x, x], x)]
    for call in calls:
        with pytest.raises(ValueError, match="list with one item"):
            call(x)
    with pytest.raises(ValueError, match="only rank"):
        dist.broadcast(x, src=1)
    with pytest.raises(ValueError, match="only rank"):
        dist.new_group([0, 1])


@pytest.mark.usefixtures("group")
def test_a_data_parallel_script_trains() -> None:
    model = og.nn.parallel.DistributedDataParallel(og.nn.Linear(2, 1))
    optimizer = og.optim.SGD(model.parameters(), lr=0.1)
    loss = model(og.ones(4, 2)).pow(2).mean()
    loss.backward()
    dist.all_reduce(loss.detach(), group=dist.new_group())
    optimizer.step()
    assert model(og.ones(4, 2)).pow(2).mean() < loss
