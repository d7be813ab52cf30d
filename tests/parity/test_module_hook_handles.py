"""Handles of hooks, the dictionaries that hold them, hooks that come and go during a call."""

import gc
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest

from tests.parity.conftest import constant, leaf, raises
from tests.parity.hooked import BoomError, Counter, note, scale

# Handles.

KINDS = [
    ("register_forward_pre_hook", "_forward_pre_hooks"),
    ("register_forward_hook", "_forward_hooks"),
    ("register_full_backward_pre_hook", "_backward_pre_hooks"),
    ("register_full_backward_hook", "_backward_hooks"),
    ("register_backward_hook", "_backward_hooks"),
    ("register_state_dict_pre_hook", "_state_dict_pre_hooks"),
    ("register_state_dict_post_hook", "_state_dict_hooks"),
    ("_register_state_dict_hook", "_state_dict_hooks"),
    ("register_load_state_dict_pre_hook", "_load_state_dict_pre_hooks"),
    ("_register_load_state_dict_pre_hook", "_load_state_dict_pre_hooks"),
    ("register_load_state_dict_post_hook", "_load_state_dict_post_hooks"),
]
REGISTER = pytest.mark.parametrize(("register", "hooks"), KINDS)
FORWARD = pytest.mark.parametrize(
    "register", ["register_forward_pre_hook", "register_forward_hook"]
)


@FORWARD
def test_a_removed_hook_does_not_fire(lib: Any, register: str) -> None:
    module = scale(lib)
    seen: list[Any] = []
    handles = [getattr(module, register)(note(seen, number)) for number in range(3)]
    handles[1].remove()
    module(1)
    assert seen == [0, 2]
    handles[0].remove()
    handles[2].remove()
    module(1)
    assert seen == [0, 2]


@REGISTER
def test_a_hook_is_removed_once(lib: Any, register: str, hooks: str) -> None:
    module = scale(lib)
    handle = getattr(module, register)(lambda *_: None)
    kept = getattr(module, register)(lambda *_: None)
    handle.remove()
    handle.remove()
    assert list(getattr(module, hooks)) == [kept.id]


@FORWARD
def test_a_handle_is_a_context(lib: Any, register: str) -> None:
    module = scale(lib)
    seen: list[Any] = []
    with getattr(module, register)(note(seen, 1)):
        module(1)
        module(1)
    module(1)
    assert seen == [1, 1]


@REGISTER
def test_the_context_of_a_handle_is_the_handle(lib: Any, register: str, hooks: str) -> None:
    module = scale(lib)
    handle = getattr(module, register)(lambda *_: None)
    with handle as entered:
        assert entered is handle
        assert len(getattr(module, hooks)) == 1
    assert len(getattr(module, hooks)) == 0


@REGISTER
def test_a_context_removes_the_hook_and_lets_exceptions_pass(
    lib: Any, register: str, hooks: str
) -> None:
    module = scale(lib)
    error = BoomError()
    with pytest.raises(BoomError) as info, getattr(module, register)(lambda *_: None):
        raise error
    assert info.value is error
    assert len(getattr(module, hooks)) == 0


@FORWARD
def test_a_hook_may_be_removed_within_its_context(lib: Any, register: str) -> None:
    module = scale(lib)
    seen: list[Any] = []
    with getattr(module, register)(note(seen, 1)) as handle:
        handle.remove()
        module(1)
    assert seen == []


@FORWARD
def test_contexts_nest(lib: Any, register: str) -> None:
    module = scale(lib)
    seen: list[Any] = []
    add = getattr(module, register)
    with add(note(seen, 1)), add(note(seen, 2), prepend=True):
        module(1)
        with add(note(seen, 3)):
            module(1)
        module(1)
    module(1)
    assert seen == [2, 1, 2, 1, 3, 2, 1]


@REGISTER
def test_ids_tell_handles_apart(lib: Any, register: str, hooks: str) -> None:
    first, second = scale(lib), scale(lib)
    handles = [getattr(each, register)(lambda *_: None) for each in (first, second, first)]
    ids = [handle.id for handle in handles]
    assert all(isinstance(each, int) for each in ids)
    assert ids == sorted(set(ids))
    assert list(getattr(first, hooks)) == [ids[0], ids[2]]
    assert list(getattr(second, hooks)) == [ids[1]]


@REGISTER
def test_a_handle_does_not_keep_the_module(lib: Any, register: str, hooks: str) -> None:
    module = scale(lib)
    handle = getattr(module, register)(lambda *_: None)
    gone = weakref.ref(module)
    del module
    gc.collect()
    assert gone() is None
    handle.remove()
    handle.remove()


@FORWARD
def test_a_handle_does_not_keep_the_hook(lib: Any, register: str) -> None:
    module, counter = scale(lib), Counter()
    handle = getattr(module, register)(counter)
    gone = weakref.ref(counter)
    del counter
    gc.collect()
    assert gone() is not None
    handle.remove()
    gc.collect()
    assert gone() is None


def test_handles_are_removable_handles(lib: Any) -> None:
    module = scale(lib)
    handle = module.register_forward_hook(lambda *_: None)
    assert type(handle).__name__ == "RemovableHandle"
    assert isinstance(handle, lib.utils.hooks.RemovableHandle)


def test_removing_a_hook_leaves_the_others_options(lib: Any) -> None:
    module = scale(lib)
    seen: list[Any] = []
    first = module.register_forward_hook(lambda *got: seen.append(len(got)), with_kwargs=True)
    module.register_forward_hook(lambda *got: seen.append(len(got)))
    second = module.register_forward_hook(
        lambda *got: seen.append(len(got)), with_kwargs=True, always_call=True
    )
    first.remove()
    module(1)
    assert seen == [3, 4]
    with raises(TypeError):
        module()
    assert seen == [3, 4, 4]
    second.remove()
    with raises(TypeError):
        module()
    assert seen == [3, 4, 4]


# The dictionaries of a module: id to hook.


@REGISTER
def test_a_new_module_has_no_hooks(lib: Any, register: str, hooks: str) -> None:
    module, other = scale(lib), scale(lib)
    assert isinstance(getattr(module, hooks), dict)
    assert len(getattr(module, hooks)) == 0
    assert not getattr(module, hooks)
    getattr(module, register)(lambda *_: None)
    assert len(getattr(module, hooks)) == 1
    assert len(getattr(other, hooks)) == 0


@REGISTER
def test_the_dictionary_holds_the_hooks_by_id(lib: Any, register: str, hooks: str) -> None:
    module = scale(lib)
    handles = [getattr(module, register)(lambda *_: None) for _ in range(3)]
    assert list(getattr(module, hooks).keys()) == [handle.id for handle in handles]
    assert all(callable(each) for each in getattr(module, hooks).values())
    handles[1].remove()
    assert list(getattr(module, hooks).keys()) == [handles[0].id, handles[2].id]
    assert handles[1].id not in getattr(module, hooks)


@pytest.mark.parametrize(
    ("register", "hooks"), [each for each in KINDS if each[1] != "_load_state_dict_pre_hooks"]
)
def test_the_hook_itself_is_in_the_dictionary(lib: Any, register: str, hooks: str) -> None:
    module = scale(lib)

    def hook(*args: Any) -> None:
        pass

    handle = getattr(module, register)(hook)
    assert getattr(module, hooks)[handle.id] is hook
    assert list(getattr(module, hooks).values()) == [hook]


@pytest.mark.parametrize(
    ("register", "hooks"),
    [
        ("register_forward_pre_hook", "_forward_pre_hooks"),
        ("register_forward_hook", "_forward_hooks"),
        ("register_full_backward_pre_hook", "_backward_pre_hooks"),
        ("register_full_backward_hook", "_backward_hooks"),
    ],
)
def test_the_dictionary_is_in_the_order_of_firing(lib: Any, register: str, hooks: str) -> None:
    module = scale(lib)
    first = getattr(module, register)(lambda *_: None)
    second = getattr(module, register)(lambda *_: None, prepend=True)
    third = getattr(module, register)(lambda *_: None)
    assert list(getattr(module, hooks)) == [second.id, first.id, third.id]


@REGISTER
def test_clearing_the_dictionary(lib: Any, register: str, hooks: str) -> None:
    module = scale(lib)
    handles = [getattr(module, register)(lambda *_: None) for _ in range(2)]
    getattr(module, hooks).clear()
    assert len(getattr(module, hooks)) == 0
    for handle in handles:
        handle.remove()
    again = getattr(module, register)(lambda *_: None)
    assert list(getattr(module, hooks)) == [again.id]


@FORWARD
def test_cleared_hooks_do_not_fire(lib: Any, register: str) -> None:
    module = scale(lib)
    seen: list[Any] = []
    getattr(module, register)(note(seen, 1))
    getattr(module, register)(note(seen, 2), with_kwargs=True)
    module._forward_hooks.clear()
    module._forward_pre_hooks.clear()
    assert module(1) == 2
    assert seen == []
    getattr(module, register)(note(seen, 3))
    module(1)
    assert seen == [3]


def test_clearing_the_hooks_of_a_model(lib: Any) -> None:
    model = lib.nn.Sequential(lib.nn.Identity(), lib.nn.Identity())
    seen: list[Any] = []
    for module in model.modules():
        module.register_forward_hook(note(seen, 1))
        module.register_forward_pre_hook(note(seen, 2))
    for module in model.modules():
        module._forward_hooks.clear()
    model(constant(lib, 1))
    assert seen == [2, 2, 2]


def test_cleared_backward_hooks_do_not_fire(lib: Any) -> None:
    module = scale(lib)
    seen: list[Any] = []
    module.register_full_backward_hook(note(seen, 1))
    module.register_full_backward_pre_hook(note(seen, 2))
    x = leaf(lib, 1.0)
    before = module(x)
    module._backward_hooks.clear()
    module._backward_pre_hooks.clear()
    module(x).backward()
    assert seen == []
    before.backward()
    assert seen == [2, 1]
    module.register_full_backward_hook(note(seen, 3))
    module(x).backward()
    assert seen == [2, 1, 3]


def test_backward_hooks_put_into_the_dictionary_by_hand(lib: Any) -> None:
    """They are of the kind that was registered before."""
    module = scale(lib)
    seen: list[Any] = []
    handle = module.register_full_backward_hook(note(seen, 1))
    module._backward_hooks["mine"] = lambda module, grad_input, grad_output: (grad_input[0] * 10,)
    module._backward_pre_hooks["mine"] = note(seen, 2)
    x = leaf(lib, 1.0)
    module(x).backward()
    assert x.grad.item() == 20
    assert seen == [2, 1]
    handle.remove()
    module(x).backward()
    assert x.grad.item() == 40
    assert seen == [2, 1, 2]


@FORWARD
def test_a_new_dictionary_in_place_of_the_old(lib: Any, register: str) -> None:
    module = scale(lib)
    seen: list[Any] = []
    old = getattr(module, register)(note(seen, 1))
    name = "_forward_hooks" if register == "register_forward_hook" else "_forward_pre_hooks"
    setattr(module, name, OrderedDict())
    module(1)
    assert seen == []
    getattr(module, register)(note(seen, 2))
    old.remove()
    module(1)
    assert seen == [2]


def test_a_hook_put_into_the_dictionary_by_hand(lib: Any) -> None:
    module = scale(lib)
    module._forward_hooks["mine"] = lambda module, args, output: output + 1
    module._forward_pre_hooks["mine"] = lambda module, args: args[0] + 10
    assert module(1) == 23
    del module._forward_hooks["mine"]
    assert module(1) == 22


def test_a_hook_replaced_in_the_dictionary(lib: Any) -> None:
    """It keeps the place and the options of the hook before."""
    module = scale(lib)
    seen: list[Any] = []
    handle = module.register_forward_hook(note(seen, 1), with_kwargs=True)
    module.register_forward_hook(note(seen, 2))
    module._forward_hooks[handle.id] = lambda *got: seen.append(len(got))
    module(1)
    assert seen == [4, 2]
    handle.remove()
    module(1)
    assert seen == [4, 2, 2]


def test_the_dictionary_is_ordered_by_hand(lib: Any) -> None:
    module = scale(lib)
    seen: list[Any] = []
    handles = [module.register_forward_hook(note(seen, number)) for number in range(3)]
    module._forward_hooks.move_to_end(handles[0].id)
    module(1)
    assert seen == [1, 2, 0]
    module._forward_hooks.popitem(last=False)
    seen.clear()
    module(1)
    assert seen == [2, 0]
    module._forward_hooks.popitem()
    seen.clear()
    module(1)
    assert seen == [2]


def test_the_hook_taken_out_of_the_dictionary_can_be_called(lib: Any) -> None:
    module = scale(lib)
    handle = module.register_forward_hook(lambda module, args, output: output + 1)
    hook = module._forward_hooks.pop(handle.id)
    assert module(1) == 2
    assert hook(module, (1,), 2) == 3
    handle.remove()


def test_the_dictionaries_of_options_hold_ids(lib: Any) -> None:
    module = scale(lib)
    plain = module.register_forward_hook(lambda *_: None)
    both = module.register_forward_hook(lambda *_: None, with_kwargs=True, always_call=True)
    pre = module.register_forward_pre_hook(lambda *_: None, with_kwargs=True)
    assert list(module._forward_hooks) == [plain.id, both.id]
    assert list(module._forward_hooks_with_kwargs) == [both.id]
    assert list(module._forward_hooks_always_called) == [both.id]
    assert list(module._forward_pre_hooks_with_kwargs) == [pre.id]
    both.remove()
    pre.remove()
    assert not module._forward_hooks_with_kwargs
    assert not module._forward_hooks_always_called
    assert not module._forward_pre_hooks_with_kwargs
    assert list(module._forward_hooks) == [plain.id]


def test_whether_backward_hooks_are_full(lib: Any) -> None:
    module, old = scale(lib), scale(lib)
    assert module._is_full_backward_hook is None
    handle = module.register_full_backward_hook(lambda *_: None)
    old.register_backward_hook(lambda *_: None)
    assert module._is_full_backward_hook is True
    assert old._is_full_backward_hook is False
    handle.remove()
    assert module._is_full_backward_hook is True


def test_hooks_are_no_parameters_modules_or_state(lib: Any) -> None:
    module, hook = scale(lib), lib.nn.Linear(1, 1)
    before = repr(module)
    module.register_forward_pre_hook(hook)
    module.register_forward_hook(hook)
    assert list(module.parameters()) == []
    assert list(module.children()) == []
    assert list(module.state_dict()) == []
    assert repr(module) == before


# Hooks added or removed while a call is running.


@FORWARD
def test_a_hook_that_adds_a_hook(lib: Any, register: str) -> None:
    """The new one fires from the next call on."""
    module = scale(lib)
    seen: list[Any] = []
    add = getattr(module, register)

    def hook(*args: Any) -> None:
        seen.append("adds")
        add(note(seen, "added"))

    add(hook)
    add(note(seen, "last"))
    module(1)
    assert seen == ["adds", "last"]
    module(1)
    assert seen == ["adds", "last", "adds", "last", "added"]


@FORWARD
def test_a_hook_that_prepends_a_hook(lib: Any, register: str) -> None:
    module = scale(lib)
    seen: list[Any] = []
    add = getattr(module, register)
    add(note(seen, 1))
    once: list[Any] = []

    def hook(*args: Any) -> None:
        seen.append(2)
        once.pop().remove()
        add(note(seen, 3), prepend=True)

    once.append(add(hook))
    add(note(seen, 4))
    module(1)
    assert seen == [1, 2, 4]
    module(1)
    assert seen == [1, 2, 4, 3, 1, 4]


@FORWARD
def test_a_hook_that_removes_itself(lib: Any, register: str) -> None:
    module = scale(lib)
    seen: list[Any] = []
    add = getattr(module, register)
    handles: list[Any] = []

    def once(*args: Any) -> None:
        seen.append("once")
        handles[0].remove()

    handles.append(add(once))
    add(note(seen, "last"))
    module(1)
    module(1)
    assert seen == ["once", "last", "last"]


@FORWARD
def test_a_hook_that_removes_a_later_hook(lib: Any, register: str) -> None:
    """The hooks of a phase are those at its begin: the removed one fires once more."""
    module = scale(lib)
    seen: list[Any] = []
    add = getattr(module, register)
    handles: list[Any] = []
    add(lambda *_: handles[0].remove())
    handles.append(add(note(seen, "removed")))
    add(note(seen, "last"))
    module(1)
    module(1)
    assert seen == ["removed", "last", "last"]


@FORWARD
def test_a_hook_that_clears_all_hooks(lib: Any, register: str) -> None:
    module = scale(lib)
    seen: list[Any] = []
    add = getattr(module, register)

    def clear(*args: Any) -> None:
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()

    add(clear)
    add(note(seen, "last"))
    module(1)
    assert seen == ["last"]
    module(1)
    assert seen == ["last"]


def test_a_pre_hook_that_adds_a_forward_hook(lib: Any) -> None:
    """Forward hooks are those that there are after forward."""
    module = scale(lib)
    seen: list[Any] = []
    module.register_forward_pre_hook(
        lambda *_: module.register_forward_hook(note(seen, "post")) and None
    )
    module(1)
    assert seen == ["post"]
    module(1)
    assert seen == ["post", "post", "post"]


def test_a_pre_hook_that_removes_a_forward_hook(lib: Any) -> None:
    module = scale(lib)
    seen: list[Any] = []
    handle = module.register_forward_hook(note(seen, "post"))
    module.register_forward_pre_hook(lambda *_: handle.remove())
    module(1)
    assert seen == []


def test_a_pre_hook_pairs_with_a_hook_for_its_call(lib: Any) -> None:
    """As profilers do: a hook for this call alone."""
    module = scale(lib)
    seen: list[Any] = []

    def before(module: Any, args: Any) -> None:
        def after(module: Any, args: Any, output: Any) -> None:
            handle.remove()
            seen.append((args[0], output))

        handle = module.register_forward_hook(after)

    module.register_forward_pre_hook(before)
    module(1)
    module(2)
    assert seen == [(1, 2), (2, 4)]
    assert len(module._forward_hooks) == 0


def acting(lib: Any, act: Callable[[Any], None]) -> Any:
    """Return a module whose forward does something to itself."""

    class Acting(lib.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            act(self)
            return x

    return Acting()


def test_forward_adds_the_first_hook(lib: Any) -> None:
    """A module that has no hooks when it is called looks for none afterwards."""
    seen: list[Any] = []
    module = acting(lib, lambda self: self.register_forward_hook(note(seen, 1)))
    module(1)
    assert seen == []
    module(1)
    assert seen == [1, 1]


@FORWARD
def test_forward_adds_a_hook_to_others(lib: Any, register: str) -> None:
    seen: list[Any] = []
    module = acting(lib, lambda self: self.register_forward_hook(note(seen, "added")))
    getattr(module, register)(note(seen, "first"))
    module(1)
    assert seen == ["first", "added"]


def test_forward_adds_a_pre_hook(lib: Any) -> None:
    seen: list[Any] = []
    module = acting(lib, lambda self: self.register_forward_pre_hook(note(seen, 1)))
    module.register_forward_hook(lambda *_: None)
    module(1)
    assert seen == []
    module(1)
    assert seen == [1]


def test_forward_removes_a_hook(lib: Any) -> None:
    seen: list[Any] = []
    handles: list[Any] = []
    module = acting(lib, lambda self: handles[0].remove())
    handles.append(module.register_forward_hook(note(seen, 1)))
    module.register_forward_hook(note(seen, 2))
    module(1)
    assert seen == [2]


def test_forward_clears_its_hooks(lib: Any) -> None:
    seen: list[Any] = []
    module = acting(lib, lambda self: self._forward_hooks.clear())
    module.register_forward_hook(note(seen, 1))
    assert module(5) == 5
    assert seen == []


def test_a_child_adds_a_hook_to_its_parent(lib: Any) -> None:
    seen: list[Any] = []
    child = acting(lib, lambda self: model.register_forward_hook(note(seen, "parent")))
    model = lib.nn.Sequential(child)
    model.register_forward_pre_hook(note(seen, "pre"))
    model(1)
    assert seen == ["pre", "parent"]


def test_a_parent_adds_hooks_to_its_children(lib: Any) -> None:
    seen: list[Any] = []
    model = lib.nn.Sequential(lib.nn.Identity())

    def before(module: Any, args: Any) -> None:
        module[0].register_forward_pre_hook(note(seen, "child"))

    model.register_forward_pre_hook(before)
    model(1)
    assert seen == ["child"]


@pytest.mark.parametrize("kind", ["register_full_backward_hook", "register_full_backward_pre_hook"])
@pytest.mark.parametrize("when", ["pre hook", "forward", "forward hook"])
def test_backward_hooks_added_during_a_call(lib: Any, when: str, kind: str) -> None:
    """The backward hooks of a call are those that there are before its hooks run."""
    seen: list[Any] = []

    def act(place: str) -> None:
        if place == when and not module._backward_hooks and not module._backward_pre_hooks:
            getattr(module, kind)(note(seen, "backward"))

    module = acting(lib, lambda self: act("forward"))
    module.register_forward_pre_hook(lambda *_: act("pre hook"))
    module.register_forward_hook(lambda *_: act("forward hook"))
    x = leaf(lib, 1.0)
    module(x * 2).backward()
    assert seen == []
    module(x * 2).backward()
    assert seen == ["backward"]


@pytest.mark.parametrize("kind", ["register_full_backward_hook", "register_full_backward_pre_hook"])
@pytest.mark.parametrize("when", ["pre hook", "forward", "forward hook", "after"])
def test_backward_hooks_removed_during_a_call(lib: Any, when: str, kind: str) -> None:
    """The graph of a call keeps the backward hooks that there were before it."""
    seen: list[Any] = []

    def act(place: str) -> None:
        if place == when:
            handle.remove()

    module = acting(lib, lambda self: act("forward"))
    module.register_forward_pre_hook(lambda *_: act("pre hook"))
    module.register_forward_hook(lambda *_: act("forward hook"))
    handle = getattr(module, kind)(note(seen, "backward"))
    x = leaf(lib, 1.0)
    y = module(x * 2)
    act("after")
    y.backward()
    assert seen == ["backward"]
    module(x * 2).backward()
    assert seen == ["backward"]
