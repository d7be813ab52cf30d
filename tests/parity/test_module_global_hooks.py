"""Hooks of the calls and of the backward of all modules."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import offgrad
from offgrad.nn.hooks import registry as hooks
from tests.parity.conftest import constant, leaf, lists, raises
from tests.parity.hooked import BoomError, Every, boom, note, scale


@pytest.fixture
def every(lib: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Where hooks of all modules are registered, as if none had been before."""
    if lib is offgrad:
        monkeypatch.setattr(hooks.global_hooks, "is_full_backward", None)
    else:
        monkeypatch.setattr(lib.nn.modules.module, "_global_is_full_backward_hook", None)
    found = Every(lib)
    yield found
    found.close()


def named(model: Any) -> dict[Any, str]:
    """Return the names of a model's modules."""
    return {module: name or "model" for name, module in model.named_modules()}


def chain(lib: Any) -> Any:
    """Return a model of three modules, two of them in one: x * 8."""
    return lib.nn.Sequential(scale(lib), lib.nn.Sequential(scale(lib), scale(lib)))


def test_where_global_hooks_are_registered(lib: Any) -> None:
    assert lib.nn.modules.module.Module is lib.nn.Module


# Before forward.


def test_a_global_pre_hook_is_called_for_every_module(lib: Any, every: Any) -> None:
    model = chain(lib)
    names, seen = named(model), []
    with every.register_module_forward_pre_hook(
        lambda module, args: seen.append((names[module], args))
    ):
        assert model(1) == 8
    assert seen == [
        ("model", (1,)),
        ("0", (1,)),
        ("1", (2,)),
        ("1.0", (2,)),
        ("1.1", (4,)),
    ]
    model(1)
    assert len(seen) == 5


def test_a_global_pre_hook_gets_no_keyword_arguments(lib: Any, every: Any) -> None:
    seen: list[Any] = []
    with every.register_module_forward_pre_hook(lambda *got: seen.append(got[1:])):
        assert scale(lib)(1, by=5) == 5
    assert seen == [((1,),)]


@pytest.mark.parametrize("option", ["with_kwargs", "prepend", "always_call"])
def test_global_pre_hooks_have_no_options(every: Any, option: str) -> None:
    with raises(TypeError):
        every.register_module_forward_pre_hook(lambda *_: None, **{option: True})


@pytest.mark.parametrize(
    ("given", "result"), [(None, 2), (5, 10), ((5,), 10), ((5, 7), 35), (0, 0)], ids=repr
)
def test_the_result_of_a_global_pre_hook(lib: Any, every: Any, given: Any, result: Any) -> None:
    with every.register_module_forward_pre_hook(lambda *_: given):
        assert scale(lib)(1) == result


def test_a_global_pre_hook_changes_the_arguments_of_every_module(lib: Any, every: Any) -> None:
    with every.register_module_forward_pre_hook(lambda _, args: args[0] + 1):
        assert chain(lib)(0) == ((1 + 1) * 2 + 1 + 1) * 2 * 2 + 2


def test_global_pre_hooks_come_before_local_ones(lib: Any, every: Any) -> None:
    module = scale(lib)
    seen: list[Any] = []
    module.register_forward_pre_hook(note(seen, "local"))
    with (
        every.register_module_forward_pre_hook(note(seen, "global 1")),
        every.register_module_forward_pre_hook(note(seen, "global 2")),
    ):
        module.register_forward_pre_hook(note(seen, "prepended"), prepend=True)
        module(1)
    assert seen == ["global 1", "global 2", "prepended", "local"]


def test_local_pre_hooks_get_the_results_of_global_ones(lib: Any, every: Any) -> None:
    module = scale(lib)
    seen: list[Any] = []
    module.register_forward_pre_hook(lambda _, *got: seen.append(got), with_kwargs=True)
    with every.register_module_forward_pre_hook(lambda _, args: args[0] + 10):
        assert module(1, by=3) == 33
    assert seen == [((11,), {"by": 3})]


def test_a_global_pre_hook_that_raises(lib: Any, every: Any) -> None:
    module = scale(lib)
    seen: list[Any] = []
    module.register_forward_pre_hook(note(seen, "pre"))
    module.register_forward_hook(note(seen, "post"))
    module.register_forward_hook(
        lambda _, args, out: seen.append(("always", out)), always_call=True
    )
    with every.register_module_forward_pre_hook(boom), pytest.raises(BoomError):
        module(1)
    assert seen == [("always", None)]


# After forward.


def test_a_global_forward_hook_is_called_for_every_module(lib: Any, every: Any) -> None:
    model = chain(lib)
    names, seen = named(model), []
    with every.register_module_forward_hook(
        lambda module, args, out: seen.append((names[module], args, out))
    ):
        assert model(1) == 8
    assert seen == [
        ("0", (1,), 2),
        ("1.0", (2,), 4),
        ("1.1", (4,), 8),
        ("1", (2,), 8),
        ("model", (1,), 8),
    ]
    model(1)
    assert len(seen) == 5


def test_a_global_forward_hook_with_kwargs(lib: Any, every: Any) -> None:
    module = scale(lib)
    seen: list[Any] = []
    with (
        every.register_module_forward_hook(lambda *got: seen.append(got), with_kwargs=True),
        every.register_module_forward_hook(lambda *got: seen.append(got)),
    ):
        assert module(1, by=5) == 5
    assert seen == [(module, (1,), {"by": 5}, 5), (module, (1,), 5)]


@pytest.mark.parametrize("option", ["with_kwargs", "always_call"])
def test_global_forward_hooks_take_their_options_by_keyword(every: Any, option: str) -> None:
    with raises(TypeError):
        every.register_module_forward_hook(lambda *_: None, True)
    with raises(TypeError):
        every.register_module_forward_hook(lambda *_: None, prepend=True)
    every.register_module_forward_hook(hook=lambda *_: None, **{option: True}).remove()


@pytest.mark.parametrize("given", [0, False, (), (1, 2), [3], {"a": 1}], ids=repr)
def test_the_result_of_a_global_forward_hook(lib: Any, every: Any, given: Any) -> None:
    with every.register_module_forward_hook(lambda *_: given):
        assert scale(lib)(1) is given
    assert scale(lib)(1) == 2


def test_global_forward_hooks_come_before_local_ones(lib: Any, every: Any) -> None:
    module = scale(lib)
    seen: Any = []
    module.register_forward_hook(lambda _, args, out: seen.append(("local", out)))
    with (
        every.register_module_forward_hook(
            lambda _, args, out: seen.append(("global 1", out)) or out + 1
        ),
        every.register_module_forward_hook(
            lambda _, args, kw, out: seen.append(("global 2", out)) or out * 10, with_kwargs=True
        ),
    ):
        module.register_forward_hook(
            lambda _, args, out: seen.append(("prepended", out)) or out + 2, prepend=True
        )
        assert module(1) == 32
    assert seen == [("global 1", 2), ("global 2", 3), ("prepended", 30), ("local", 32)]


def test_global_hooks_around_nested_calls(lib: Any, every: Any) -> None:
    model = lib.nn.Sequential(scale(lib))
    names, seen = named(model), []
    with (
        every.register_module_forward_hook(lambda m, *_: seen.append(f"<{names[m]}")),
        every.register_module_forward_pre_hook(lambda m, *_: seen.append(f"{names[m]}>")),
    ):
        model(1)
    assert seen == ["model>", "0>", "<0", "<model"]


def test_global_hooks_of_modules_made_later(lib: Any, every: Any) -> None:
    seen: list[Any] = []
    with every.register_module_forward_hook(note(seen, 1)):
        scale(lib)(1)
        lib.nn.Linear(1, 1)(constant(lib, [1], dtype=lib.float32))
    assert seen == [1, 1]


def test_global_hooks_are_not_in_the_modules_dictionaries(lib: Any, every: Any) -> None:
    module = scale(lib)
    with (
        every.register_module_forward_hook(lambda *_: None, always_call=True, with_kwargs=True),
        every.register_module_forward_pre_hook(lambda *_: None),
        every.register_module_full_backward_hook(lambda *_: None),
        every.register_module_full_backward_pre_hook(lambda *_: None),
    ):
        module(leaf(lib, 1.0))
        for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks"):
            assert len(getattr(module, name)) == 0
        assert module._is_full_backward_hook is None


def test_the_same_global_hook_twice(lib: Any, every: Any) -> None:
    seen: list[Any] = []
    hook = note(seen, 1)
    with every.register_module_forward_hook(hook) as first:
        with every.register_module_forward_hook(hook) as second:
            assert first.id != second.id
            scale(lib)(1)
        scale(lib)(1)
    scale(lib)(1)
    assert seen == [1, 1, 1]


def test_local_and_global_handles_have_different_ids(lib: Any, every: Any) -> None:
    module = scale(lib)
    with (
        every.register_module_forward_hook(lambda *_: None) as first,
        module.register_forward_hook(lambda *_: None) as second,
        every.register_module_forward_pre_hook(lambda *_: None) as third,
        every.register_module_parameter_registration_hook(lambda *_: None) as fourth,
    ):
        ids = [each.id for each in (first, second, third, fourth)]
    assert len(set(ids)) == 4


REGISTER = [
    "register_module_forward_pre_hook",
    "register_module_forward_hook",
    "register_module_full_backward_pre_hook",
    "register_module_full_backward_hook",
    "register_module_backward_hook",
    "register_module_buffer_registration_hook",
    "register_module_module_registration_hook",
    "register_module_parameter_registration_hook",
]


@pytest.mark.parametrize("register", REGISTER)
def test_handles_of_global_hooks(lib: Any, every: Any, register: str) -> None:
    handle = getattr(every, register)(lambda *_: None)
    assert isinstance(handle, lib.utils.hooks.RemovableHandle)
    assert isinstance(handle.id, int)
    with handle as entered:
        assert entered is handle
    handle.remove()


@pytest.mark.parametrize("register", REGISTER)
def test_a_removed_global_hook_is_let_go(every: Any, register: str) -> None:
    def hook(*args: Any) -> None:
        pass

    gone = weakref.ref(hook)
    handle = getattr(every, register)(hook)
    del hook
    gc.collect()
    assert gone() is not None
    handle.remove()
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("register", REGISTER)
def test_a_global_hooks_context_lets_exceptions_pass(every: Any, register: str) -> None:
    error = BoomError()
    with pytest.raises(BoomError) as info, getattr(every, register)(lambda *_: None):
        raise error
    assert info.value is error


def test_global_hooks_are_of_all_threads(lib: Any, every: Any) -> None:
    seen: list[Any] = []
    module = scale(lib)
    with every.register_module_forward_hook(note(seen, 1)):
        thread = threading.Thread(target=module, args=(1,))
        thread.start()
        thread.join(60)
    assert seen == [1]


def test_global_hooks_of_a_model_that_contains_a_module_twice(lib: Any, every: Any) -> None:
    shared = scale(lib)
    seen: list[Any] = []
    with every.register_module_forward_hook(lambda m, *_: seen.append(m is shared)):
        lib.nn.Sequential(shared, shared)(1)
    assert seen == [True, True, False]


def test_forward_called_directly_has_no_global_hooks(lib: Any, every: Any) -> None:
    seen: list[Any] = []
    with (
        every.register_module_forward_hook(note(seen, 1)),
        every.register_module_forward_pre_hook(note(seen, 2)),
    ):
        assert scale(lib).forward(1) == 2
    assert seen == []


# Global hooks that come and go during a call.

CALLS = pytest.mark.parametrize(
    "register", ["register_module_forward_pre_hook", "register_module_forward_hook"]
)


@CALLS
def test_a_global_hook_that_adds_a_global_hook(lib: Any, every: Any, register: str) -> None:
    """The new one is called from the next call of a module on."""
    seen: list[Any] = []
    with ExitStack() as stack:
        add = getattr(every, register)

        def hook(*args: Any) -> None:
            if not seen:
                stack.enter_context(add(note(seen, "added")))
            seen.append("first")

        stack.enter_context(add(hook))
        scale(lib)(1)
        assert seen == ["first"]
        scale(lib)(1)
        assert seen == ["first", "first", "added"]


@CALLS
def test_a_global_hook_that_removes_itself(lib: Any, every: Any, register: str) -> None:
    seen: list[Any] = []
    add = getattr(every, register)

    def once(*args: Any) -> None:
        seen.append("once")
        handle.remove()

    handle = add(once)
    with add(note(seen, "last")):
        scale(lib)(1)
        scale(lib)(1)
    assert seen == ["once", "last", "last"]


@CALLS
def test_a_global_hook_that_removes_a_later_one(lib: Any, every: Any, register: str) -> None:
    seen: list[Any] = []
    add = getattr(every, register)
    later: list[Any] = []
    with add(lambda *_: later[0].remove()), add(note(seen, "removed")) as handle:
        later.append(handle)
        scale(lib)(1)
        scale(lib)(1)
    assert seen == ["removed"]


@CALLS
def test_a_global_hook_that_removes_a_local_one(lib: Any, every: Any, register: str) -> None:
    """The hooks of a phase are those at its begin, global and local."""
    module = scale(lib)
    seen: list[Any] = []
    local = getattr(module, register.replace("_module", ""))(note(seen, "local"))
    with getattr(every, register)(lambda *_: local.remove()):
        module(1)
        module(1)
    assert seen == ["local"]


def test_forward_adds_a_global_hook(lib: Any, every: Any) -> None:
    """Its children called afterwards have it."""
    seen: list[Any] = []
    with ExitStack() as stack:

        class Net(lib.nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.child = scale(lib)

            def forward(self, x: Any) -> Any:
                x = self.child(x)
                for register in (
                    every.register_module_forward_pre_hook,
                    every.register_module_forward_hook,
                ):
                    stack.enter_context(register(lambda module, *_: seen.append(module)))
                return self.child(x)

        model = Net()
        model(1)
        assert seen == [model.child, model.child]


def test_forward_under_a_global_hook(lib: Any, every: Any) -> None:
    seen: list[Any] = []

    class Net(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.child = scale(lib)

        def forward(self, x: Any) -> Any:
            with every.register_module_forward_hook(lambda module, *_: seen.append(module)):
                return self.child(x)

    model = Net()
    assert model(1) == 2
    assert seen == [model.child]


def test_a_global_hook_that_calls_a_module(lib: Any, every: Any) -> None:
    other, module = scale(lib), scale(lib)
    seen: list[Any] = []

    def hook(which: Any, args: Any, output: Any) -> Any:
        seen.append(which)
        return other(output) if which is module else None

    with every.register_module_forward_hook(hook):
        assert module(1) == 4
    assert seen == [module, other]


# Global hooks and exceptions.

RUN = {
    "global pre": ["global pre", "global always", "always"],
    "pre": ["global pre", "pre", "global always", "always"],
    "forward": ["global pre", "pre", "forward", "global always", "always"],
    "global always": ["global pre", "pre", "forward", "global always", "always"],
    "global post": ["global pre", "pre", "forward", "global always", "global post", "always"],
    "always": ["global pre", "pre", "forward", "global always", "global post", "always"],
    "post": ["global pre", "pre", "forward", "global always", "global post", "always", "post"],
}


@pytest.fixture
def failing(lib: Any, every: Any) -> Iterator[Any]:
    """Return a module, under global hooks, of which all raise an error in one place."""
    with ExitStack() as stack:

        def make(place: str, seen: list[Any], error: BaseException) -> Any:
            def step(name: str) -> Callable[..., None]:
                def hook(*args: Any) -> None:
                    seen.append(name)
                    if name == place:
                        raise error

                return hook

            class Net(lib.nn.Module):  # type: ignore[misc]
                def forward(self, x: Any) -> Any:
                    step("forward")()
                    return x

            module = Net()
            module.register_forward_pre_hook(step("pre"))
            module.register_forward_hook(step("always"), always_call=True)
            module.register_forward_hook(step("post"))
            after = every.register_module_forward_hook
            for handle in (
                every.register_module_forward_pre_hook(step("global pre")),
                after(step("global always"), always_call=True),
                after(step("global post")),
            ):
                stack.enter_context(handle)
            return module

        yield make


@pytest.mark.parametrize("place", RUN)
@pytest.mark.parametrize("kind", [BoomError, RuntimeError, StopIteration])
def test_an_always_called_hook_runs_once(failing: Any, place: str, kind: Any) -> None:
    error = kind("boom")
    seen: list[Any] = []
    module = failing(place, seen, error)
    with pytest.raises(kind) as info:
        module(1)
    assert info.value is error
    assert seen == RUN[place]


@pytest.mark.parametrize("place", RUN)
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_nothing_is_called_after_an_interrupt(failing: Any, place: str, kind: Any) -> None:
    seen: list[Any] = []
    module = failing(place, seen, kind())
    with pytest.raises(kind):
        module(1)
    assert seen == RUN["post"][: RUN["post"].index(place) + 1]


def test_global_always_called_hooks_of_nested_modules(lib: Any, every: Any) -> None:
    """Called for each module that the exception leaves."""
    model = chain(lib)
    names, seen = named(model), []
    model[1][0].register_forward_pre_hook(boom)
    with (
        every.register_module_forward_hook(
            lambda m, args, out: seen.append((names[m], out)), always_call=True
        ),
        pytest.raises(BoomError),
    ):
        model(1)
    assert seen == [("0", 2), ("1.0", None), ("1", None), ("model", None)]


def test_global_and_local_always_called_hooks_pass_their_results_on(lib: Any, every: Any) -> None:
    module = scale(lib)
    seen: Any = []
    module.register_forward_pre_hook(boom)
    module.register_forward_hook(lambda _, args, out: seen.append(out), always_call=True)
    with (
        every.register_module_forward_hook(lambda *_: "mine", always_call=True),
        pytest.raises(BoomError),
    ):
        module(1)
    assert seen == ["mine"]


def test_a_global_always_called_hook_that_raises_after_another_exception(
    lib: Any, every: Any
) -> None:
    module = scale(lib)
    seen: list[Any] = []

    def fail(*args: Any) -> None:
        raise ValueError("the reason")

    module.register_forward_pre_hook(boom)
    module.register_forward_hook(note(seen, "local"), always_call=True)
    with (
        every.register_module_forward_hook(fail, always_call=True),
        every.register_module_forward_hook(note(seen, "global"), always_call=True),
        pytest.warns(UserWarning, match="the reason") as warned,
        pytest.raises(BoomError),
    ):
        module(1)
    assert len(warned) == 1
    assert seen == ["global", "local"]


def test_an_always_called_global_hook_is_not_called_after_removal(lib: Any, every: Any) -> None:
    seen: list[Any] = []
    every.register_module_forward_hook(note(seen, 1), always_call=True).remove()
    module = scale(lib)
    module.register_forward_hook(note(seen, 2), always_call=True)
    with raises(TypeError):
        module()
    assert seen == [2]


def test_an_always_called_global_hook_without_local_ones(lib: Any, every: Any) -> None:
    module = scale(lib)
    seen: list[Any] = []
    with (
        every.register_module_forward_hook(lambda *got: seen.append(got), always_call=True),
        raises(TypeError),
    ):
        module()
    assert seen == [(module, (), None)]


# Backward.


def test_a_global_backward_hook_is_called_for_every_module(lib: Any, every: Any) -> None:
    model = chain(lib)
    names, seen = named(model), []
    x = leaf(lib, 1.0)

    def hook(module: Any, grad_input: Any, grad_output: Any) -> None:
        assert type(grad_input) is tuple
        assert type(grad_output) is tuple
        seen.append((names[module], *lists(grad_input), *lists(grad_output)))

    with every.register_module_full_backward_hook(hook):
        model(x).backward()
    assert sorted(seen) == [
        ("0", 8, 4),
        ("1", 4, 1),
        ("1.0", 4, 2),
        ("1.1", 2, 1),
        ("model", 8, 1),
    ]
    order = [each[0] for each in seen]
    assert order.index("1.1") < order.index("1.0") < order.index("0")
    assert x.grad.item() == 8


def test_a_global_backward_pre_hook_is_called_for_every_module(lib: Any, every: Any) -> None:
    model = chain(lib)
    names, seen = named(model), []

    def hook(module: Any, grad_output: Any) -> None:
        assert type(grad_output) is tuple
        seen.append((names[module], *lists(grad_output)))

    with every.register_module_full_backward_pre_hook(hook):
        model(leaf(lib, 1.0)).backward()
    assert seen == [("model", 1), ("1", 1), ("1.1", 1), ("1.0", 2), ("0", 4)]


@pytest.mark.parametrize("given", [tuple, list], ids=["tuple", "list"])
def test_the_result_of_a_global_backward_hook(lib: Any, every: Any, given: Any) -> None:
    x = leaf(lib, 1.0)
    with every.register_module_full_backward_hook(lambda _, gi, go: given([gi[0] * 10])):
        scale(lib)(x).backward()
    assert x.grad.item() == 20


def test_the_result_of_a_global_backward_pre_hook(lib: Any, every: Any) -> None:
    x = leaf(lib, 1.0)
    with every.register_module_full_backward_pre_hook(lambda _, go: (go[0] * 10,)):
        chain(lib)(x).backward()
    assert x.grad.item() == 8 * 10**5


def test_global_backward_hooks_come_before_local_ones(lib: Any, every: Any) -> None:
    module = scale(lib)
    seen: Any = []

    def after(name: str, factor: float) -> Any:
        return lambda _, gi, go: seen.append((name, gi[0].item())) or (gi[0] * factor,)

    def before(name: str, factor: float) -> Any:
        return lambda _, go: seen.append((name, go[0].item())) or (go[0] * factor,)

    module.register_full_backward_hook(after("local", 7))
    module.register_full_backward_pre_hook(before("local pre", 7))
    with (
        every.register_module_full_backward_hook(after("global", 5)),
        every.register_module_full_backward_hook(after("global 2", 1)),
        every.register_module_full_backward_pre_hook(before("global pre", 3)),
    ):
        module.register_full_backward_hook(after("prepended", 2), prepend=True)
        module.register_full_backward_pre_hook(before("prepended pre", 2), prepend=True)
        x = leaf(lib, 1.0)
        module(x).backward()
    assert seen == [
        ("global pre", 1),
        ("prepended pre", 3),
        ("local pre", 6),
        ("global", 84),
        ("global 2", 420),
        ("prepended", 420),
        ("local", 840),
    ]
    assert x.grad.item() == 5880


def test_the_hooks_of_a_graph_are_those_of_its_forward(lib: Any, every: Any) -> None:
    module = scale(lib)
    seen: list[Any] = []
    x = leaf(lib, 1.0)
    with (
        every.register_module_full_backward_hook(note(seen, "after")),
        every.register_module_full_backward_pre_hook(note(seen, "before")),
    ):
        y = module(x)
    y.backward()
    assert seen == ["before", "after"]
    y = module(x)
    with (
        every.register_module_full_backward_hook(note(seen, "after")),
        every.register_module_full_backward_pre_hook(note(seen, "before")),
    ):
        y.backward()
    assert seen == ["before", "after"]


def test_a_global_backward_hook_where_no_input_requires_grad(lib: Any, every: Any) -> None:
    module = lib.nn.Linear(1, 1).double()
    seen: list[Any] = []
    with (
        every.register_module_full_backward_hook(
            lambda _, gi, go: seen.append((gi, go[0].tolist()))
        ),
        pytest.warns(UserWarning, match="require"),
    ):
        module(constant(lib, [[3.0]])).sum().backward()
    assert seen == [((None,), [[1]])]
    assert module.weight.grad.tolist() == [[3]]


def test_global_backward_hooks_need_a_graph(lib: Any, every: Any) -> None:
    seen: list[Any] = []
    with every.register_module_full_backward_hook(note(seen, 1)), lib.no_grad():
        assert not scale(lib)(leaf(lib, 1.0)).requires_grad
    assert seen == []


def test_a_global_backward_hook_that_raises(lib: Any, every: Any) -> None:
    x = leaf(lib, 1.0)
    with every.register_module_full_backward_hook(boom), pytest.raises(BoomError):
        scale(lib)(x).backward()
    assert x.grad is None


@pytest.mark.parametrize("count", [0, 2])
def test_a_global_backward_hook_returns_as_many_as_it_gets(
    lib: Any, every: Any, count: int
) -> None:
    x = leaf(lib, 1.0)
    with (
        every.register_module_full_backward_hook(lambda _, gi, go: gi * count),
        raises(RuntimeError),
    ):
        scale(lib)(x).backward()
    with (
        every.register_module_full_backward_pre_hook(lambda _, go: go * count),
        raises(RuntimeError),
    ):
        scale(lib)(x).backward()
    assert x.grad is None


def test_global_full_and_old_hooks_do_not_mix(every: Any) -> None:
    with every.register_module_full_backward_hook(lambda *_: None), raises(RuntimeError):
        every.register_module_backward_hook(lambda *_: None)


def test_global_old_and_full_hooks_do_not_mix(every: Any) -> None:
    with every.register_module_backward_hook(lambda *_: None), raises(RuntimeError):
        every.register_module_full_backward_hook(lambda *_: None)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("register_module_full_backward_hook", "register_module_backward_hook"),
        ("register_module_backward_hook", "register_module_full_backward_hook"),
    ],
)
def test_removed_global_hooks_still_do_not_mix(every: Any, first: str, second: str) -> None:
    """The kind registered first is the kind for good."""
    getattr(every, first)(lambda *_: None).remove()
    with raises(RuntimeError):
        getattr(every, second)(lambda *_: None)
    getattr(every, first)(lambda *_: None).remove()


@pytest.mark.parametrize(
    "register", ["register_module_full_backward_hook", "register_module_backward_hook"]
)
def test_backward_pre_hooks_mix_with_both(every: Any, register: str) -> None:
    with (
        getattr(every, register)(lambda *_: None),
        every.register_module_full_backward_pre_hook(lambda *_: None),
    ):
        pass


def test_old_global_hooks_get_the_gradients_of_the_last_operation(lib: Any, every: Any) -> None:
    module = lib.nn.ReLU()
    x = leaf(lib, 1, -2)
    seen: Any = []
    with every.register_module_backward_hook(
        lambda m, gi, go: seen.append((m, lists(gi), lists(go))) or (gi[0] * 100,)
    ):
        (module(x * 2) * 5).sum().backward()
    assert seen == [(module, [[5, 0]], [[5, 5]])]
    assert x.grad.tolist() == [1000, 0]


def test_old_global_hooks_come_before_old_local_ones(lib: Any, every: Any) -> None:
    module = lib.nn.ReLU()
    x = leaf(lib, 1.0)
    seen: Any = []
    module.register_backward_hook(lambda m, gi, go: seen.append(("local", gi[0].item())))
    with every.register_module_backward_hook(
        lambda m, gi, go: seen.append(("global", gi[0].item())) or (gi[0] * 3,)
    ):
        module(x * 2).backward()
    assert seen == [("global", 1), ("local", 3)]


def test_old_hooks_of_a_module_mix_with_full_global_ones(lib: Any, every: Any) -> None:
    module = lib.nn.ReLU()
    x = leaf(lib, 1.0)
    seen: list[Any] = []
    with every.register_module_full_backward_hook(note(seen, "global")):
        module.register_full_backward_pre_hook(note(seen, "pre"))
        module(x * 2).backward()
    assert seen == ["pre", "global"]


def test_full_hooks_of_a_module_mix_with_old_global_ones(lib: Any, every: Any) -> None:
    module = lib.nn.ReLU()
    x = leaf(lib, 1.0)
    seen: Any = []
    module.register_full_backward_hook(lambda m, gi, go: seen.append(("local", len(gi), len(go))))
    with (
        every.register_module_backward_hook(lambda *_: seen.append("global")),
        pytest.warns(FutureWarning, match="hook"),
    ):
        y = module(x * 2)
    y.backward()
    assert seen == ["global", ("local", 1, 1)]


def test_a_hook_of_all_modules_may_register_the_first_of_one(lib: Any, every: Any) -> None:
    module = scale(lib)
    seen: list[Any] = []

    def register(module: Any, args: Any) -> None:
        if not seen:
            seen.append("registering")
            module.register_forward_hook(note(seen, "called"))

    with every.register_module_forward_pre_hook(register):
        module(1)
    assert seen == ["registering", "called"]
