"""Deduplication: which tensors are stored, and that each is stored once."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from offgrad_storage import ZarrStore

import offgrad
from offgrad import memory, nn
from offgrad.policies import Placement, SaveContext, Store
from tests.session.backends import RecordingStore
from tests.session.graphs import bits, normal
from tests.session.helpers import everything, settle


def test_five_saves_a_transpose_and_a_reshape_by_hand(store: RecordingStore) -> None:
    x = normal(1, 64, 64)
    session = everything(store)
    y = x.clone()
    with session:
        outs = [y.sin() for _ in range(5)]
        outs.append(y.t().sin())
        outs.append(y.view(16, 256).sin())
        outs.append(y.unsqueeze(1).expand(64, 3, 64).sin())
    settle(store)
    ledger = session.ledger
    assert ledger.saves == 8
    assert ledger.logical_nbytes == (7 + 3) * 16384
    assert ledger.unique_nbytes == 16384
    assert ledger.kept_nbytes == 0
    assert ledger.stored_nbytes == 16384
    assert store.all("put") == [0]
    del y
    for each in outs:
        each.sum().backward(retain_graph=True)
    expected = 10 * np.cos(x.detach().numpy())
    assert np.allclose(x.grad.numpy(), expected, rtol=1e-5)


PARTS: list[Callable[[Any], Any]] = [
    lambda y: y[2:4],
    lambda y: y[4:6],
    lambda y: y[:, ::2],
    lambda y: y[:, 1::2],
    lambda y: y.T[::2],
]


def test_parts_are_stored_separately_and_found_by_later_saves(store: RecordingStore) -> None:
    x = normal(1, 8, 64)
    y = x.clone()
    with everything(store) as session:
        for _ in range(2):
            y[2:4].sin()
            y[4:6].sin()
            y[:, ::2].sin()
            y[:, 1::2].sin()
            y.t()[::2].sin()
    # The graphs and their handles are gone, but the ledger still counts the bytes once.
    assert session.ledger.unique_nbytes == 2 * 512 + 2 * 1024
    outs = []
    before = len(store.all("put"))
    with everything(store):
        for _ in range(2):
            outs += [y[2:4].sin(), y[4:6].sin(), y[:, ::2].sin(), y[:, 1::2].sin()]
            outs.append(y.t()[::2].sin())
    assert len(store.all("put")) - before == 4
    # Arrays read back equal those in memory, at another address.
    del y
    for out, part in zip(outs, 2 * PARTS, strict=True):
        x.grad = None
        out.sum().backward(retain_graph=True)
        expected = np.zeros((8, 64), np.float32)
        part(expected)[...] = np.cos(part(x.detach().numpy()))
        assert np.allclose(x.grad.numpy(), expected, rtol=1e-5)


def test_parts_of_a_stored_tensor_reuse_its_bytes(store: RecordingStore) -> None:
    x = normal(1, 64, 64)
    y = x * 1.5
    whole: list[Callable[[Any], Any]] = [lambda y: y, lambda y: y.t()]
    parts: list[Callable[[Any], Any]] = [
        lambda y: y[16:48],
        lambda y: y[:32].t(),
        lambda y: y[:, ::2],
        lambda y: y.t()[1::3],
        lambda y: y.unflatten(1, (4, 16))[:, 1:3],
        lambda y: y[None, 32:].expand(3, 32, 64),
    ]
    small: list[Callable[[Any], Any]] = [lambda y: y[5:20], lambda y: y[:, :15]]
    with everything(store) as session:
        outs = [part(y).sin() for part in (*whole, *parts)]
        assert store.all("put") == [0]
        assert session.ledger.unique_nbytes == 16384
        outs += [part(y).sin() for part in small]
    assert store.all("put") == [0, 1, 2]  # reading the whole for them would cost more
    values = y.detach().clone()
    del y
    for out, part in zip(outs, (*whole, *parts, *small), strict=True):
        z = values.clone().requires_grad_()
        part(z).sin().sum().backward()
        x.grad = None
        out.sum().backward(retain_graph=True)
        assert bits(x.grad) == bits(z.grad * 1.5)


def test_gradients_through_parts_of_a_stored_tensor(
    offload: Callable[[], offgrad.session.OffloadSession],
) -> None:
    def run(session: Any) -> Any:
        x = normal(1, 96, 64)
        with session:
            y = x.tanh()
            loss = (y * y[:, 8:9]).sum() + (y[24:72].t() * y[24:72].t().exp()).sum()
            loss = loss + y[::2].sin().sum() + y.view(64, 96)[:40].cos().sum()
        del y
        loss.backward()
        return bits(loss, x.grad)

    assert run(offload()) == run(nullcontext())


def test_a_later_version_is_stored_separately(store: RecordingStore) -> None:
    y = normal(1, 32, 32, grad=False)
    weights = [normal(k, 32, 32) for k in range(3)]
    values = []
    with everything(store) as session:
        losses = []
        for weight in weights:
            values.append(y.numpy().copy())
            losses.append((y * weight).sum())
            losses.append((y.t() * weight.t()).sum())
            y.add_(1)
    assert store.all("put") == [0, 1, 2]
    assert session.ledger.unique_nbytes == 3 * 4096
    for loss in losses:
        loss.backward()
    for weight, value in zip(weights, values, strict=True):
        assert np.array_equal(weight.grad.numpy(), 2 * value)


def test_parameters_and_small_tensors_are_not_stored(store: RecordingStore) -> None:
    layer = nn.Linear(200, 200)
    x = offgrad.randn(200, 200)
    small = normal(1, 10)
    with offgrad.offload(store) as session:
        loss = layer(x.requires_grad_()).sum() + small.exp().sum()
    assert store.events == []
    assert session.ledger.kept_nbytes == session.ledger.logical_nbytes > 0
    loss.backward()


def test_a_tensor_kept_by_one_and_stored_by_another_node(store: RecordingStore) -> None:
    class SinOnly:
        def place(self, context: SaveContext) -> Placement:
            keep = offgrad.policies.Keep()
            return Store(store) if context.op == "SinBackward0" else keep

    x = normal(1, 16, 16)
    with offgrad.offload(SinOnly()) as session:
        y = x.clone()
        loss = (y.cos() + y.sin() + y.cos() + y.sin()).sum()
    assert store.all("put") == [0]
    assert session.ledger.unique_nbytes == 1024
    assert session.ledger.kept_nbytes == 2048
    del y
    loss.backward()
    z = normal(1, 16, 16)
    (z.cos() + z.sin() + z.cos() + z.sin()).sum().backward()
    assert bits(x.grad) == bits(z.grad)


def test_the_store_gets_op_slot_module_and_step_of_each_array(tmp_path: Path) -> None:
    import zarr

    block = nn.Sequential(nn.Sequential(nn.GELU()))
    with ZarrStore(tmp_path, allocate=memory.empty) as store:
        with everything(store):
            out = block(normal(1, 3, 5).clone())
        store.publish()
        group = zarr.open_group(store.path, mode="r")
        (array,) = (array for _, array in group.arrays())
        expected = {"op": "GeluBackward0", "slot": "self", "module": "0.0", "step": 0}
        slots: Any = array.attrs["slots"]
        assert {name: slots[name] for name in expected} == {
            name: [value] for name, value in expected.items()
        }
        del out


def test_slices_that_one_operation_saves_are_stored_as_their_storage(
    store: RecordingStore,
) -> None:
    x = normal(1, 4, 6, 96)
    expected = _attention_of_slices(x, nullcontext())
    session = everything(store)
    gradient = _attention_of_slices(x, session)
    assert bits(gradient) == bits(expected)
    assert len(store.all("put")) == 3  # the product, the result, the log-sum-exp of each row
    assert session.ledger.unique_nbytes == (4 * 6 * (96 + 32) + 48) * 4


def _attention_of_slices(x: Any, session: Any) -> Any:
    product = x.clone()
    parts = [each.view(4, 6, 2, 16).transpose(1, 2) for each in product.chunk(3, -1)]
    with session:
        result = nn.functional.scaled_dot_product_attention(*parts)
    del product, parts
    (gradient,) = offgrad.autograd.grad(result.square().sum(), x)
    return gradient


def test_a_slice_that_is_saved_alone_is_stored_alone(store: RecordingStore) -> None:
    y = normal(1, 8, 64).clone()
    with everything(store) as session:
        outs = y[:, ::2].sin(), y[:, ::2] * y[:, ::2]
    settle(store)
    assert outs
    assert session.ledger.stored_nbytes == 8 * 32 * 4


def test_a_change_of_the_storage_waits_for_the_write_of_all_slices(
    store: RecordingStore,
) -> None:
    x = normal(1, 8, 64)
    y = x.clone()
    left, right = y.chunk(2, -1)
    expected = right.detach().clone(), left.detach().clone()
    with everything(store):
        product = left * right
    y.detach().mul_(0)
    settle(store)
    (gradient,) = offgrad.autograd.grad(product.sum(), x)
    assert bits(gradient) == bits(offgrad.cat(expected, -1))


def test_slices_of_memory_too_large_to_read_ahead_are_stored_one_by_one(
    store: RecordingStore,
) -> None:
    y = normal(1, 8, 64).clone()
    left, right = y.chunk(2, -1)
    with everything(store, prefetch_nbytes=2 * y.nbytes - 1):
        product = left * right
    assert len(store.all("put")) == 2
    with everything(store, prefetch_nbytes=2 * y.nbytes):
        product = product + left * right
    assert len(store.all("put")) == 3


def test_narrow_slices_count_once_with_the_storage_they_are_stored_in(
    store: RecordingStore,
) -> None:
    y = normal(1, 4, 8, 32).clone()
    with everything(store) as session:
        out = y[..., :31] * y[..., 31:]
    settle(store)
    assert out is not None
    assert session.ledger.unique_nbytes == session.ledger.stored_nbytes == y.nbytes


def test_slices_of_memory_that_numpy_has_are_copied_when_they_are_saved(
    store: RecordingStore,
) -> None:
    x = normal(1, 8, 64)
    y = x.clone()
    array = y.detach().numpy()
    left, right = y.chunk(2, -1)
    expected = right.detach().clone(), left.detach().clone()
    with everything(store):
        product = left * right
    assert len(store.all("put")) == 2
    array[...] = 7
    (gradient,) = offgrad.autograd.grad(product.sum(), x)
    assert bits(gradient) == bits(offgrad.cat(expected, -1))
