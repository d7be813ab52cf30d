"""Tensors on the meta device: shape and dtype without memory, against torch."""

import copy
import importlib
import io
import pickle
import warnings
from collections.abc import Callable
from threading import Thread
from typing import Any

import numpy as np
import pytest

import offgrad

Case = Callable[[Any], Any]


def M(m: Any, *shape: int, **options: Any) -> Any:
    return m.empty(*(shape or (2, 3)), device="meta", **options)


def linear(m: Any) -> Any:
    return m.nn.Linear(3, 2, device="meta")


def in_context(m: Any) -> Any:
    with m.device("meta"):
        made = [
            m.ones(2), m.nn.Linear(2, 3).weight, m.tensor([1.0]), m.as_tensor([1.0]), m.arange(3),
            m.randperm(4), m.linspace(0, 1, 3), m.eye(3), m.tril_indices(3, 3), m.hann_window(3),
            m.rand(2), m.randint(0, 3, (2,)), m.full((2,), 1), m.zeros(2, device="cpu"),
            m.ones_like(m.ones(2, device="cpu")), m.from_numpy(np.ones(2)), m.Tensor([1, 2]),
            m.FloatTensor([1]), m.fft.fftfreq(3), m.empty_strided((2, 2), (1, 2)),
        ]  # fmt: skip
    return [str(each.device) for each in (*made, m.ones(1))], str(m.get_default_device())


def default_device(m: Any) -> Any:
    m.set_default_device("meta")
    try:
        return str(m.ones(2).device), str(m.get_default_device()), m.zeros(2, device="cpu")
    finally:
        m.set_default_device(None)


def likes(m: Any) -> Any:
    x = M(m)
    return (
        m.empty_like(x), m.empty_like(m.ones(2), device="meta"), m.rand_like(x),
        m.full_like(x, 1), m.zeros_like(x, device="cpu"), x.new_zeros(2), x.new_tensor([1]),
        x.new_empty(2, device="cpu").device, m.randint_like(x, 3), m.randn_like(x),
    )  # fmt: skip


def saved(m: Any) -> Any:
    file = io.BytesIO()
    m.save({"x": M(m), "p": m.nn.Parameter(M(m))}, file)
    file.seek(0)
    return m.load(file)


def loaded_to_meta(m: Any) -> Any:
    file = io.BytesIO()
    m.save(m.nn.Linear(3, 2).state_dict(), file)
    file.seek(0)
    return m.load(file, map_location="meta")


def assigned(m: Any) -> Any:
    layer = linear(m)
    layer.load_state_dict(m.nn.Linear(3, 2).state_dict(), assign=True)
    weight = layer.weight
    return weight.device, type(weight).__name__, weight.requires_grad, weight.is_leaf


def copied_without_effect(m: Any) -> Any:
    layer = linear(m)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        layer.load_state_dict(m.nn.Linear(3, 2).state_dict())
    return [each.category.__name__ for each in found], layer.weight.device


def initialised(name: str) -> Case:
    return lambda m: getattr(m.nn.init, name)(M(m))


def trained(name: str) -> Case:
    def run(m: Any) -> Any:
        layer = linear(m)
        optimizer = getattr(m.optim, name)(layer.parameters(), lr=0.1)
        for _ in range(2):
            layer(M(m)).sum().backward()
            m.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
            optimizer.step()
        return layer.weight, layer.weight.grad, len(optimizer.state_dict()["state"])

    return run


def hooked(m: Any) -> Any:
    layer, found = linear(m), []
    layer.register_forward_hook(lambda *each: found.append(each[2].shape))
    layer.register_full_backward_hook(lambda *each: found.append(each[2][0].shape))
    layer(M(m)).sum().backward()
    return found


def checkpointed(m: Any) -> Any:
    checkpoint = importlib.import_module(f"{m.__name__}.utils.checkpoint").checkpoint
    result = checkpoint(linear(m), M(m), use_reentrant=False)
    result.sum().backward()
    return result.shape


def written(m: Any) -> Any:
    x = M(m)
    x[0] = 1
    x[:, 1:] = m.ones(2, 1, device="meta")
    x[m.tensor([0])] = 2.0
    return x.add_(1), x.zero_(), x.clamp_(0), x.uniform_(), x.random_(), x.copy_(m.ones(2, 3))


INITS = (
    *("uniform_", "normal_", "trunc_normal_", "xavier_uniform_", "xavier_normal_"),
    *("kaiming_uniform_", "kaiming_normal_", "orthogonal_", "zeros_", "ones_"),
)

CASES: dict[str, Case] = {
    "repr": lambda m: [M(m), M(m, 0), M(m, 2, dtype=m.int64), M(m, 2, requires_grad=True)],
    "repr of a scalar": lambda m: (m.empty((), device="meta"), f"{M(m)}", str(M(m) > 0)),
    "repr of a result": lambda m: M(m, requires_grad=True) * 2,
    "Parameter": lambda m: m.nn.Parameter(M(m)),
    "facts": lambda m: (
        M(m).is_meta, M(m).is_cpu, m.ones(1).is_meta, M(m).device, M(m).data_ptr(), M(m).type(),
        M(m).get_device(), M(m).is_contiguous(), len(M(m)), M(m).T.stride(), M(m).nbytes,
    ),
    "numpy": lambda m: M(m).numpy(),
    "numpy by force": lambda m: M(m).numpy(force=True),
    "asarray": lambda m: np.asarray(M(m)),
    "item": lambda m: M(m, 1).item(),
    "item of several": lambda m: M(m).item(),
    "tolist": lambda m: M(m).tolist(),
    "bool": lambda m: bool(M(m, 1)),
    "float": lambda m: float(M(m, 1)),
    "index": lambda m: [0][M(m, 1, dtype=m.int64)],
    "in": lambda m: 3 in M(m),
    "equal": lambda m: m.equal(M(m), M(m)),
    "allclose": lambda m: m.allclose(M(m), M(m)),
    "nonzero": lambda m: M(m).nonzero(),
    "mask": lambda m: M(m)[M(m) > 0],
    "unique": lambda m: m.unique(M(m)),
    "dlpack": lambda m: M(m).__dlpack__(),
    "pin_memory": lambda m: M(m).pin_memory(),
    "share_memory": lambda m: M(m).share_memory_(),
    "to cpu": lambda m: M(m).to("cpu"),
    "cpu": lambda m: M(m).cpu(),
    "copied from": lambda m: m.ones(2, 3).copy_(M(m)),
    "data": lambda m: setattr(m.ones(2), "data", M(m, 2)),
    "to meta": lambda m: (m.ones(2).to("meta"), m.ones(2).to(M(m)), M(m).to("meta", m.float64)),
    "mixed": lambda m: M(m) + m.ones(2, 3),
    "mixed the other way": lambda m: m.ones(2, 3) * M(m),
    "with a number": lambda m: (M(m) + m.ones(()), M(m) + 1, 2 / M(m)),
    "indices on the cpu": lambda m: (
        M(m)[m.tensor([0, 1, 1])], M(m)[m.tensor([True, False])], M(m)[[0, 0, 1]],
        M(m)[None, ..., 0],
        M(m).index_select(0, m.tensor([0])), m.nn.functional.embedding(m.tensor([0]), M(m)),
    ),
    "reductions": lambda m: (M(m).any(), M(m).all(0), M(m).argmax(), M(m).isnan(), M(m).sum(1)),
    "storage": lambda m: M(m).untyped_storage(),
    "storage of": lambda m: (
        M(m).untyped_storage().nbytes(), M(m).untyped_storage().data_ptr(),
        M(m).untyped_storage().device,
    ),
    "resize_": lambda m: (M(m).resize_(10, 10), M(m).set_()),
    "context": in_context,
    "default device": default_device,
    "likes": likes,
    "deepcopy": lambda m: copy.deepcopy(linear(m)).weight,
    "pickle": lambda m: pickle.loads(pickle.dumps(M(m).t())).stride(),
    "save": saved,
    "map_location": loaded_to_meta,
    "assign": assigned,
    "load without assign": copied_without_effect,
    "module to meta": lambda m: m.nn.Linear(3, 2).to("meta").weight,
    "module to cpu": lambda m: linear(m).to("cpu"),
    "to_empty": lambda m: linear(m).to_empty(device="cpu").weight.shape,
    "skip_init": lambda m: m.nn.utils.skip_init(m.nn.Linear, 3, 2).weight.device,
    "state_dict": lambda m: linear(m).state_dict(),
    "gradients": lambda m: m.autograd.grad(M(m, requires_grad=True).relu().sum(), []),
    "hooks": hooked,
    "written": written,
    "checkpoint": checkpointed,
    **{f"init.{name}": initialised(name) for name in INITS},
    "init.dirac_": lambda m: m.nn.init.dirac_(M(m, 2, 3, 3)),
    "init.constant_": lambda m: m.nn.init.constant_(M(m), 1.0),
    **{
        f"optim.{name}": trained(name)
        for name in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adamax", "NAdam", "RAdam")
    },
    "deferred": lambda m: m.nn.LazyLinear(4, device="meta")(M(m)),
}  # fmt: skip


def outcome(case: Case, m: Any) -> Any:
    try:
        return repr(case(m))
    except Exception as error:
        return type(error)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_against_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    assert outcome(CASES[name], offgrad) == outcome(CASES[name], torch)


def test_eye_fills_a_meta_tensor() -> None:
    x = M(offgrad)  # PyTorch's raises after some of its other imports
    assert offgrad.nn.init.eye_(x) is x


def test_a_model_larger_than_memory_takes_none() -> None:
    before = offgrad.memory.allocated()
    with offgrad.device("meta"):
        model = offgrad.nn.Sequential(
            offgrad.nn.Linear(100_000, 250_000), offgrad.nn.GELU(),
            offgrad.nn.Linear(250_000, 100_000), offgrad.nn.LayerNorm(100_000),
        )  # fmt: skip
        x = offgrad.randn(64, 100_000)
    loss = model(x).square().mean()
    loss.backward()
    assert sum(each.nbytes for each in model.parameters()) > 2e11
    assert all(each.grad is not None and each.grad.is_meta for each in model.parameters())
    assert offgrad.memory.allocated() - before < 4096


def test_other_threads_compute_while_one_is_on_meta() -> None:
    x = offgrad.randn(32, 64)
    want = offgrad.nn.functional.gelu(x).sum()
    stop: list[int] = []
    wrong: list[int] = []

    def compute() -> None:
        while not stop:
            if not offgrad.equal(offgrad.nn.functional.gelu(x).sum(), want):
                wrong.append(1)

    thread = Thread(target=compute)
    thread.start()
    try:
        for _ in range(50):
            assert offgrad.nn.functional.gelu(M(offgrad)).is_meta
    finally:
        stop.append(1)
        thread.join()
    assert not wrong
