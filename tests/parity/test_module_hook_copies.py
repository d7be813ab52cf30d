"""Copies of modules that have hooks: which hooks they have, and to whom these belong."""

import copy
import functools
import gc
import pickle
import weakref
from collections import OrderedDict
from typing import Any

import pytest

from tests.parity.conftest import constant, leaf, raises
from tests.parity.hooked import BoomError, Counter, Every, boom, note, parts, scale

called: list[Any] = []


@pytest.fixture(autouse=True)
def _no_calls() -> Any:
    """Clear the records of hooks."""
    called.clear()
    yield
    called.clear()


def hook(*got: Any) -> None:
    """Record the arguments: a hook that can be pickled."""
    called.append(got)


def add_one(module: Any, args: Any, output: Any) -> Any:
    """Return the output and one."""
    return output + 1


def ten_times(module: Any, args: Any) -> Any:
    """Return the argument ten times."""
    return args[0] * 10


class Recorder:
    """A callable object with a list of its own."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __call__(self, *got: Any) -> None:
        self.seen.append(got)

    def method(self, *got: Any) -> None:
        """Note as well."""
        self.seen.append(got)


def pickled(value: Any) -> Any:
    """Return a value after a round trip through bytes."""
    return pickle.loads(pickle.dumps(value))


DEEP = pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled])
ANY = pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickled])
KINDS = [
    ("register_forward_pre_hook", "_forward_pre_hooks"),
    ("register_forward_hook", "_forward_hooks"),
    ("register_full_backward_pre_hook", "_backward_pre_hooks"),
    ("register_full_backward_hook", "_backward_hooks"),
    ("register_backward_hook", "_backward_hooks"),
    ("register_state_dict_pre_hook", "_state_dict_pre_hooks"),
    ("register_state_dict_post_hook", "_state_dict_hooks"),
    ("register_load_state_dict_pre_hook", "_load_state_dict_pre_hooks"),
    ("register_load_state_dict_post_hook", "_load_state_dict_post_hooks"),
]
KIND = pytest.mark.parametrize(("register", "hooks"), KINDS, ids=[each[0] for each in KINDS])


def layer(lib: Any) -> Any:
    """Return a layer that can be pickled: the identity of one number."""
    module = lib.nn.Linear(1, 1, bias=False).double()
    with lib.no_grad():
        module.weight.fill_(1)
    return module


def use(lib: Any, module: Any) -> float:
    """Run all that has hooks: forward, backward, saving and loading; return the output."""
    x = leaf(lib, [[1.0]])
    y = module(x * 1)
    y.sum().backward()
    module.zero_grad()
    module.load_state_dict(module.state_dict())
    result = y.item()
    assert isinstance(result, float)
    return result


OLD = pytest.mark.filterwarnings("ignore::FutureWarning")


# Which hooks a copy has.


@OLD
@ANY
@KIND
def test_a_copy_has_the_hooks(lib: Any, register: str, hooks: str, duplicate: Any) -> None:
    module = layer(lib)
    handles = [getattr(module, register)(hook) for _ in range(2)]
    other = duplicate(module)
    assert list(getattr(other, hooks)) == [handle.id for handle in handles]
    use(lib, other)
    assert len(called) == 2


@OLD
@DEEP
@KIND
def test_the_hooks_of_a_copy_get_the_copy(
    lib: Any, register: str, hooks: str, duplicate: Any
) -> None:
    module = layer(lib)
    getattr(module, register)(hook)
    other = duplicate(module)
    use(lib, other)
    assert called.pop()[0] is other
    use(lib, module)
    assert called.pop()[0] is module


@OLD
@DEEP
@KIND
def test_hooks_of_a_copy_are_independent(
    lib: Any, register: str, hooks: str, duplicate: Any
) -> None:
    module = layer(lib)
    handle = getattr(module, register)(hook)
    other = duplicate(module)
    assert getattr(other, hooks) is not getattr(module, hooks)
    handle.remove()
    assert len(getattr(module, hooks)) == 0
    assert len(getattr(other, hooks)) == 1
    added = getattr(module, register)(hook)
    assert added.id not in getattr(other, hooks)
    more = getattr(other, register)(hook)
    assert more.id not in getattr(module, hooks)
    assert len(getattr(other, hooks)) == 2
    use(lib, module)
    assert len(called) == 1
    use(lib, other)
    assert len(called) == 3


@OLD
@KIND
def test_hooks_of_a_shallow_copy_are_shared(lib: Any, register: str, hooks: str) -> None:
    module = layer(lib)
    handle = getattr(module, register)(hook)
    other = copy.copy(module)
    assert getattr(other, hooks) is getattr(module, hooks)
    getattr(other, register)(hook)
    assert len(getattr(module, hooks)) == 2
    use(lib, module)
    assert len(called) == 2
    handle.remove()
    assert len(getattr(other, hooks)) == 1
    use(lib, other)
    assert len(called) == 3


@pytest.mark.parametrize(
    "register",
    ["register_forward_pre_hook", "register_forward_hook", "register_full_backward_hook"],
)
def test_the_hooks_of_a_shallow_copy_get_the_copy(lib: Any, register: str) -> None:
    module = layer(lib)
    getattr(module, register)(hook)
    other = copy.copy(module)
    use(lib, other)
    assert called.pop()[0] is other
    use(lib, module)
    assert called.pop()[0] is module


def test_a_load_pre_hook_of_a_shallow_copy_gets_the_original(lib: Any) -> None:
    """It belongs to the module that it was registered on."""
    module = layer(lib)
    module.register_load_state_dict_pre_hook(hook)
    other = copy.copy(module)
    other.load_state_dict(other.state_dict())
    assert called.pop()[0] is module


@ANY
def test_a_copy_computes_the_same_as_the_original(lib: Any, duplicate: Any) -> None:
    module = layer(lib)
    module.register_forward_hook(add_one)
    module.register_forward_pre_hook(ten_times)
    module.register_forward_hook(add_one)
    assert use(lib, module) == 12
    assert use(lib, duplicate(module)) == 12
    assert use(lib, duplicate(duplicate(module))) == 12


@ANY
def test_a_copy_keeps_the_order(lib: Any, duplicate: Any) -> None:
    module = layer(lib)
    ids = [
        module.register_forward_hook(hook).id,
        module.register_forward_hook(hook, prepend=True).id,
        module.register_forward_hook(hook).id,
    ]
    assert list(duplicate(module)._forward_hooks) == [ids[1], ids[0], ids[2]]


@ANY
def test_a_copy_keeps_which_hooks_get_kwargs(lib: Any, duplicate: Any) -> None:
    module = lib.nn.Identity()
    module.register_forward_pre_hook(hook, with_kwargs=True)
    module.register_forward_pre_hook(hook)
    module.register_forward_hook(hook)
    module.register_forward_hook(hook, with_kwargs=True)
    other = duplicate(module)
    other(1)
    assert [got[1:] for got in called] == [((1,), {}), ((1,),), ((1,), 1), ((1,), {}, 1)]


@ANY
def test_a_copy_keeps_which_hooks_are_always_called(lib: Any, duplicate: Any) -> None:
    module = lib.nn.Identity()
    module.register_forward_hook(hook)
    module.register_forward_hook(hook, always_call=True)
    other = duplicate(module)
    with raises(TypeError):
        other()
    assert called == [(other, (), None)]


@DEEP
def test_the_options_of_a_copys_hooks_are_its_own(lib: Any, duplicate: Any) -> None:
    module = lib.nn.Identity()
    pre = module.register_forward_pre_hook(hook, with_kwargs=True)
    post = module.register_forward_hook(hook, with_kwargs=True, always_call=True)
    other = duplicate(module)
    pre.remove()
    post.remove()
    other(1)
    assert [len(got) for got in called] == [3, 4]
    with raises(TypeError):
        other()
    assert [len(got) for got in called] == [3, 4, 3, 4]


@OLD
@ANY
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("register_full_backward_hook", "register_backward_hook"),
        ("register_backward_hook", "register_full_backward_hook"),
    ],
)
def test_a_copy_keeps_which_kind_of_backward_hooks_it_has(
    lib: Any, duplicate: Any, first: str, second: str
) -> None:
    module = layer(lib)
    getattr(module, first)(hook)
    other = duplicate(module)
    with raises(RuntimeError):
        getattr(other, second)(hook)
    getattr(other, first)(hook)


@DEEP
def test_a_copy_may_have_the_other_kind_if_it_was_first(lib: Any, duplicate: Any) -> None:
    module = layer(lib)
    other = duplicate(module)
    module.register_full_backward_hook(hook)
    other.register_backward_hook(hook)


@DEEP
def test_a_model_of_several_modules(lib: Any, duplicate: Any) -> None:
    model = lib.nn.Sequential(layer(lib), lib.nn.Sequential(layer(lib)))
    for module in model.modules():
        module.register_forward_hook(hook)
    other = duplicate(model)
    use(lib, other)
    assert [got[0] for got in called] == [other[0], other[1][0], other[1], other]


@DEEP
def test_a_shared_module_has_one_dictionary(lib: Any, duplicate: Any) -> None:
    shared = layer(lib)
    model = lib.nn.Sequential(shared, shared)
    shared.register_forward_hook(add_one)
    other = duplicate(model)
    assert other[0] is other[1]
    assert use(lib, other) == 3
    other[0].register_forward_hook(add_one)
    assert use(lib, other) == 5
    assert use(lib, model) == 3


@ANY
def test_global_hooks_are_of_copies_too(lib: Any, duplicate: Any) -> None:
    every = Every(lib)
    with every.register_module_forward_hook(add_one):
        module = layer(lib)
        other = duplicate(module)
        assert len(other._forward_hooks) == 0
        assert use(lib, other) == 2
    assert use(lib, other) == 1


@ANY
def test_a_module_that_had_hooks(lib: Any, duplicate: Any) -> None:
    module = layer(lib)
    module.register_forward_hook(add_one).remove()
    assert use(lib, duplicate(module)) == 1


@DEEP
def test_copying_during_a_call(lib: Any, duplicate: Any) -> None:
    module = layer(lib)
    module.register_forward_pre_hook(ten_times)
    copies: list[Any] = []

    def take(which: Any, args: Any) -> None:
        handle.remove()
        copies.append(duplicate(module))

    handle = module.register_forward_pre_hook(take)
    assert use(lib, module) == 10
    assert use(lib, copies[0]) == 10
    assert len(copies[0]._forward_pre_hooks) == 1


# Copies of the hooks themselves.


def test_functions_are_shared(lib: Any) -> None:
    module = layer(lib)
    seen: list[Any] = []
    local = note(seen, 1)
    handle = module.register_forward_hook(local)
    other = copy.deepcopy(module)
    assert other._forward_hooks[handle.id] is local
    use(lib, other)
    assert seen == [1]


@DEEP
def test_callable_objects_are_copied(lib: Any, duplicate: Any) -> None:
    module = layer(lib)
    counter = Counter()
    handle = module.register_forward_hook(counter)
    use(lib, module)
    other = duplicate(module)
    assert other._forward_hooks[handle.id] is not counter
    assert other._forward_hooks[handle.id].count == 1
    use(lib, other)
    assert other._forward_hooks[handle.id].count == 2
    assert counter.count == 1


def test_callable_objects_of_a_shallow_copy_are_shared(lib: Any) -> None:
    module = layer(lib)
    counter = Counter()
    module.register_forward_hook(counter)
    use(lib, copy.copy(module))
    assert counter.count == 1


@DEEP
def test_one_object_that_is_several_hooks_stays_one(lib: Any, duplicate: Any) -> None:
    model = lib.nn.Sequential(layer(lib), layer(lib))
    counter = Counter()
    first = model[0].register_forward_hook(counter)
    second = model[1].register_forward_pre_hook(counter.method)
    other = duplicate(model)
    use(lib, other)
    copied = other[0]._forward_hooks[first.id]
    assert copied.count == 2
    assert other[1]._forward_pre_hooks[second.id].__self__ is copied
    assert counter.count == 0


@DEEP
def test_methods_are_copied_with_their_object(lib: Any, duplicate: Any) -> None:
    module = layer(lib)
    recorder = Recorder()
    handle = module.register_forward_hook(recorder.method)
    other = duplicate(module)
    use(lib, other)
    assert recorder.seen == []
    bound = other._forward_hooks[handle.id]
    assert bound.__self__ is not recorder
    assert bound.__self__.seen[0][0] is other


def test_methods_of_builtins_are_shared(lib: Any) -> None:
    """To Python `seen.append` is a function."""
    module = layer(lib)
    seen: list[Any] = []
    handle = module.register_forward_hook(seen.append)
    copy.deepcopy(module)._forward_hooks[handle.id](5)
    assert seen == [5]


def watching(lib: Any) -> Any:
    """Return a module whose own methods are hooks, of it and of its child."""

    class Watching(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[Any] = []
            self.child = scale(lib)
            self.handles = [
                self.register_forward_pre_hook(self.before),
                self.child.register_forward_hook(self.after),
                self.child.register_full_backward_hook(self.backward),
            ]

        def before(self, module: Any, args: Any) -> Any:
            assert module is self
            self.seen.append("before")
            return args[0] * 10

        def after(self, module: Any, args: Any, output: Any) -> Any:
            assert module is self.child
            self.seen.append("after")
            return output + 1

        def backward(self, module: Any, grad_input: Any, grad_output: Any) -> None:
            assert module is self.child
            self.seen.append("backward")

        def forward(self, x: Any) -> Any:
            return self.child(x)

    return Watching()


def test_methods_of_a_module_become_those_of_its_copy(lib: Any) -> None:
    model = watching(lib)
    other = copy.deepcopy(model)
    x = leaf(lib, 1.0)
    y = other(x)
    assert y.item() == 21
    y.backward()
    assert other.seen == ["before", "after", "backward"]
    assert model.seen == []
    assert model(constant(lib, 1)).item() == 21
    assert model.seen == ["before", "after"]
    assert len(other.seen) == 3


def test_handles_in_a_module_become_those_of_its_copy(lib: Any) -> None:
    model = watching(lib)
    other = copy.deepcopy(model)
    for handle in other.handles:
        handle.remove()
    assert other(constant(lib, 1)).item() == 2
    assert other.seen == []
    assert model(constant(lib, 1)).item() == 21
    for handle in model.handles:
        handle.remove()
    assert model(constant(lib, 1)).item() == 2


def test_methods_of_a_module_that_is_copied_shallowly(lib: Any) -> None:
    """The hooks are the original's, which the copy is not."""
    model = watching(lib)
    other = copy.copy(model)
    with raises(AssertionError):
        other(constant(lib, 1))
    assert next(iter(other._forward_pre_hooks.values())).__self__ is model


def test_a_part_of_a_model_is_copied_with_all_that_its_hooks_know(lib: Any) -> None:
    """The method's object, which is the parent, is copied as well."""
    model = watching(lib)
    child = copy.deepcopy(model.child)
    (after,) = child._forward_hooks.values()
    assert after.__self__ is not model
    assert after.__self__.child is child
    assert child(constant(lib, 1)).item() == 3
    assert after.__self__.seen == ["after"]
    assert model.seen == []


def test_a_partial_of_a_module_becomes_one_of_its_copy(lib: Any) -> None:
    model = lib.nn.Sequential(layer(lib))
    model[0].register_forward_hook(functools.partial(hook, model))
    other = copy.deepcopy(model)
    use(lib, other)
    assert called[0][:2] == (other, other[0])


def test_a_closure_over_a_module_is_of_the_original(lib: Any) -> None:
    """Python does not copy the objects that a function refers to."""
    model = lib.nn.Sequential(layer(lib))
    seen: list[Any] = []
    model[0].register_forward_hook(lambda *_: seen.append(model))
    use(lib, copy.deepcopy(model))
    assert seen == [model]


def test_a_module_that_is_a_hook_is_copied(lib: Any) -> None:
    class Add(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.bias = lib.nn.Parameter(constant(lib, 1))

        def forward(self, module: Any, args: Any, output: Any) -> Any:
            return output + self.bias

    module, added = layer(lib), Add()
    handle = module.register_forward_hook(added)
    other = copy.deepcopy(module)
    assert other._forward_hooks[handle.id] is not added
    with lib.no_grad():
        added.bias.fill_(5)
    assert use(lib, module) == 6
    assert use(lib, other) == 2


# Copies of handles.


@DEEP
@KIND
def test_a_handle_that_is_copied_with_its_module(
    lib: Any, register: str, hooks: str, duplicate: Any
) -> None:
    module = layer(lib)
    handle = getattr(module, register)(hook)
    other, copied = duplicate((module, handle))
    assert copied.id == handle.id
    copied.remove()
    assert len(getattr(other, hooks)) == 0
    assert len(getattr(module, hooks)) == 1
    handle.remove()
    assert len(getattr(module, hooks)) == 0


@DEEP
def test_a_copied_handle_removes_the_options(lib: Any, duplicate: Any) -> None:
    module = lib.nn.Identity()
    handle = module.register_forward_hook(hook, with_kwargs=True, always_call=True)
    handle, other = duplicate([handle, module])
    handle.remove()
    assert not other._forward_hooks
    assert not other._forward_hooks_with_kwargs
    assert not other._forward_hooks_always_called
    with raises(TypeError):
        other()
    assert called == []


@DEEP
@KIND
def test_a_handle_that_is_copied_alone(lib: Any, register: str, hooks: str, duplicate: Any) -> None:
    """It removes nothing."""
    module = layer(lib)
    handle = getattr(module, register)(hook)
    copied = duplicate(handle)
    gc.collect()
    assert copied.id == handle.id
    copied.remove()
    with copied as entered:
        assert entered is copied
    assert len(getattr(module, hooks)) == 1


@KIND
def test_a_handle_that_is_copied_shallowly(lib: Any, register: str, hooks: str) -> None:
    module = layer(lib)
    handle = copy.copy(getattr(module, register)(hook))
    handle.remove()
    assert len(getattr(module, hooks)) == 0


@DEEP
def test_a_copied_handle_as_a_context(lib: Any, duplicate: Any) -> None:
    module = layer(lib)
    other, handle = duplicate((module, module.register_forward_hook(add_one)))
    with handle:
        assert use(lib, other) == 2
    assert use(lib, other) == 1
    assert use(lib, module) == 2


@DEEP
def test_a_copied_handle_does_not_keep_the_module(lib: Any, duplicate: Any) -> None:
    module = layer(lib)
    other, handle = duplicate((module, module.register_forward_hook(hook)))
    gone = weakref.ref(other)
    del other
    gc.collect()
    assert gone() is None
    handle.remove()


@DEEP
@pytest.mark.parametrize(
    "register", ["register_full_backward_hook", "register_state_dict_pre_hook"]
)
def test_a_handle_whose_module_was_freed(lib: Any, register: str, duplicate: Any) -> None:
    handle = getattr(layer(lib), register)(hook)
    gc.collect()
    copied = duplicate(handle)
    assert copied.id == handle.id
    copied.remove()


@DEEP
def test_new_ids_do_not_collide_with_those_of_copies(lib: Any, duplicate: Any) -> None:
    module = layer(lib)
    ids = [module.register_forward_hook(hook).id for _ in range(3)]
    other = duplicate(module)
    ids += [other.register_forward_hook(hook).id for _ in range(3)]
    ids += [module.register_forward_hook(hook).id for _ in range(3)]
    assert len(set(ids)) == 9
    assert len(other._forward_hooks) == len(module._forward_hooks) == 6


def test_an_id_is_beyond_those_of_handles_that_were_loaded(lib: Any) -> None:
    module = layer(lib)
    handle = module.register_forward_hook(hook)
    handle.id += 1000
    loaded = pickled(handle)
    assert module.register_forward_hook(hook).id > loaded.id


# Pickle.


def test_hooks_that_cannot_be_pickled(lib: Any) -> None:
    module = layer(lib)
    handle = module.register_forward_hook(lambda *_: None)
    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickle.dumps(module)
    handle.remove()
    pickle.dumps(module)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_protocols(lib: Any, protocol: int) -> None:
    module = layer(lib)
    module.register_forward_hook(add_one)
    module.register_load_state_dict_pre_hook(hook)
    other = pickle.loads(pickle.dumps(module, protocol))
    assert use(lib, other) == 2
    assert called[0][0] is other


def test_a_pickled_hook_is_found_by_its_name(lib: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = layer(lib)
    module.register_forward_hook(add_one)
    data = pickle.dumps(module)
    monkeypatch.setitem(globals(), "add_one", lambda module, args, output: output + 100)
    assert use(lib, pickle.loads(data)) == 101


# The state of a module, as subclasses change it.


def test_a_subclass_that_copies_without_hooks(lib: Any) -> None:
    class Net(lib.nn.Module):  # type: ignore[misc]
        def __getstate__(self) -> Any:
            state = super().__getstate__()
            return {**state, "_forward_hooks": OrderedDict()}

        def forward(self, x: Any) -> Any:
            return x

    module = Net()
    module.register_forward_hook(add_one)
    module.register_forward_pre_hook(ten_times)
    assert module(1) == 11
    assert copy.deepcopy(module)(1) == 10
    assert copy.copy(module)(1) == 10
    assert module(1) == 11


def test_a_subclass_that_registers_after_copying(lib: Any) -> None:
    class Net(lib.nn.Module):  # type: ignore[misc]
        def __setstate__(self, state: Any) -> None:
            super().__setstate__(state)
            self._forward_hooks: Any = OrderedDict()
            self.register_forward_hook(add_one)

        def forward(self, x: Any) -> Any:
            return x

    module = Net()
    module.register_forward_hook(lambda *_: 5)
    other = copy.deepcopy(module)
    assert other(1) == 2
    assert module(1) == 5


def test_a_subclass_that_copies_itself(lib: Any) -> None:
    class Net(lib.nn.Module):  # type: ignore[misc]
        def __deepcopy__(self, memo: Any) -> Any:
            other = type(self)()
            memo[id(self)] = other
            return other

        def forward(self, x: Any) -> Any:
            return x

    model = lib.nn.Sequential(Net())
    model[0].register_forward_hook(add_one)
    model.register_forward_hook(add_one)
    assert model(1) == 3
    assert copy.deepcopy(model)(1) == 2


def test_the_state_of_a_module_holds_its_hooks(lib: Any) -> None:
    module = layer(lib)
    module.register_forward_hook(hook)
    state = module.__getstate__()
    assert state["_forward_hooks"] is module._forward_hooks
    assert all(state[name] is getattr(module, name) for _, name in KINDS)


# Backward, saving and loading of copies.


def test_a_graph_keeps_the_module_it_was_made_by(lib: Any) -> None:
    module = layer(lib)
    module.register_full_backward_hook(hook)
    y = module(leaf(lib, [[1.0]]))
    other = copy.deepcopy(module)
    y.sum().backward()
    assert [got[0] for got in called] == [module]
    assert other.weight.grad is None


def test_backward_hooks_of_the_original_and_the_copy(lib: Any) -> None:
    module = layer(lib)
    module.register_full_backward_hook(hook)
    module.register_full_backward_pre_hook(hook)
    other = copy.deepcopy(module)
    x = leaf(lib, [[1.0]])
    other(module(x)).sum().backward()
    assert [(got[0] is other, len(got)) for got in called] == [
        (True, 2),
        (True, 3),
        (False, 2),
        (False, 3),
    ]


@DEEP
def test_state_hooks_of_a_copy_change_its_state(lib: Any, duplicate: Any) -> None:
    module = layer(lib)
    module.register_state_dict_post_hook(rename)
    module.register_load_state_dict_pre_hook(rename_back)
    other = duplicate(module)
    found = other.state_dict()
    assert list(found) == ["renamed"]
    other.load_state_dict({"renamed": constant(lib, [[5]])})
    assert other.weight.tolist() == [[5]]
    assert module.weight.tolist() == [[1]]


def rename(module: Any, state_dict: Any, prefix: str, metadata: Any) -> None:
    """Save the weight under another name."""
    state_dict[prefix + "renamed"] = state_dict.pop(prefix + "weight")


def rename_back(module: Any, state_dict: Any, prefix: str, *rest: Any) -> None:
    """Load the weight from another name."""
    assert module.weight is not None
    state_dict[prefix + "weight"] = state_dict.pop(prefix + "renamed")


@DEEP
def test_a_public_state_hook_is_public_in_a_copy(lib: Any, duplicate: Any) -> None:
    module = layer(lib)
    module.register_state_dict_post_hook(return_state)
    other = duplicate(module)
    with raises(RuntimeError):
        other.state_dict()


def return_state(module: Any, state_dict: Any, prefix: str, metadata: Any) -> Any:
    """Return a value that hooks may not return."""
    return state_dict


@DEEP
def test_a_private_state_hook_of_a_copy(lib: Any, duplicate: Any) -> None:
    module = layer(lib)
    module._register_state_dict_hook(return_other)
    module._register_load_state_dict_pre_hook(hook)
    module._register_load_state_dict_pre_hook(hook, with_module=True)
    other = duplicate(module)
    assert other.state_dict() == {"mine": 1}
    other.load_state_dict({"weight": constant(lib, [[1]])})
    assert [len(got) for got in called] == [7, 8]
    assert called[1][0] is other


def return_other(module: Any, state_dict: Any, prefix: str, metadata: Any) -> Any:
    """Return another state."""
    return {"mine": 1}


def test_a_load_pre_hook_that_is_a_method_of_its_module(lib: Any) -> None:
    class Net(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[Any] = []
            self.register_load_state_dict_pre_hook(self.before)
            self._register_load_state_dict_pre_hook(self.privately)
            self.register_load_state_dict_post_hook(self.after)
            self.register_state_dict_pre_hook(self.saving)

        def before(self, module: Any, *rest: Any) -> None:
            self.calls.append(("before", module is self, len(rest)))

        def privately(self, *rest: Any) -> None:
            self.calls.append(("privately", len(rest)))

        def after(self, module: Any, keys: Any) -> None:
            self.calls.append(("after", module is self))

        def saving(self, module: Any, prefix: str, keep_vars: bool) -> None:
            self.calls.append(("saving", module is self))

    module = Net()
    other = copy.deepcopy(module)
    other.load_state_dict(other.state_dict())
    assert other.calls == [
        ("saving", True),
        ("before", True, 7),
        ("privately", 7),
        ("after", True),
    ]
    assert module.calls == []


@DEEP
def test_a_copy_of_a_module_with_buffers_and_hooks(lib: Any, duplicate: Any) -> None:
    module = parts(lib)
    module.register_state_dict_pre_hook(hook)
    other = duplicate(module)
    assert list(other.state_dict()) == ["weight", "running"]
    assert called[0][0] is other


@DEEP
def test_a_hook_that_raises_in_a_copy(lib: Any, duplicate: Any) -> None:
    module = layer(lib)
    module.register_forward_pre_hook(boom)
    module.register_forward_hook(hook, always_call=True)
    other = duplicate(module)
    with pytest.raises(BoomError):
        other(1)
    assert called == [(other, (1,), None)]


def test_a_subclass_that_takes_its_state_as_it_is(lib: Any) -> None:
    class Net(lib.nn.Module):  # type: ignore[misc]
        def __setstate__(self, state: Any) -> None:
            self.__dict__.update(state)

        def forward(self, x: Any) -> Any:
            return x

    module = Net()
    module.register_forward_hook(add_one)
    for other in (copy.copy(module), copy.deepcopy(module)):
        assert other(1) == 2
    module.register_forward_hook(add_one)
    assert module(1) == 3
