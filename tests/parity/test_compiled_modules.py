"""What `compile` returns for a module: its attributes, names and state dict."""

import copy
import pickle
from typing import Any

import pytest

import offgrad
from offgrad import nn


def compiled(lib: Any) -> tuple[Any, Any]:
    """Return a module, and what `compile` makes of it."""
    module = lib.nn.Sequential(lib.nn.Linear(2, 3), lib.nn.Dropout())
    module.level = 4
    return module, lib.compile(module, backend="eager")


def test_it_wraps_the_module(lib: Any) -> None:
    module, wrapped = compiled(lib)
    assert wrapped._orig_mod is module
    assert isinstance(wrapped, lib._dynamo.eval_frame.OptimizedModule)
    assert isinstance(wrapped, lib.nn.Module)
    assert [name for name, _ in wrapped.named_parameters()] == [
        "_orig_mod.0.weight",
        "_orig_mod.0.bias",
    ]
    assert [id(each) for each in wrapped.parameters()] == [id(each) for each in module.parameters()]


def test_attributes_are_those_of_the_module(lib: Any) -> None:
    module, wrapped = compiled(lib)
    assert wrapped.level == 4
    wrapped.level = 5
    assert module.level == 5
    assert "level" in dir(wrapped)
    with pytest.raises(AttributeError, match="other"):
        wrapped.other
    wrapped.eval()
    assert not module.training
    assert not module[1].training
    module.train()
    assert wrapped.training


def test_state_dicts_of_compiled_modules(lib: Any) -> None:
    module, wrapped = compiled(lib)
    state = wrapped.state_dict()
    assert list(state) == ["_orig_mod.0.weight", "_orig_mod.0.bias"]
    wrapped.load_state_dict({name: lib.ones_like(each) for name, each in state.items()})
    assert module[0].bias.tolist() == [1, 1, 1]
    with pytest.raises(RuntimeError, match="_orig_mod"):
        wrapped.load_state_dict(module.state_dict())


def test_functions_come_back_as_they_are() -> None:
    assert offgrad.compile(len) is len
    assert offgrad.compile(mode="default")(len) is len
    module = nn.Linear(2, 2)
    assert offgrad.compile(module, disable=True) is module


def test_calls_are_calls_of_the_module() -> None:
    module, wrapped = compiled(offgrad)
    module.eval()
    x = offgrad.ones(1, 2)
    assert wrapped(x).equal(module(x))
    seen = []
    wrapped.register_forward_hook(lambda hooked, args, out: seen.append(hooked))
    module.register_forward_hook(lambda hooked, args, out: seen.append(hooked))
    wrapped(x)
    assert seen == [module, wrapped]


def test_modules_keep_their_names_in_sessions() -> None:
    inner = nn.Sequential(nn.Linear(64, 64), nn.GELU())

    def names(called: nn.Module, policy: Any = "pool,min=0", **options: Any) -> set[str]:
        with offgrad.offload(policy, **options) as session:
            loss = called(offgrad.ones(32, 64)).sum()
        loss.backward()
        assert session.ledger.saves
        return set(session.ledger.by_module)

    plain = names(inner)
    wrapped = offgrad.compile(inner)
    assert names(wrapped) == names(wrapped, model=wrapped) == plain
    assert names(nn.Sequential(wrapped)) == names(nn.Sequential(inner))
    wrapped.register_forward_hook(lambda *_: None)
    assert names(wrapped) == plain
    names(wrapped, {"1": "pool"}, model=wrapped)
    with pytest.raises(ValueError, match="'2' matches none of"):
        offgrad.offload({"2": "pool"}, model=wrapped)
    wide = offgrad.compile(nn.Sequential(nn.Linear(256, 256), nn.GELU()))
    offload = offgrad.offload_model(wide, {"0": "disk"}, window="1MiB")
    wide(offgrad.ones(32, 256)).sum().backward()
    assert {row.module for row in offload.ledger.rows} == {"0"}


def test_a_compiled_module_is_compiled_once() -> None:
    _, wrapped = compiled(offgrad)
    assert offgrad.compile(wrapped) is wrapped


def test_copies_are_compiled_modules() -> None:
    module, wrapped = compiled(offgrad)
    module.eval()
    x = offgrad.ones(1, 2)
    for other in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        assert type(other) is type(wrapped)
        assert other._orig_mod is not module
        assert other(x).equal(module(x))
        assert other.level == 4
