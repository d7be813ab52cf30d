"""Every public callable that writes to a tensor counts up its version, so that a graph that saved
the tensor before raises, or has a copy of the old value.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad.policies import Offload
from tests.parity.conftest import leaf, raises
from tests.parity.writers import Writer, argument_lists, targets, writers

WRITERS = {each.name: each for each in writers()}
ERRORS = (TypeError, RuntimeError, ValueError, IndexError, AttributeError, NotImplementedError)

pytestmark = pytest.mark.filterwarnings("ignore")


class Write:
    """A writer with arguments for it, and the tensors that it writes to."""

    def __init__(self, call: Callable[[], Any], written: tuple[Any, ...]) -> None:
        self.call = call
        self.written = written


def attempts(lib: Any, writer: Writer) -> Iterator[Write]:
    """Yield the writer with arguments to try; some raise."""
    function = writer.get(lib)
    if writer.name == "nonzero_static(out=)":
        function = functools.partial(function, size=2)  # by keyword only
    for start in targets(lib):
        for args in argument_lists(lib, start):
            target = start.clone()
            if writer.style == "first":
                yield Write(functools.partial(function, target, *args), (target,))
                continue
            for operands in ((start, *args), args):
                try:
                    result = function(*operands)
                except ERRORS:
                    continue
                results = result if isinstance(result, tuple | list) else (result,)
                if all(isinstance(each, lib.Tensor) and each.numel() for each in results):
                    out = tuple(lib.zeros_like(each) for each in results)
                    given = out if isinstance(result, tuple | list) else out[0]
                    yield Write(functools.partial(function, *operands, out=given), out)


def works(write: Write) -> bool:
    try:
        write.call()
    except ERRORS:
        return False
    return all(each._version for each in write.written)


@functools.cache
def number_of_attempt(lib: Any, name: str) -> int | None:
    """Return the number of the first attempt that writes."""
    found = (k for k, each in enumerate(attempts(lib, WRITERS[name])) if works(each))
    return next(found, None)


def write_of(lib: Any, name: str) -> Write:
    """Return a working call of the writer, not called yet."""
    number = number_of_attempt(lib, name)
    assert number is not None, f"add arguments with which {name} writes to argument_lists()"
    return next(each for k, each in enumerate(attempts(lib, WRITERS[name])) if k == number)


def saved(x: Any, tensor: Any) -> Any:
    """Return a loss whose graph saves `tensor`."""
    loss = (x * tensor).sum()
    return loss.real if loss.is_complex() else loss


def test_many_are_found() -> None:
    assert len(WRITERS) > 400
    assert {"Tensor.add_", "Tensor.__imul__", "exp_", "nn.init.eye_", "sort(out=)"} <= set(WRITERS)
    assert {"nn.functional.relu(inplace=)", "nn.ReLU(inplace=)"} <= set(WRITERS)


@pytest.mark.parametrize("name", WRITERS)
def test_version_and_saved_tensors(lib: Any, name: str) -> None:
    try:
        WRITERS[name].get(lib)
    except AttributeError:
        pytest.skip("torch does not have it")
    if lib is not offgrad and number_of_attempt(lib, name) is None:
        pytest.skip("torch takes other arguments")
    write = write_of(lib, name)
    x = leaf(lib, 2)
    losses = [saved(x, each) for each in write.written]
    for loss in losses:
        loss.backward(retain_graph=True)
    before = [each._version for each in write.written]
    write.call()
    for loss, tensor, version in zip(losses, write.written, before, strict=True):
        assert tensor._version > version
        with raises(RuntimeError):
            loss.backward()


@pytest.mark.parametrize("store", ["pool", "disk"])
@pytest.mark.parametrize("name", WRITERS)
def test_a_store_has_the_old_value(name: str, store: str) -> None:
    write = write_of(offgrad, name)
    x = leaf(offgrad, 2)
    with offgrad.offload(Offload(store, min_nbytes=0)):
        losses = [saved(x, each) for each in write.written]
    grads: Any = offgrad.autograd.grad
    expected = [grads(each, x, retain_graph=True)[0] for each in losses]
    write.call()
    for loss, before in zip(losses, expected, strict=True):
        np.testing.assert_equal(grads(loss, x)[0].item(), before.item())


# Callables that take no tensor to write to.

OPTIONS: list[dict[str, Any]] = [
    {}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"amsgrad": True},
    {"amsgrad": True, "weight_decay": 0.1}, {"momentum": 0.5, "maximize": True},
    {"alpha": 0.9}, {"centered": True}, {"rho": 0.5}, {"t0": 0.0},
]  # fmt: skip
OPTIMIZERS = [
    name
    for name in offgrad.optim.__all__
    if isinstance(getattr(offgrad.optim, name), type)
    # LBFGS evaluates the loss itself; SparseAdam takes sparse gradients.
    and name not in ("Optimizer", "LBFGS", "SparseAdam")
]


def optimizers(lib: Any, kind: str, param: Any) -> Iterator[Any]:
    for options in OPTIONS:
        try:
            yield getattr(lib.optim, kind)([param], lr=0.1, **options)
        except TypeError:
            continue


def _tensors(lib: Any, optimizer: Any, param: Any) -> dict[str, Any]:
    state = optimizer.state[param]
    return {"param": param, **{k: v for k, v in state.items() if isinstance(v, lib.Tensor)}}


@pytest.mark.parametrize("policy", [None, "pool", "disk"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizers(lib: Any, kind: str, transposed: bool, policy: str | None) -> None:
    if policy is not None and lib is not offgrad:
        pytest.skip("offgrad alone has policies")
    start = lib.tensor([[1.0, 2.0], [3.0, 4.0]])
    param = lib.nn.Parameter(start.t() if transposed else start)
    tried = 0
    for optimizer in optimizers(lib, kind, param):
        for _ in range(2):
            param.grad = lib.ones(2, 2)
            optimizer.step()
        x = leaf(lib, 3, dtype=lib.float32)
        tensors = _tensors(lib, optimizer, param)
        before = {k: (v.detach().clone(), v._version) for k, v in tensors.items()}
        if policy is None:
            losses = {k: (x * v.detach()).sum() for k, v in tensors.items()}
        else:
            with offgrad.offload(Offload(policy, min_nbytes=0)):
                losses = {k: (x * v.detach()).sum() for k, v in tensors.items()}
        param.grad = lib.ones(2, 2) * 2
        optimizer.step()
        for name, (value, version) in before.items():
            if name == "mu" and optimizer.defaults["t0"] > 2:
                continue  # ASGD averages from step t0 on
            changed = not tensors[name].equal(value)
            assert changed, f"{name} of {optimizer} did not change: give other gradients"
            if lib is offgrad or name != "step":
                assert tensors[name]._version > version
            if policy is None:
                with raises(RuntimeError):
                    losses[name].backward()
            else:
                x.grad = None
                losses[name].backward()
                assert x.grad is not None
                assert x.grad.item() == pytest.approx(value.sum().item())
        tried += 1
    assert tried


def test_every_optimizer_is_tried() -> None:
    assert {"SGD", "AdamW", "Adam"} <= {*OPTIMIZERS}


OTHERS: dict[str, Callable[[Any, Any], Any]] = {
    "x[...] = ": lambda lib, t: t.__setitem__(0, 5.0),
    "x[mask] = ": lambda lib, t: t.__setitem__(t.detach() > 0, 5.0),
    "load_state_dict": lambda lib, t: _module(lib, t).load_state_dict({"t": lib.ones(2)}),
    "Module.zero_grad": lambda lib, t: _with_grad(lib, t).zero_grad(set_to_none=False),
    "Optimizer.zero_grad": lambda lib, t: lib.optim.SGD(
        _with_grad(lib, t).parameters(), lr=0.1
    ).zero_grad(set_to_none=False),
    "accumulation": lambda lib, t: (next(_with_grad(lib, t).parameters()) * 2).sum().backward(),
    "mark_dirty": lambda lib, t: _Dirty(lib).apply(t),
    "increment_version": lambda lib, t: lib.autograd.graph.increment_version(t),
    ".data.add_": lambda lib, t: t.detach().add_(1),
}


def _module(lib: Any, tensor: Any) -> Any:
    module = lib.nn.Module()
    module.register_buffer("t", tensor)
    return module


def _with_grad(lib: Any, tensor: Any) -> Any:
    module = lib.nn.Module()
    module.p = lib.nn.Parameter(lib.ones(2, dtype=lib.float64))
    module.p.grad = tensor
    return module


def _Dirty(lib: Any) -> Any:
    class Dirty(lib.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.mark_dirty(x)
            return x.add_(1)

    return Dirty


@pytest.mark.parametrize("name", OTHERS)
def test_other_writers(lib: Any, name: str) -> None:
    target = lib.tensor([1.0, 2.0], dtype=lib.float64)
    x = leaf(lib, 2)
    loss = (x * target).sum()
    version = target._version
    OTHERS[name](lib, target)
    assert target._version > version
    with raises(RuntimeError):
        loss.backward()


@pytest.mark.parametrize("name", OTHERS)
def test_other_writers_under_a_store(name: str) -> None:
    target = offgrad.tensor([1.0, 2.0], dtype=offgrad.float64)
    x = leaf(offgrad, 2)
    with offgrad.offload(Offload("pool", min_nbytes=0)):
        loss = (x * target).sum()
    OTHERS[name](offgrad, target)
    loss.backward()
    assert x.grad is not None
    assert x.grad.item() == 3
