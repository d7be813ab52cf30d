"""Arguments that modules and tensors refuse, and modules and parameters that occur twice."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.parity.conftest import constant, leaf, raises


@pytest.mark.parametrize("mode", ["x", 1, 0, None, "", [True]])
def test_the_training_mode_is_a_bool(lib: Any, mode: Any) -> None:
    module = lib.nn.Sequential(lib.nn.Dropout())
    with raises(ValueError):
        module.train(mode)
    assert module.training
    assert module[0].training


@pytest.mark.parametrize("value", ["x", 1, 0, None, "", [True]])
def test_requires_grad_is_a_bool(lib: Any, value: Any) -> None:
    module = lib.nn.Linear(2, 2)
    with raises(TypeError):
        module.requires_grad_(value)
    assert module.weight.requires_grad
    x = constant(lib, 1, 2)
    with raises(TypeError):
        x.requires_grad_(value)
    with raises(RuntimeError):
        x.requires_grad = value
    assert not x.requires_grad
    if value is not None:  # the default of factory functions in torch
        with raises(TypeError):
            lib.ones(2, requires_grad=value)
        with raises(TypeError):
            lib.tensor([1.0], requires_grad=value)


@pytest.mark.parametrize("dtype", ["int64", "int32", "bool", "uint8"])
def test_modules_have_no_integer_parameters(lib: Any, dtype: str) -> None:
    module = lib.nn.Linear(2, 2)
    module.register_buffer("count", lib.tensor([3]))
    weight = module.weight.tolist()
    with raises(TypeError):
        module.to(getattr(lib, dtype))
    with raises(TypeError):
        module.to(dtype=getattr(lib, dtype))
    with raises(TypeError):
        module.to(lib.tensor([1]))
    assert module.weight.tolist() == weight
    module.to(lib.float64)
    assert module.weight.dtype == lib.float64
    assert module.count.dtype == lib.int64


def test_values_that_are_no_tensors_are_not_loaded(lib: Any) -> None:
    module = lib.nn.Linear(1, 1)
    before = {name: value.tolist() for name, value in module.state_dict().items()}
    for value in (np.ones((1, 1), np.float32), [[1.0]], 1.0, None, np.float32(1)):
        for assign in (False, True):
            for strict in (False, True):
                with raises(RuntimeError) as info:
                    module.load_state_dict(
                        {"weight": value, "bias": module.bias.detach()}, strict, assign
                    )
                assert type(value).__name__ in str(info.value)
    assert {name: value.tolist() for name, value in module.state_dict().items()} == before


RESULTS: dict[str, tuple[Callable[[Any], Any], type[Exception]]] = {
    "a number": (lambda lib: 3, TypeError),
    "a string": (lambda lib: "x", TypeError),
    "a bool": (lambda lib: False, TypeError),
    "a tuple": (lambda lib: (), TypeError),
    "a tensor": (lambda lib: constant(lib, 1), RuntimeError),
}


@pytest.mark.parametrize("name", RESULTS)
def test_post_accumulate_hooks_return_nothing(lib: Any, name: str) -> None:
    result, error = RESULTS[name]
    x = leaf(lib, 1)
    x.register_post_accumulate_grad_hook(lambda t: result(lib))
    with raises(error):
        (x * 2).backward()


# Modules and parameters that occur twice


def shared(lib: Any) -> tuple[Any, Any]:
    layer = lib.nn.Linear(1, 1)
    layer.register_buffer("b", lib.ones(1))
    return layer, lib.nn.Sequential(layer, layer, lib.nn.Sequential(layer))


def names(pairs: Any) -> list[str]:
    return [name for name, _ in pairs]


def test_children_are_yielded_once(lib: Any) -> None:
    layer, net = shared(lib)
    assert list(net.children()) == [layer, net[2]]
    assert names(net.named_children()) == ["0", "2"]
    assert list(net.modules()) == [net, layer, net[2]]


def test_containers_keep_both(lib: Any) -> None:
    layer, net = shared(lib)
    assert len(net) == 3
    assert list(net) == [layer, layer, net[2]]
    assert net[1] is layer
    assert len(net[:2]) == 2
    x = constant(lib, [2], dtype=lib.float32)
    assert net(x).tolist() == layer(layer(layer(x))).tolist()
    modules = lib.nn.ModuleList([layer, layer])
    assert (len(modules), list(modules), len(modules[0:2])) == (2, [layer, layer], 2)
    named = lib.nn.ModuleDict({"a": layer, "b": layer})
    assert list(named.keys()) == list(named) == ["a", "b"]
    assert list(named.values()) == [layer, layer]
    assert list(named.items()) == [("a", layer), ("b", layer)]


def test_functions_are_applied_to_each_child_once(lib: Any) -> None:
    layer, net = shared(lib)
    seen: list[Any] = []
    net.apply(seen.append)
    assert seen == [layer, layer, net[2], net]


def test_names_of_all_modules(lib: Any) -> None:
    _, net = shared(lib)
    assert names(net.named_modules()) == ["", "0", "2"]
    assert names(net.named_modules(prefix="p")) == ["p", "p.0", "p.2"]
    assert names(net.named_modules(remove_duplicate=False)) == ["", "0", "1", "2", "2.0"]


def test_names_of_parameters_and_buffers(lib: Any) -> None:
    _, net = shared(lib)
    assert names(net.named_parameters()) == ["0.weight", "0.bias"]
    assert names(net.named_parameters("p")) == ["p.0.weight", "p.0.bias"]
    assert names(net.named_parameters(remove_duplicate=False)) == [
        f"{place}.{name}" for place in ("0", "1", "2.0") for name in ("weight", "bias")
    ]
    assert names(net.named_parameters("", False)) == []
    assert names(net[0].named_parameters("p", recurse=False)) == ["p.weight", "p.bias"]
    assert names(net.named_buffers()) == ["0.b"]
    assert names(net.named_buffers("p", True, False)) == ["p.0.b", "p.1.b", "p.2.0.b"]
    assert len(list(net.parameters())) == 2
    assert len(list(net.buffers(False))) == 0


def test_one_parameter_under_two_names(lib: Any) -> None:
    module = lib.nn.Module()
    module.a = lib.nn.Parameter(lib.ones(1))
    module.b = module.a
    assert names(module.named_parameters()) == ["a"]
    assert names(module.named_parameters(remove_duplicate=False)) == ["a", "b"]
    assert list(module.state_dict()) == ["a", "b"]
