"""Hooks before and after saving and loading the state of modules."""

import copy
from collections import OrderedDict
from typing import Any

import pytest

from tests.parity.conftest import constant, raises
from tests.parity.hooked import KEYS, BoomError, boom, note, numbers, parts, state, tree

# Hooks before saving.


def test_a_pre_hook_gets_module_prefix_and_keep_vars(lib: Any) -> None:
    module = parts(lib)
    seen: list[Any] = []
    module.register_state_dict_pre_hook(lambda *got: seen.append(got))
    module.state_dict()
    module.state_dict(prefix="a.", keep_vars=True)
    assert seen == [(module, "", False), (module, "a.", True)]


def test_pre_hooks_of_nested_modules_get_their_prefix(lib: Any) -> None:
    model = tree(lib)
    seen: list[Any] = []
    for module in model.modules():
        module.register_state_dict_pre_hook(lambda *got: seen.append(got))
    model.state_dict()
    model.state_dict(prefix="a.", keep_vars=True)
    child, leaf = model.child, model.child.leaf
    assert seen == [
        (model, "", False),
        (child, "child.", False),
        (leaf, "child.leaf.", False),
        (model, "a.", True),
        (child, "a.child.", True),
        (leaf, "a.child.leaf.", True),
    ]


def test_a_pre_hook_comes_before_the_values_are_taken(lib: Any) -> None:
    module = parts(lib)

    def prepare(module: Any, prefix: str, keep_vars: bool) -> None:
        module.running = constant(lib, 9)
        module.register_buffer("more", constant(lib, 10))

    module.register_state_dict_pre_hook(prepare)
    assert numbers(module.state_dict()) == {"weight": 1, "running": 9, "more": 10}


@pytest.mark.parametrize("given", [0, "x", {}, OrderedDict(a=1)], ids=repr)
def test_the_result_of_a_pre_hook_is_ignored(lib: Any, given: Any) -> None:
    module = parts(lib)
    module.register_state_dict_pre_hook(lambda *_: given)
    assert list(module.state_dict()) == ["weight", "running"]


def test_a_pre_hook_that_raises(lib: Any) -> None:
    model = tree(lib)
    seen: list[Any] = []
    model.register_state_dict_pre_hook(note(seen, "model"))
    model.register_state_dict_post_hook(note(seen, "model after"))
    model.child.register_state_dict_pre_hook(boom)
    model.child.register_state_dict_pre_hook(note(seen, "child"))
    with pytest.raises(BoomError):
        model.state_dict()
    assert seen == ["model"]


# Hooks after saving. The public kind changes in place; the private kind may return another.

AFTER = pytest.mark.parametrize(
    "register", ["register_state_dict_post_hook", "_register_state_dict_hook"]
)


@AFTER
def test_a_post_hook_gets_module_state_prefix_and_metadata(lib: Any, register: str) -> None:
    module = parts(lib)
    seen: list[Any] = []

    def hook(*got: Any) -> None:
        seen.append(got)

    getattr(module, register)(hook)
    found = module.state_dict(prefix="a.")
    ((which, state_dict, prefix, metadata),) = seen
    assert which is module
    assert state_dict is found
    assert prefix == "a."
    assert metadata == {"version": 1}
    assert metadata is found._metadata["a"]


@AFTER
def test_post_hooks_of_nested_modules(lib: Any, register: str) -> None:
    """Children first; each gets all that was saved so far."""
    model = tree(lib)
    seen: list[Any] = []

    def hook(module: Any, state_dict: Any, prefix: str, metadata: Any) -> None:
        seen.append((prefix, list(state_dict)))

    for module in model.modules():
        getattr(module, register)(hook)
    model.state_dict()
    assert seen == [("child.leaf.", KEYS), ("child.", KEYS), ("", KEYS)]


@AFTER
def test_a_post_hook_of_an_earlier_child(lib: Any, register: str) -> None:
    model = lib.nn.Sequential(parts(lib), parts(lib))
    seen: list[Any] = []

    def hook(module: Any, state_dict: Any, prefix: str, metadata: Any) -> None:
        seen.append(list(state_dict))

    getattr(model[0], register)(hook)
    model.state_dict()
    assert seen == [["0.weight", "0.running"]]


@AFTER
def test_a_post_hook_changes_the_state_in_place(lib: Any, register: str) -> None:
    model = tree(lib)

    def rename(module: Any, state_dict: Any, prefix: str, metadata: Any) -> None:
        state_dict[prefix + "renamed"] = state_dict.pop(prefix + "weight")
        metadata["mine"] = prefix

    getattr(model.child, register)(rename)
    found = model.state_dict()
    assert list(found) == [
        "weight",
        "running",
        "child.running",
        "child.leaf.weight",
        "child.leaf.running",
        "child.renamed",
    ]
    assert found._metadata["child"] == {"version": 1, "mine": "child."}
    assert found._metadata[""] == {"version": 1}


@AFTER
def test_a_post_hook_gets_metadata_that_is_not_kept(lib: Any, register: str) -> None:
    module = parts(lib)
    seen: list[Any] = []

    def hook(module: Any, state_dict: Any, prefix: str, metadata: Any) -> None:
        seen.append(metadata)

    getattr(module, register)(hook)
    module.state_dict(destination={})
    assert seen == [{"version": 1}]


@AFTER
def test_a_post_hook_that_raises(lib: Any, register: str) -> None:
    model = tree(lib)
    seen: list[Any] = []
    getattr(model, register)(note(seen, "model"))
    getattr(model.child, register)(lambda *_: boom())
    with pytest.raises(BoomError):
        model.state_dict()
    assert seen == []


@AFTER
def test_a_removed_post_hook(lib: Any, register: str) -> None:
    module = parts(lib)
    seen: list[Any] = []
    handle = getattr(module, register)(note(seen, 1))
    getattr(module, register)(note(seen, 2))
    handle.remove()
    module.state_dict()
    assert seen == [2]


def test_hooks_around_saving_in_their_order(lib: Any) -> None:
    model = lib.nn.Sequential(parts(lib))
    seen: list[Any] = []
    for name, module in (("model", model), ("child", model[0])):
        module.register_state_dict_post_hook(note(seen, f"{name} after 1"))
        module._register_state_dict_hook(note(seen, f"{name} after 2"))
        module.register_state_dict_post_hook(note(seen, f"{name} after 3"))
        module.register_state_dict_pre_hook(note(seen, f"{name} before 1"))
        module.register_state_dict_pre_hook(note(seen, f"{name} before 2"))
    model.state_dict()
    assert seen == [
        "model before 1",
        "model before 2",
        "child before 1",
        "child before 2",
        "child after 1",
        "child after 2",
        "child after 3",
        "model after 1",
        "model after 2",
        "model after 3",
    ]


@pytest.mark.parametrize("given", [0, "x", {}], ids=repr)
@pytest.mark.parametrize("inner", [False, True])
def test_a_public_post_hook_returns_nothing(lib: Any, given: Any, inner: bool) -> None:
    model = tree(lib)
    module = model.child if inner else model
    module.register_state_dict_post_hook(lambda *_: given)
    with raises(RuntimeError):
        model.state_dict()


def test_a_public_post_hook_does_not_return_the_state(lib: Any) -> None:
    module = parts(lib)
    module.register_state_dict_post_hook(lambda module, state_dict, *_: state_dict)
    with raises(RuntimeError):
        module.state_dict()


def test_the_result_of_a_private_hook_of_the_root_is_the_state(lib: Any) -> None:
    module = parts(lib)
    other = {"mine": 1}
    seen: Any = []
    module._register_state_dict_hook(lambda _, found, *rest: seen.append(list(found)) or other)
    module._register_state_dict_hook(lambda _, found, *rest: seen.append(list(found)))
    assert module.state_dict() is other
    assert seen == [["weight", "running"], ["mine"]]


def test_the_result_of_a_private_hook_of_a_child_is_dropped(lib: Any) -> None:
    model = tree(lib)
    seen: Any = []
    model.child._register_state_dict_hook(lambda *_: {"mine": 1})
    model.child._register_state_dict_hook(lambda _, found, *rest: seen.append(list(found)))
    assert list(model.state_dict()) == KEYS
    assert list(model.child.state_dict()) == ["mine"]
    assert seen == [["mine"], ["mine"]]


# Hooks before loading.


def test_a_load_pre_hook_gets_eight_arguments(lib: Any) -> None:
    model = tree(lib)
    seen: list[Any] = []

    def hook(*got: Any) -> None:
        seen.append(
            (*got[:1], list(got[1]), got[2], dict(got[3]), *(copy.copy(each) for each in got[4:]))
        )

    for module in (model, model.child):
        module.register_load_state_dict_pre_hook(hook)
    given = model.state_dict()
    model.load_state_dict(given)
    one = {"version": 1}
    assert seen == [
        (model, KEYS, "", one, True, [], [], []),
        (model.child, KEYS[2:], "child.", one, True, [], [], []),
    ]


def test_a_private_load_pre_hook_gets_no_module(lib: Any) -> None:
    module = parts(lib)
    seen: list[Any] = []
    register = module._register_load_state_dict_pre_hook
    register(lambda *got: seen.append((len(got), got[1], got[3:])))
    register(lambda *got: seen.append((len(got), got[0] is module, got[2])), with_module=True)
    register(lambda *got: seen.append((len(got), got[1])), False)
    module.load_state_dict(state(lib, weight=7, running=8))
    assert seen == [(7, "", (True, [], [], [])), (8, True, ""), (7, "")]


@pytest.mark.parametrize("strict", [True, False])
def test_a_load_pre_hook_is_not_told_of_strict(lib: Any, strict: bool) -> None:
    """Keys are always looked for; whether they matter is decided in the end."""
    module = parts(lib)
    seen: list[Any] = []
    module.register_load_state_dict_pre_hook(lambda *got: seen.append(got[4]))
    module.load_state_dict(module.state_dict(), strict=strict)
    assert seen == [True]


def test_a_load_pre_hook_without_metadata(lib: Any) -> None:
    module = parts(lib)
    seen: list[Any] = []
    module.register_load_state_dict_pre_hook(lambda *got: seen.append(got[3]))
    module.load_state_dict(state(lib, weight=7, running=8))
    assert seen == [{}]


def test_a_load_pre_hook_comes_before_the_values_are_set(lib: Any) -> None:
    module = parts(lib)
    seen: list[Any] = []
    module.register_load_state_dict_pre_hook(lambda m, *_: seen.append(m.weight.item()))
    module.load_state_dict(state(lib, weight=7, running=8))
    assert seen == [1]
    assert module.weight.item() == 7


def test_load_pre_hooks_in_the_order_of_registration(lib: Any) -> None:
    module = parts(lib)
    seen: list[Any] = []
    module.register_load_state_dict_pre_hook(note(seen, 1))
    module._register_load_state_dict_pre_hook(note(seen, 2))
    handle = module.register_load_state_dict_pre_hook(note(seen, 3))
    module._register_load_state_dict_pre_hook(note(seen, 4), with_module=True)
    handle.remove()
    module.load_state_dict(module.state_dict())
    assert seen == [1, 2, 4]


def test_a_load_pre_hook_renames_keys(lib: Any) -> None:
    """Those of an old version."""
    model = lib.nn.Sequential(parts(lib))

    def rename(module: Any, state_dict: Any, prefix: str, local_metadata: Any, *rest: Any) -> None:
        if local_metadata.get("version") is None:
            state_dict[prefix + "weight"] = state_dict.pop(prefix + "gamma")

    model[0].register_load_state_dict_pre_hook(rename)
    given = state(lib, **{"0__gamma": 7, "0__running": 8})
    model.load_state_dict(given, strict=False)
    assert model[0].weight.item() == 7
    assert list(given) == ["0.gamma", "0.running"]
    model.load_state_dict(model.state_dict())


def test_a_load_pre_hook_of_the_parent_changes_the_children_s_state(lib: Any) -> None:
    model = tree(lib)

    def strip(module: Any, state_dict: Any, prefix: str, *rest: Any) -> None:
        for key in list(state_dict):
            state_dict[key.removeprefix("module.")] = state_dict.pop(key)

    model.register_load_state_dict_pre_hook(strip)
    model.load_state_dict({"module." + key: constant(lib, 5) for key in KEYS})
    assert set(numbers(model.state_dict()).values()) == {5}


def test_a_load_pre_hook_of_a_child_changes_only_its_own_state(lib: Any) -> None:
    """It has a dictionary of its own keys, and the values are those of all."""
    model = lib.nn.Sequential(parts(lib), parts(lib))
    seen: list[Any] = []

    def take(module: Any, state_dict: Any, prefix: str, *rest: Any) -> None:
        seen.append(list(state_dict))
        state_dict.pop("0.weight")
        state_dict["1.weight"] = constant(lib, 100)

    model[0].register_load_state_dict_pre_hook(take)
    model[1].register_load_state_dict_pre_hook(lambda m, found, *_: seen.append(list(found)))
    result = model.load_state_dict(model.state_dict(), strict=False)
    assert seen == [["0.weight", "0.running"], ["1.weight", "1.running"]]
    assert result.missing_keys == ["0.weight"]
    assert model[1].weight.item() == 1


def test_a_load_pre_hook_replaces_values(lib: Any) -> None:
    module = parts(lib)

    def double(state_dict: Any, prefix: str, *rest: Any) -> None:
        state_dict[prefix + "weight"] = state_dict[prefix + "weight"] * 2

    module._register_load_state_dict_pre_hook(double)
    module.load_state_dict(state(lib, weight=7, running=8))
    assert module.weight.item() == 14


@pytest.mark.parametrize("strict", [True, False])
def test_a_load_pre_hook_adds_a_missing_key(lib: Any, strict: bool) -> None:
    module = parts(lib)

    def add(module: Any, found: Any, prefix: Any, meta: Any, strict: Any, *lists: Any) -> None:
        lists[0].append("mine")
        lists[1].append("yours")

    module.register_load_state_dict_pre_hook(add)
    if strict:
        with raises(RuntimeError) as info:
            module.load_state_dict(module.state_dict())
        assert "mine" in str(info.value)
        assert "yours" in str(info.value)
    else:
        result = module.load_state_dict(module.state_dict(), strict=False)
        assert result == (["mine"], ["yours"])


@pytest.mark.parametrize("strict", [True, False])
def test_an_error_of_a_load_pre_hook_raises_strict_or_not(lib: Any, strict: bool) -> None:
    model = lib.nn.Sequential(parts(lib))
    model[0].register_load_state_dict_pre_hook(lambda *got: got[7].append("my reason"))
    with raises(RuntimeError) as info:
        model.load_state_dict(model.state_dict(), strict=strict)
    assert "my reason" in str(info.value)


@pytest.mark.parametrize("given", [0, "x", {}, {"weight": 3}], ids=repr)
def test_the_result_of_a_load_pre_hook_is_ignored(lib: Any, given: Any) -> None:
    module = parts(lib)
    module.register_load_state_dict_pre_hook(lambda *_: given)
    module.load_state_dict(state(lib, weight=7, running=8))
    assert module.weight.item() == 7


def test_a_load_pre_hook_that_raises(lib: Any) -> None:
    model = tree(lib)
    seen: list[Any] = []
    error = BoomError()

    def fail(*args: Any) -> None:
        raise error

    model.child.register_load_state_dict_pre_hook(fail)
    model.child.register_load_state_dict_pre_hook(note(seen, "child"))
    model.child.leaf.register_load_state_dict_pre_hook(note(seen, "leaf"))
    model.register_load_state_dict_post_hook(note(seen, "after"))
    with pytest.raises(BoomError) as info:
        model.load_state_dict(model.state_dict())
    assert info.value is error
    assert seen == []


# Hooks after loading.


def test_a_load_post_hook_gets_module_and_keys(lib: Any) -> None:
    module = parts(lib)
    seen: list[Any] = []
    module.register_load_state_dict_post_hook(lambda *got: seen.append(got))
    result = module.load_state_dict(state(lib, weight=7, other=8), strict=False)
    ((which, keys),) = seen
    assert which is module
    assert keys.missing_keys == ["running"]
    assert keys.unexpected_keys == ["other"]
    assert keys == result
    missing, unexpected = keys
    assert missing is keys.missing_keys
    assert unexpected is keys.unexpected_keys


def test_a_load_post_hook_comes_after_all_values(lib: Any) -> None:
    model = tree(lib)
    seen: list[Any] = []
    model.register_load_state_dict_post_hook(
        lambda m, _: seen.extend([m.weight.item(), m.child.leaf.weight.item()])
    )
    model.load_state_dict({key: constant(lib, 5) for key in KEYS})
    assert seen == [5, 5]


def test_hooks_around_loading_in_their_order(lib: Any) -> None:
    model = tree(lib)
    seen: list[Any] = []
    for name, module in model.named_modules():
        module.register_load_state_dict_post_hook(note(seen, f"<{name} 1"))
        module.register_load_state_dict_post_hook(note(seen, f"<{name} 2"))
        module.register_load_state_dict_pre_hook(note(seen, f"{name}>"))
    model.load_state_dict(model.state_dict())
    assert seen == [
        ">",
        "child>",
        "child.leaf>",
        "<child.leaf 1",
        "<child.leaf 2",
        "<child 1",
        "<child 2",
        "< 1",
        "< 2",
    ]


def test_load_post_hooks_share_the_keys(lib: Any) -> None:
    """Each sees the keys of the modules loaded so far, and the changes of other hooks."""
    model = lib.nn.Sequential(parts(lib), parts(lib))
    seen: list[Any] = []

    def hook(module: Any, keys: Any) -> None:
        seen.append((list(keys.missing_keys), list(keys.unexpected_keys)))
        keys.missing_keys.clear()

    for module in model.modules():
        module.register_load_state_dict_post_hook(hook)
    result = model.load_state_dict(state(lib, **{"x": 1, "1__running": 1}), strict=False)
    assert seen == [
        (["0.weight", "0.running"], ["x"]),
        (["1.weight"], ["x"]),
        ([], ["x"]),
    ]
    assert result == ([], ["x"])


def test_a_load_post_hook_that_clears_the_keys(lib: Any) -> None:
    module = parts(lib)

    def clear(module: Any, keys: Any) -> None:
        keys.missing_keys.clear()
        keys.unexpected_keys.clear()

    module.register_load_state_dict_post_hook(clear)
    result = module.load_state_dict(state(lib, weight=7, other=8), strict=True)
    assert result == ([], [])
    assert module.weight.item() == 7


@pytest.mark.parametrize("which", ["missing_keys", "unexpected_keys"])
def test_a_load_post_hook_that_adds_a_key(lib: Any, which: str) -> None:
    model = lib.nn.Sequential(parts(lib))
    model[0].register_load_state_dict_post_hook(lambda m, keys: getattr(keys, which).append("mine"))
    with raises(RuntimeError) as info:
        model.load_state_dict(model.state_dict())
    assert "mine" in str(info.value)
    result = model.load_state_dict(model.state_dict(), strict=False)
    assert getattr(result, which) == ["mine"]


def test_load_post_hooks_run_before_missing_keys_raise(lib: Any) -> None:
    module = parts(lib)
    seen: list[Any] = []
    module.register_load_state_dict_post_hook(note(seen, 1))
    with raises(RuntimeError):
        module.load_state_dict({})
    assert seen == [1]


@pytest.mark.parametrize("given", [0, False, "x", {}, ([], [])], ids=repr)
def test_a_load_post_hook_returns_nothing(lib: Any, given: Any) -> None:
    module = parts(lib)
    seen: list[Any] = []
    module.register_load_state_dict_post_hook(lambda *_: given)
    module.register_load_state_dict_post_hook(note(seen, 1))
    with raises(AssertionError):
        module.load_state_dict(module.state_dict())
    assert seen == []


def test_a_load_post_hook_that_raises(lib: Any) -> None:
    model = tree(lib)
    seen: list[Any] = []
    model.register_load_state_dict_post_hook(note(seen, "model"))
    model.child.register_load_state_dict_post_hook(boom)
    model.child.register_load_state_dict_post_hook(note(seen, "child"))
    with pytest.raises(BoomError):
        model.load_state_dict(model.state_dict())
    assert seen == []


def test_a_removed_load_post_hook(lib: Any) -> None:
    module = parts(lib)
    seen: list[Any] = []
    with module.register_load_state_dict_post_hook(note(seen, 1)):
        module.load_state_dict(module.state_dict())
    module.load_state_dict(module.state_dict())
    assert seen == [1]


def test_a_shared_module_is_loaded_under_each_of_its_names(lib: Any) -> None:
    shared = parts(lib)
    model = lib.nn.Sequential(shared, shared)
    seen: list[Any] = []
    shared.register_state_dict_pre_hook(lambda m, prefix, keep: seen.append(prefix))
    shared.register_load_state_dict_pre_hook(lambda m, found, prefix, *_: seen.append(prefix))
    shared.register_load_state_dict_post_hook(note(seen, "after"))
    model.load_state_dict(model.state_dict())
    assert seen == ["0.", "1.", "0.", "after", "1.", "after"]


# Hooks of other kinds are no state.


def test_loading_leaves_the_hooks(lib: Any) -> None:
    module, other = lib.nn.Identity(), lib.nn.Identity()
    module.register_forward_hook(lambda *_: None)
    other.load_state_dict(module.state_dict())
    assert len(module._forward_hooks) == 1
    assert len(other._forward_hooks) == 0


@pytest.mark.parametrize(
    "register", ["register_state_dict_pre_hook", "register_state_dict_post_hook"]
)
def test_a_saving_hook_that_removes_itself(lib: Any, register: str) -> None:
    module = parts(lib)
    seen: list[Any] = []
    handles: list[Any] = []

    def once(*args: Any) -> None:
        seen.append(1)
        handles[0].remove()

    handles.append(getattr(module, register)(once))
    module.state_dict()
    module.state_dict()
    assert seen == [1]
