"""States of modules: keys, metadata, extra state, overridden methods, loading by assignment."""

import copy
import pickle
from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import pytest

from tests.parity.conftest import constant, raises
from tests.parity.hooked import KEYS, BoomError, note, numbers, parts, state, tree

# Contents of a state.


def test_the_keys_of_a_state(lib: Any) -> None:
    """Own parameters, own buffers, then children."""
    assert list(tree(lib).state_dict()) == KEYS


def test_a_state_is_an_ordered_dict(lib: Any) -> None:
    found = tree(lib).state_dict()
    assert isinstance(found, OrderedDict)
    assert tree(lib).state_dict() is not found


def test_a_state_skips_none(lib: Any) -> None:
    module = lib.nn.Module()
    module.register_parameter("a", None)
    module.register_buffer("b", None)
    module.add_module("c", None)
    assert list(module.state_dict()) == []
    assert list(lib.nn.Linear(1, 1, bias=False).state_dict()) == ["weight"]


def test_a_state_is_detached_and_shares_memory(lib: Any) -> None:
    module = parts(lib)
    found = module.state_dict()
    assert not found["weight"].requires_grad
    assert not isinstance(found["weight"], lib.nn.Parameter)
    assert found["weight"] is not module.weight
    with lib.no_grad():
        module.weight.fill_(7)
        module.running.fill_(8)
    assert numbers(found) == {"weight": 7, "running": 8}


def test_keep_vars(lib: Any) -> None:
    module = tree(lib)
    found = module.state_dict(keep_vars=True)
    assert found["weight"] is module.weight
    assert found["running"] is module.running
    assert found["child.leaf.weight"] is module.child.leaf.weight
    assert found["weight"].requires_grad


def test_a_prefix(lib: Any) -> None:
    assert list(tree(lib).state_dict(prefix="a.b.")) == ["a.b." + key for key in KEYS]
    assert list(parts(lib).state_dict(prefix="a")) == ["aweight", "arunning"]


def test_a_destination_is_returned(lib: Any) -> None:
    mine: dict[str, Any] = {"first": 1, "weight": 2}
    found = parts(lib).state_dict(destination=mine)
    assert found is mine
    assert list(mine) == ["first", "weight", "running"]
    assert mine["weight"].item() == 1


def test_one_destination_of_several_modules(lib: Any) -> None:
    mine: OrderedDict[str, Any] = OrderedDict()
    parts(lib).state_dict(destination=mine, prefix="a.")
    parts(lib).state_dict(destination=mine, prefix="b.")
    assert list(mine) == ["a.weight", "a.running", "b.weight", "b.running"]


def test_positional_arguments_warn(lib: Any) -> None:
    mine: dict[str, Any] = {}
    module = parts(lib)
    with pytest.warns(FutureWarning, match="ositional"):
        found = module.state_dict(mine, "a.", True)
    assert found is mine
    assert list(mine) == ["a.weight", "a.running"]
    assert mine["a.weight"] is module.weight


def test_a_shared_module_is_saved_under_each_of_its_names(lib: Any) -> None:
    shared = parts(lib)
    model = lib.nn.Sequential(shared, shared)
    assert list(model.state_dict()) == ["0.weight", "0.running", "1.weight", "1.running"]


# Metadata.


def test_a_state_has_the_versions_of_its_modules(lib: Any) -> None:
    found = tree(lib).state_dict()
    one = {"version": 1}
    assert dict(found._metadata) == {"": one, "child": one, "child.leaf": one}
    assert list(found._metadata) == ["", "child", "child.leaf"]
    assert isinstance(found._metadata, OrderedDict)


def test_the_version_of_a_class(lib: Any) -> None:
    class Newer(lib.nn.Module):  # type: ignore[misc]
        _version = 5

    assert lib.nn.Module._version == 1
    model = lib.nn.Sequential(Newer(), lib.nn.Identity())
    assert dict(model.state_dict()._metadata) == {
        "": {"version": 1},
        "0": {"version": 5},
        "1": {"version": 1},
    }


def test_metadata_of_a_prefix(lib: Any) -> None:
    found = tree(lib).state_dict(prefix="a.b.")
    assert list(found._metadata) == ["a.b", "a.b.child", "a.b.child.leaf"]


def test_a_plain_destination_has_no_metadata(lib: Any) -> None:
    mine: dict[str, Any] = {}
    assert not hasattr(tree(lib).state_dict(destination=mine), "_metadata")
    ordered: Any = OrderedDict()
    assert not hasattr(tree(lib).state_dict(destination=ordered), "_metadata")


def test_a_destination_with_metadata_is_added_to(lib: Any) -> None:
    mine = parts(lib).state_dict(prefix="a.")
    parts(lib).state_dict(destination=mine, prefix="b.")
    assert list(mine._metadata) == ["a", "b"]


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))]
)
def test_copies_of_a_state_keep_its_metadata(lib: Any, duplicate: Any) -> None:
    found = duplicate(tree(lib).state_dict())
    assert list(found) == KEYS
    assert list(found._metadata) == ["", "child", "child.leaf"]


# Overridden methods of saving.


def test_save_to_state_dict_overridden(lib: Any) -> None:
    class Mine(lib.nn.Module):  # type: ignore[misc]
        def _save_to_state_dict(self, destination: Any, prefix: Any, keep_vars: Any) -> None:
            super()._save_to_state_dict(destination, prefix, keep_vars)
            destination[prefix + "mine"] = (prefix, keep_vars)

    model = lib.nn.Sequential(Mine())
    model[0].weight = lib.nn.Parameter(constant(lib, 1))
    seen: list[Any] = []
    model[0].register_state_dict_pre_hook(note(seen, "before"))
    model[0].register_state_dict_post_hook(lambda m, found, *_: seen.append(list(found)))
    found = model.state_dict(keep_vars=True)
    assert list(found) == ["0.weight", "0.mine"]
    assert found["0.mine"] == ("0.", True)
    assert seen == ["before", ["0.weight", "0.mine"]]


def test_state_dict_of_a_child_overridden(lib: Any) -> None:
    seen: Any = []

    class Mine(lib.nn.Module):  # type: ignore[misc]
        def state_dict(self, **options: Any) -> Any:
            seen.append((sorted(options), options["prefix"], options["keep_vars"]))
            return super().state_dict(**options)

    model = lib.nn.Sequential(Mine(), parts(lib))
    model[0].child = parts(lib)
    found = model.state_dict(prefix="a.", keep_vars=True)
    assert seen == [(["destination", "keep_vars", "prefix"], "a.0.", True)]
    assert list(found) == [
        "a.0.child.weight",
        "a.0.child.running",
        "a.1.weight",
        "a.1.running",
    ]


# Extra state.


def extra(lib: Any) -> Any:
    """Return a module with extra state that records its values."""

    class Extra(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = lib.nn.Parameter(constant(lib, 1))
            self.child = lib.nn.Module()
            self.child.register_buffer("a", constant(lib, 2))
            self.seen: list[Any] = []

        def get_extra_state(self) -> Any:
            return {"mine": [1, 2]}

        def set_extra_state(self, state: Any) -> None:
            self.seen.append((state, self.weight.item(), self.child.a.item()))

    return Extra()


def test_extra_state_is_saved(lib: Any) -> None:
    """After the module's own entries, before its children."""
    model = lib.nn.Sequential(extra(lib))
    found = model.state_dict()
    assert list(found) == ["0.weight", "0._extra_state", "0.child.a"]
    assert found["0._extra_state"] == {"mine": [1, 2]}


def test_extra_state_is_loaded(lib: Any) -> None:
    """After the module's own entries, before its children."""
    model = lib.nn.Sequential(extra(lib))
    result = model.load_state_dict(
        {
            "0._extra_state": "given",
            "0.child.a": constant(lib, 8),
            "0.weight": constant(lib, 7),
        }
    )
    assert model[0].seen == [("given", 7, 2)]
    assert model[0].child.a.item() == 8
    assert result.missing_keys == result.unexpected_keys == []


@pytest.mark.parametrize("given", [None, 3, "x", [1], {"a": 1}], ids=repr)
def test_extra_state_may_be_anything(lib: Any, given: Any) -> None:
    module = extra(lib)
    module.load_state_dict({**module.state_dict(), "_extra_state": given})
    assert module.seen[0][0] == given


def test_extra_state_that_is_missing(lib: Any) -> None:
    module = extra(lib)
    found = module.state_dict()
    del found["_extra_state"]
    with raises(RuntimeError):
        module.load_state_dict(found)
    result = module.load_state_dict(found, strict=False)
    assert result.missing_keys == ["_extra_state"]
    assert module.seen == []


def test_extra_state_that_is_unexpected(lib: Any) -> None:
    model = lib.nn.Sequential(parts(lib))
    found = model.state_dict()
    found["0._extra_state"] = 1
    with raises(RuntimeError):
        model.load_state_dict(found)
    assert model.load_state_dict(found, strict=False).unexpected_keys == ["0._extra_state"]


def test_extra_state_that_can_only_be_saved(lib: Any) -> None:
    class Half(lib.nn.Module):  # type: ignore[misc]
        def get_extra_state(self) -> Any:
            return 1

    module = Half()
    found = module.state_dict()
    assert dict(found) == {"_extra_state": 1}
    with raises(RuntimeError):
        module.load_state_dict(found)


def test_a_module_has_no_extra_state_by_itself(lib: Any) -> None:
    module = lib.nn.Module()
    with raises(RuntimeError):
        module.get_extra_state()
    with raises(RuntimeError):
        module.set_extra_state(1)


def test_extra_state_that_raises(lib: Any) -> None:
    class Bad(lib.nn.Module):  # type: ignore[misc]
        def get_extra_state(self) -> Any:
            raise BoomError

        def set_extra_state(self, state: Any) -> None:
            raise BoomError

    module = Bad()
    with pytest.raises(BoomError):
        module.state_dict()
    with pytest.raises(BoomError):
        module.load_state_dict({"_extra_state": 1})
    with pytest.raises(BoomError):
        module.load_state_dict({"_extra_state": 1}, strict=False)


# Loading: return values and errors.


def test_loading_returns_missing_and_unexpected_keys(lib: Any) -> None:
    model = tree(lib)
    result = model.load_state_dict(model.state_dict())
    assert result.missing_keys == []
    assert result.unexpected_keys == []
    missing, unexpected = result
    assert missing == unexpected == []
    assert "matched" in repr(result)
    assert isinstance(result, tuple)


def test_loading_entries_that_do_not_match(lib: Any) -> None:
    model = tree(lib)
    given = state(lib, running=3, child__weight=4, other=5, child__other=6, more__weight=7)
    result = model.load_state_dict(given, strict=False)
    assert result.missing_keys == [
        "weight",
        "child.running",
        "child.leaf.weight",
        "child.leaf.running",
    ]
    assert result.unexpected_keys == ["other", "more.weight", "child.other"]
    assert "other" in repr(result)
    assert model.running.item() == 3
    assert model.child.weight.item() == 4
    assert model.weight.item() == 1


@pytest.mark.parametrize(
    "given", [{"weight": 1}, {"weight": 1, "running": 2, "other": 3}, {}], ids=repr
)
def test_strict_loading_raises(lib: Any, given: Any) -> None:
    module = parts(lib)
    with raises(RuntimeError) as info:
        module.load_state_dict(state(lib, **given))
    wrong = {"weight", "running"}.symmetric_difference(given)
    assert all(name in str(info.value) for name in wrong)
    module.load_state_dict(state(lib, **given), strict=False)


def test_a_buffer_that_is_not_persistent_is_unexpected(lib: Any) -> None:
    module = parts(lib)
    result = module.load_state_dict(state(lib, weight=3, running=4, scratch=5), strict=False)
    assert result.unexpected_keys == ["scratch"]
    assert module.scratch.item() == 0


def test_a_parameter_of_none_is_unexpected(lib: Any) -> None:
    module = lib.nn.Linear(1, 1, bias=False)
    given = {**module.state_dict(), "bias": lib.zeros(1)}
    with raises(RuntimeError):
        module.load_state_dict(given)
    assert module.load_state_dict(given, strict=False).unexpected_keys == ["bias"]


@pytest.mark.parametrize("strict", [True, False])
def test_the_wrong_shape_raises_strict_or_not(lib: Any, strict: bool) -> None:
    module = parts(lib)
    with raises(RuntimeError) as info:
        module.load_state_dict(
            {"weight": constant(lib, 1, 2), "running": constant(lib, 3)}, strict=strict
        )
    assert "weight" in str(info.value)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("wrong", [None, 3.0, "x", [1.0]], ids=repr)
def test_a_non_tensor_raises_strict_or_not(lib: Any, strict: bool, wrong: Any) -> None:
    with raises(RuntimeError):
        parts(lib).load_state_dict({"weight": wrong, "running": constant(lib, 3)}, strict=strict)


@pytest.mark.parametrize("wrong", [None, 3, [("weight", 1)], "weight"], ids=repr)
def test_a_state_is_a_mapping(lib: Any, wrong: Any) -> None:
    with raises(TypeError):
        parts(lib).load_state_dict(wrong)


def test_a_vector_of_one_number_for_a_number(lib: Any) -> None:
    module = parts(lib)
    module.load_state_dict({"weight": constant(lib, [7]), "running": constant(lib, 8)})
    assert module.weight.shape == ()
    assert module.weight.item() == 7


def test_loading_copies(lib: Any) -> None:
    module = parts(lib)
    weight, running = module.weight, module.running
    given = state(lib, weight=7, running=8)
    module.load_state_dict(given)
    assert module.weight is weight
    assert module.running is running
    given["weight"].fill_(9)
    assert weight.item() == 7
    assert weight.requires_grad


def test_loading_leaves_the_given_state(lib: Any) -> None:
    module = parts(lib)

    def clear(state_dict: Any, *rest: Any) -> None:
        state_dict.clear()

    module._register_load_state_dict_pre_hook(clear)
    given = state(lib, weight=7, running=8)
    result = module.load_state_dict(given, strict=False)
    assert result.missing_keys == ["weight", "running"]
    assert list(given) == ["weight", "running"]


def test_a_state_may_be_any_mapping(lib: Any) -> None:
    module = parts(lib)
    module.load_state_dict(MappingProxyType(state(lib, weight=7, running=8)))
    assert module.weight.item() == 7


# Overridden methods of loading.


def test_load_from_state_dict_overridden(lib: Any) -> None:
    seen: list[Any] = []

    class Mine(lib.nn.Module):  # type: ignore[misc]
        _version = 2

        def __init__(self) -> None:
            super().__init__()
            self.weight = lib.nn.Parameter(constant(lib, 1))

        def _load_from_state_dict(
            self,
            state_dict: Any,
            prefix: Any,
            local_metadata: Any,
            strict: Any,
            missing_keys: Any,
            unexpected_keys: Any,
            error_msgs: Any,
        ) -> None:
            version = local_metadata.get("version")
            seen.append((prefix, version, strict))
            if version is None or version < 2:
                state_dict[prefix + "weight"] = state_dict.pop(prefix + "old")
            super()._load_from_state_dict(
                state_dict,
                prefix,
                local_metadata,
                strict,
                missing_keys,
                unexpected_keys,
                error_msgs,
            )

    model = lib.nn.Sequential(Mine())
    model[0].register_load_state_dict_pre_hook(lambda m, found, *_: seen.append(list(found)))
    model.load_state_dict(model.state_dict())
    model.load_state_dict(state(lib, **{"0__old": 7}), strict=False)
    assert model[0].weight.item() == 7
    assert seen == [("0.", 2, True), ["0.weight"], ("0.", None, True), ["0.weight"]]


def test_an_old_version_is_mended(lib: Any) -> None:
    class Mine(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = lib.nn.Parameter(constant(lib, 1))

        def _load_from_state_dict(self, state_dict: Any, prefix: Any, *rest: Any) -> None:
            if rest[0].get("version", 1) < self._version:
                state_dict[prefix + "weight"] = state_dict[prefix + "weight"] * 100
            super()._load_from_state_dict(state_dict, prefix, *rest)

    old = lib.nn.Sequential(Mine()).state_dict()
    Mine._version = 2
    model = lib.nn.Sequential(Mine())
    model.load_state_dict(old)
    assert model[0].weight.item() == 100
    model.load_state_dict(model.state_dict())
    assert model[0].weight.item() == 100
    assert old["0.weight"].item() == 1


def test_loading_overridden_without_the_base(lib: Any) -> None:
    """Neither its values nor its hooks before; its children and its hooks after as ever."""
    seen: list[Any] = []

    class Mine(lib.nn.Module):  # type: ignore[misc]
        def _load_from_state_dict(self, *args: Any) -> None:
            seen.append(len(args))

    module = Mine()
    module.weight = lib.nn.Parameter(constant(lib, 1))
    module.child = parts(lib)
    module.register_load_state_dict_pre_hook(note(seen, "before"))
    module.register_load_state_dict_post_hook(note(seen, "after"))
    module.load_state_dict(state(lib, weight=7, more=8, child__weight=9, child__running=10))
    assert module.weight.item() == 1
    assert module.child.weight.item() == 9
    assert seen == [7, "after"]


def test_a_childs_load_state_dict_is_not_called(lib: Any) -> None:
    class Mine(lib.nn.Module):  # type: ignore[misc]
        def load_state_dict(self, *args: Any, **options: Any) -> Any:
            raise BoomError

    model = lib.nn.Sequential(Mine())
    model.load_state_dict(model.state_dict())
    with pytest.raises(BoomError):
        model[0].load_state_dict({})


# Loading by assignment.


def test_assign_takes_the_tensors(lib: Any) -> None:
    module = parts(lib)
    weight = module.weight
    given = state(lib, weight=7, running=8)
    result = module.load_state_dict(given, assign=True)
    assert result == ([], [])
    assert module.weight is not weight
    assert isinstance(module.weight, lib.nn.Parameter)
    assert module.running is given["running"]
    given["weight"].fill_(9)
    assert module.weight.item() == 9
    assert weight.item() == 1
    assert list(module.state_dict()) == ["weight", "running"]


def test_assign_takes_parameters_themselves(lib: Any) -> None:
    module, other = parts(lib), parts(lib, 7, 8)
    module.load_state_dict(other.state_dict(keep_vars=True), assign=True)
    assert module.weight is other.weight
    assert module.running is other.running


@pytest.mark.parametrize("requires", [True, False])
@pytest.mark.parametrize("kind", ["tensor", "parameter"])
def test_assign_keeps_whether_grad_is_required(lib: Any, requires: bool, kind: str) -> None:
    module = parts(lib)
    module.requires_grad_(requires)
    given = state(lib, weight=7, running=8)
    if kind == "parameter":
        given["weight"] = lib.nn.Parameter(given["weight"], requires_grad=not requires)
    module.load_state_dict(given, assign=True)
    assert module.weight.requires_grad is requires
    assert not module.running.requires_grad


def test_assign_takes_the_dtype(lib: Any) -> None:
    module = parts(lib)
    given = {
        "weight": constant(lib, 7, dtype=lib.float32),
        "running": constant(lib, 8, dtype=lib.int64),
    }
    module.load_state_dict(given)
    assert module.weight.dtype == module.running.dtype == lib.float64
    module.load_state_dict(given, assign=True)
    assert module.weight.dtype == lib.float32
    assert module.running.dtype == lib.int64


def test_assign_keeps_the_shape(lib: Any) -> None:
    with raises(RuntimeError):
        parts(lib).load_state_dict(
            {"weight": constant(lib, 1, 2), "running": constant(lib, 3)}, assign=True
        )


def test_assign_of_some(lib: Any) -> None:
    model = tree(lib)
    weight = model.weight
    with raises(RuntimeError):
        model.load_state_dict(state(lib, child__weight=7), assign=True)
    given = state(lib, child__weight=7)
    result = model.load_state_dict(given, strict=False, assign=True)
    assert len(result.missing_keys) == 5
    assert model.weight is weight
    given["child.weight"].fill_(9)
    assert model.child.weight.item() == 9


def test_hooks_are_told_of_assign(lib: Any) -> None:
    model = lib.nn.Sequential(parts(lib))
    seen: list[Any] = []
    model[0].register_load_state_dict_pre_hook(lambda *got: seen.append(dict(got[3])))
    model.load_state_dict(model.state_dict(), assign=True)
    model.load_state_dict(dict(model.state_dict()), assign=True)
    model.load_state_dict(model.state_dict())
    assert seen == [
        {"version": 1, "assign_to_params_buffers": True},
        {"assign_to_params_buffers": True},
        {"version": 1},
    ]


def test_hooks_run_when_tensors_are_assigned(lib: Any) -> None:
    module = parts(lib)
    seen: Any = []
    given = state(lib, weight=7, running=8)
    module.register_load_state_dict_pre_hook(lambda m, *_: seen.append(m.weight.item()))
    module.register_load_state_dict_post_hook(lambda m, *_: seen.append(m.weight.item()))
    module.load_state_dict(given, assign=True)
    assert seen == [1, 7]


def test_assigned_parameters_get_gradients(lib: Any) -> None:
    module = lib.nn.Linear(1, 1, bias=False).double()
    module.load_state_dict({"weight": constant(lib, [[3]])}, assign=True)
    module(constant(lib, [[2]])).sum().backward()
    assert module.weight.grad.tolist() == [[2]]
