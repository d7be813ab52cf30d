"""Hooks that are called when a module gets a buffer, a parameter or a module."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from tests.parity.conftest import constant, raises
from tests.parity.hooked import BoomError, Every, boom, note, scale

PARTS = ["buffer", "parameter", "module"]


def part(lib: Any, kind: str) -> Any:
    """Return a buffer, a parameter or a module."""
    if kind == "buffer":
        return constant(lib, 1, 2)
    if kind == "parameter":
        return lib.nn.Parameter(constant(lib, 1, 2))
    return lib.nn.Identity()


def register(module: Any, kind: str, name: str, value: Any) -> None:
    """Register a part by the method for it."""
    {
        "buffer": module.register_buffer,
        "parameter": module.register_parameter,
        "module": module.add_module,
    }[kind](name, value)


def registered(module: Any, kind: str) -> dict[str, Any]:
    """Return the parts of a module that there are of a kind."""
    return dict(
        {"buffer": module._buffers, "parameter": module._parameters}.get(kind, module._modules)
    )


@pytest.fixture
def add_hook(lib: Any) -> Iterator[Any]:
    """A function that adds a registration hook until the test ends."""
    every = Every(lib)
    yield lambda kind, hook: getattr(every, f"register_module_{kind}_registration_hook")(hook)
    every.close()


@pytest.mark.parametrize("kind", PARTS)
def test_a_registration_hook_gets_module_name_and_value(lib: Any, add_hook: Any, kind: str) -> None:
    module, value = lib.nn.Module(), part(lib, kind)
    seen: list[Any] = []
    add_hook(kind, lambda *got: seen.append(got))
    register(module, kind, "a", value)
    ((which, name, got),) = seen
    assert which is module
    assert name == "a"
    assert got is value
    assert module.a is value


@pytest.mark.parametrize("kind", PARTS)
def test_registration_hooks_are_of_their_kind(lib: Any, add_hook: Any, kind: str) -> None:
    seen: list[Any] = []
    for each in PARTS:
        add_hook(each, note(seen, each))
    register(lib.nn.Module(), kind, "a", part(lib, kind))
    assert seen == [kind]


@pytest.mark.parametrize("kind", PARTS)
def test_a_registration_hook_is_called_before_the_part_is_there(
    lib: Any, add_hook: Any, kind: str
) -> None:
    seen: list[Any] = []
    add_hook(kind, lambda module, name, value: seen.append(hasattr(module, name)))
    module = lib.nn.Module()
    register(module, kind, "a", part(lib, kind))
    register(module, kind, "a", part(lib, kind))
    assert seen == [False, True]


@pytest.mark.parametrize("kind", PARTS)
def test_the_result_of_a_registration_hook_is_registered(
    lib: Any, add_hook: Any, kind: str
) -> None:
    module, value, other = lib.nn.Module(), part(lib, kind), part(lib, kind)
    add_hook(kind, lambda *_: other)
    register(module, kind, "a", value)
    assert module.a is other
    assert list(registered(module, kind)) == ["a"]
    assert registered(module, kind)["a"] is other


@pytest.mark.parametrize("kind", PARTS)
def test_later_registration_hooks_get_the_results_of_earlier_ones(
    lib: Any, add_hook: Any, kind: str
) -> None:
    parts = [part(lib, kind) for _ in range(3)]
    seen: Any = []
    add_hook(kind, lambda _, name, value: seen.append(value) or parts[1])
    add_hook(kind, lambda _, name, value: seen.append(value))
    add_hook(kind, lambda _, name, value: seen.append(value) or parts[2])
    module = lib.nn.Module()
    register(module, kind, "a", parts[0])
    assert [[each is other for other in parts].index(True) for each in seen] == [0, 1, 1]
    assert module.a is parts[2]


@pytest.mark.parametrize("kind", PARTS)
def test_a_removed_registration_hook_is_not_called(lib: Any, add_hook: Any, kind: str) -> None:
    seen: list[Any] = []
    handle = add_hook(kind, note(seen, 1))
    add_hook(kind, note(seen, 2))
    handle.remove()
    register(lib.nn.Module(), kind, "a", part(lib, kind))
    assert seen == [2]


@pytest.mark.parametrize("kind", PARTS)
def test_a_registration_hook_that_raises(lib: Any, add_hook: Any, kind: str) -> None:
    module = lib.nn.Module()
    seen: list[Any] = []
    handle = add_hook(kind, boom)
    add_hook(kind, note(seen, 1))
    with pytest.raises(BoomError):
        register(module, kind, "a", part(lib, kind))
    if kind != "buffer":
        with pytest.raises(BoomError):
            module.a = part(lib, kind)
    assert registered(module, kind) == {}
    assert not hasattr(module, "a")
    assert seen == []
    handle.remove()
    register(module, kind, "a", part(lib, kind))
    assert hasattr(module, "a")


@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize(
    ("name", "error"), [("a.b", KeyError), ("", KeyError), (3, TypeError), ("training", KeyError)]
)
def test_a_registration_that_fails_calls_no_hooks(
    lib: Any, add_hook: Any, kind: str, name: Any, error: Any
) -> None:
    seen: list[Any] = []
    add_hook(kind, note(seen, 1))
    with raises(error):
        register(lib.nn.Module(), kind, name, part(lib, kind))
    assert seen == []


@pytest.mark.parametrize("kind", PARTS)
def test_the_wrong_kind_of_value_calls_no_hooks(lib: Any, add_hook: Any, kind: str) -> None:
    seen: list[Any] = []
    add_hook(kind, note(seen, 1))
    with raises(TypeError):
        register(lib.nn.Module(), kind, "a", "wrong")
    assert seen == []


# Which registrations call them.


def test_buffers_that_are_registered(lib: Any, add_hook: Any) -> None:
    seen: list[Any] = []
    add_hook("buffer", lambda _, name, value: seen.append((name, value is None)))
    module = lib.nn.Module()
    module.register_buffer("a", part(lib, "buffer"))
    module.register_buffer("b", part(lib, "buffer"), persistent=False)
    module.register_buffer("c", None)
    assert seen == [("a", False), ("b", False), ("c", True)]


def test_buffers_that_are_assigned(lib: Any, add_hook: Any) -> None:
    """A tensor assigned to a name that is no buffer is no buffer."""
    module = lib.nn.Module()
    module.register_buffer("a", part(lib, "buffer"))
    module.register_buffer("b", part(lib, "buffer"), persistent=False)
    other = constant(lib, 3, 4)
    seen: Any = []
    add_hook("buffer", lambda _, name, value: seen.append((name, value)) or other)
    module.plain = part(lib, "buffer")
    assert seen == []
    module.a = module.b = part(lib, "buffer")
    assert [name for name, _ in seen] == ["a", "b"]
    assert module.a is other
    assert module.b is other
    assert list(module.state_dict()) == ["a"]


def test_a_buffer_for_none(lib: Any, add_hook: Any) -> None:
    other = constant(lib, 3, 4)
    add_hook("buffer", lambda _, name, value: other if value is None else None)
    module = lib.nn.Module()
    module.register_buffer("a", None)
    assert module.a is other


def test_a_buffer_keeps_whether_it_is_persistent(lib: Any, add_hook: Any) -> None:
    add_hook("buffer", lambda _, name, value: value * 2)
    module = lib.nn.Module()
    module.register_buffer("a", constant(lib, 1, 2))
    module.register_buffer("b", constant(lib, 1, 2), persistent=False)
    assert module.b.tolist() == [2, 4]
    assert list(module.state_dict()) == ["a"]


def test_parameters_that_are_registered(lib: Any, add_hook: Any) -> None:
    """None is registered without."""
    seen: list[Any] = []
    add_hook("parameter", lambda _, name, value: seen.append(name))
    module = lib.nn.Module()
    module.register_parameter("a", part(lib, "parameter"))
    module.register_parameter("b", None)
    module.c = part(lib, "parameter")
    module.b = part(lib, "parameter")
    module.a = None
    assert seen == ["a", "c", "b"]
    assert list(module._parameters) == ["a", "b", "c"]


def test_a_parameter_that_a_hook_returns_by_assignment(lib: Any, add_hook: Any) -> None:
    other = part(lib, "parameter")
    add_hook("parameter", lambda *_: other)
    module = lib.nn.Module()
    module.a = part(lib, "parameter")
    assert module.a is other
    assert next(module.parameters()) is other


def test_the_parameters_of_a_layer(lib: Any, add_hook: Any) -> None:
    seen: Any = []
    add_hook("parameter", lambda m, name, value: seen.append((m, name, tuple(value.shape))))
    layer = lib.nn.Linear(2, 3)
    assert seen == [(layer, "weight", (3, 2)), (layer, "bias", (3,))]
    lib.nn.Linear(2, 3, bias=False)
    assert [name for _, name, _ in seen] == ["weight", "bias", "weight"]


def test_a_hook_that_freezes_parameters(lib: Any, add_hook: Any) -> None:
    def freeze(module: Any, name: str, value: Any) -> None:
        if name == "weight":
            value.requires_grad_(False)

    add_hook("parameter", freeze)
    layer = lib.nn.Linear(2, 3)
    assert not layer.weight.requires_grad
    assert layer.bias.requires_grad


def test_modules_that_are_registered(lib: Any, add_hook: Any) -> None:
    seen: list[Any] = []
    add_hook("module", lambda _, name, value: seen.append((name, value is None)))
    module = lib.nn.Module()
    module.add_module("a", lib.nn.Identity())
    module.register_module("b", lib.nn.Identity())
    module.add_module("c", None)
    module.d = lib.nn.Identity()
    module.d = lib.nn.ReLU()
    module.d = None
    module.e = None
    assert seen == [
        ("a", False),
        ("b", False),
        ("c", True),
        ("d", False),
        ("d", False),
        ("d", True),
    ]


def test_a_module_that_a_hook_returns_by_assignment(lib: Any, add_hook: Any) -> None:
    other = lib.nn.ReLU()
    add_hook("module", lambda *_: other)
    module = lib.nn.Module()
    module.a = lib.nn.Identity()
    assert module.a is other
    assert dict(module.named_children()) == {"a": other}


def test_containers_register_their_modules(lib: Any, add_hook: Any) -> None:
    seen: Any = []
    add_hook("module", lambda m, name, value: seen.append((type(m).__name__, name)))
    lib.nn.Sequential(lib.nn.Identity(), lib.nn.Identity())
    assert seen == [("Sequential", "0"), ("Sequential", "1")]
    seen.clear()
    layers = lib.nn.ModuleList([lib.nn.Identity()])
    layers.append(lib.nn.Identity())
    assert seen == [("ModuleList", "0"), ("ModuleList", "1")]
    seen.clear()
    named = lib.nn.ModuleDict({"a": lib.nn.Identity()})
    named["b"] = lib.nn.Identity()
    assert seen == [("ModuleDict", "a"), ("ModuleDict", "b")]


def test_a_hook_that_replaces_layers(lib: Any, add_hook: Any) -> None:
    def replace(module: Any, name: str, value: Any) -> Any:
        return scale(lib) if isinstance(value, lib.nn.ReLU) else None

    add_hook("module", replace)
    model = lib.nn.Sequential(lib.nn.ReLU(), lib.nn.Identity(), lib.nn.ReLU())
    assert model(constant(lib, -1)).item() == -4


def test_hooks_name_each_module(lib: Any, add_hook: Any) -> None:
    def name_it(module: Any, name: str, value: Any) -> None:
        value.name = name

    add_hook("module", name_it)
    model = lib.nn.Sequential(lib.nn.Identity(), lib.nn.Sequential(lib.nn.Identity()))
    assert [getattr(each, "name", None) for each in model.modules()] == [None, "0", "1", "0"]


def test_an_inner_module_is_registered_before_its_parent(lib: Any, add_hook: Any) -> None:
    seen: Any = []
    add_hook("module", lambda m, name, value: seen.append(("module", name)))
    add_hook("parameter", lambda m, name, value: seen.append(("parameter", name)))
    lib.nn.Sequential(lib.nn.Sequential(lib.nn.Linear(1, 1, bias=False)))
    assert seen == [("parameter", "weight"), ("module", "0"), ("module", "0")]


@pytest.mark.parametrize("kind", PARTS)
def test_a_hook_that_registers(lib: Any, add_hook: Any, kind: str) -> None:
    """It is called for its own registrations."""
    seen: list[Any] = []

    def hook(module: Any, name: str, value: Any) -> None:
        seen.append(name)
        if name == "a":
            register(module, kind, "inner", part(lib, kind))

    add_hook(kind, hook)
    module = lib.nn.Module()
    register(module, kind, "a", part(lib, kind))
    assert seen == ["a", "inner"]
    assert list(registered(module, kind)) == ["inner", "a"]


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_copies_are_not_registered(lib: Any, add_hook: Any, duplicate: Any) -> None:
    model = lib.nn.Sequential(lib.nn.Linear(1, 1))
    model.register_buffer("a", constant(lib, 1))
    seen: list[Any] = []
    for kind in PARTS:
        add_hook(kind, note(seen, kind))
    duplicate(model)
    assert seen == []


def test_conversions_and_loading_register_nothing(lib: Any, add_hook: Any) -> None:
    model = lib.nn.Sequential(lib.nn.Linear(1, 1))
    model.register_buffer("a", constant(lib, 1))
    seen: list[Any] = []
    for kind in PARTS:
        add_hook(kind, note(seen, kind))
    model.double().eval().requires_grad_(False)
    model.load_state_dict(model.state_dict())
    assert seen == []


def test_loading_by_assignment_registers(lib: Any, add_hook: Any) -> None:
    model = lib.nn.Sequential(lib.nn.Linear(1, 1))
    model.register_buffer("a", constant(lib, 1))
    state = model.state_dict()
    seen: list[Any] = []
    for kind in PARTS:
        add_hook(kind, lambda _, name, value: seen.append(name))
    model.load_state_dict(state, assign=True)
    assert seen == ["a", "weight", "bias"]


def test_deleting_calls_no_hooks(lib: Any, add_hook: Any) -> None:
    module = lib.nn.Module()
    for kind in PARTS:
        register(module, kind, kind, part(lib, kind))
    seen: list[Any] = []
    for kind in PARTS:
        add_hook(kind, note(seen, kind))
    for kind in PARTS:
        delattr(module, kind)
    assert seen == []
