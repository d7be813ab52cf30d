"""Hooks before and after forward: arguments, return values, order, owners."""

import collections
import functools
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest

from tests.parity.conftest import constant, leaf, raises
from tests.parity.hooked import BoomError, Counter, note, scale

FORWARD = pytest.mark.parametrize(
    "register", ["register_forward_pre_hook", "register_forward_hook"]
)


def echo(lib: Any) -> Any:
    """Return a module that returns its arguments as they came."""

    class Echo(lib.nn.Module):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return args, kwargs

    return Echo()


def returning(lib: Any, value: Any) -> Any:
    """Return a module whose forward takes nothing and returns a value."""

    class Returning(lib.nn.Module):  # type: ignore[misc]
        def forward(self) -> Any:
            return value

    return Returning()


# Hooks before forward: arguments.


def test_a_pre_hook_gets_the_module_and_the_arguments(lib: Any) -> None:
    module = echo(lib)
    x, y = constant(lib, 1), constant(lib, 2)
    seen: list[Any] = []
    module.register_forward_pre_hook(lambda *got: seen.append(got))
    module(x, y, 3)
    ((which, args),) = seen
    assert which is module
    assert type(args) is tuple
    assert args[0] is x
    assert args[1] is y
    assert args[2] == 3


def test_a_pre_hook_gets_no_keyword_arguments(lib: Any) -> None:
    module = echo(lib)
    seen: list[Any] = []
    module.register_forward_pre_hook(lambda *got: seen.append(got[1:]))
    assert module(1, by=3) == ((1,), {"by": 3})
    assert seen == [((1,),)]


def test_a_pre_hook_with_kwargs_gets_both(lib: Any) -> None:
    module = echo(lib)
    seen: list[Any] = []
    module.register_forward_pre_hook(lambda *got: seen.append(got), with_kwargs=True)
    module(1, 2, by=3, to=4)
    ((which, args, kwargs),) = seen
    assert which is module
    assert args == (1, 2)
    assert type(kwargs) is dict
    assert kwargs == {"by": 3, "to": 4}


def test_a_pre_hook_with_kwargs_gets_an_empty_dict(lib: Any) -> None:
    module = echo(lib)
    seen: list[Any] = []
    module.register_forward_pre_hook(lambda *got: seen.append(got[1:]), with_kwargs=True)
    module(1)
    module()
    assert seen == [((1,), {}), ((), {})]


def test_a_tensor_by_keyword_is_among_the_keyword_arguments(lib: Any) -> None:
    module = scale(lib)
    seen: list[Any] = []
    x = constant(lib, 3)
    module.register_forward_pre_hook(lambda _, *got: seen.append(got), with_kwargs=True)
    module.register_forward_pre_hook(lambda _, *got: seen.append(got))
    assert module(x=x).item() == 6
    assert seen[0][0] == ()
    assert seen[0][1]["x"] is x
    assert seen[1] == ((),)


def test_hooks_are_called_with_positional_arguments(lib: Any) -> None:
    """The names of a hook's parameters are its own."""
    module = scale(lib)
    seen: list[Any] = []

    def before(a: Any, b: Any, c: Any, /) -> None:
        seen.append((len(b), c))

    def after(a: Any, b: Any, c: Any, d: Any, /) -> None:
        seen.append((len(b), c, d.item()))

    module.register_forward_pre_hook(before, with_kwargs=True)
    module.register_forward_hook(after, with_kwargs=True)
    module(constant(lib, 1), by=5)
    assert seen == [(1, {"by": 5}), (1, {"by": 5}, 5)]


@FORWARD
@pytest.mark.parametrize("with_kwargs", [False, True])
def test_a_hook_of_too_few_parameters(lib: Any, register: str, with_kwargs: bool) -> None:
    module = scale(lib)
    getattr(module, register)(lambda module: None, with_kwargs=with_kwargs)
    with raises(TypeError):
        module(constant(lib, 1))


@FORWARD
def test_a_hook_must_be_callable(lib: Any, register: str) -> None:
    """Told when it is registered, or when it is called."""
    module = scale(lib)

    def run() -> None:
        with getattr(module, register)(3):
            module(constant(lib, 1))

    with raises(TypeError):
        run()
    assert module(constant(lib, 1)).item() == 2


@pytest.mark.parametrize("option", ["prepend", "with_kwargs"])
def test_pre_hooks_take_their_options_by_keyword(lib: Any, option: str) -> None:
    module = scale(lib)
    with raises(TypeError):
        module.register_forward_pre_hook(lambda *_: None, True)
    with raises(TypeError):
        module.register_forward_pre_hook(lambda *_: None, always_call=True)
    module.register_forward_pre_hook(hook=lambda *_: None, **{option: True})
    module(constant(lib, 1))


@pytest.mark.parametrize("option", ["prepend", "with_kwargs", "always_call"])
def test_forward_hooks_take_their_options_by_keyword(lib: Any, option: str) -> None:
    module = scale(lib)
    with raises(TypeError):
        module.register_forward_hook(lambda *_: None, True)
    module.register_forward_hook(hook=lambda *_: None, **{option: True})
    module(constant(lib, 1))


# Hooks before forward: return values.


class Pair(NamedTuple):
    first: int
    second: int


@pytest.mark.parametrize(
    ("given", "args"),
    [
        (None, (1, 2)),
        (5, (5,)),
        (0, (0,)),
        (False, (False,)),
        ("", ("",)),
        ("ab", ("ab",)),
        ([5, 6], ([5, 6],)),
        ([], ([],)),
        ({"by": 5}, ({"by": 5},)),
        ((5,), (5,)),
        ((5, 6, 7), (5, 6, 7)),
        (((5, 6),), ((5, 6),)),
        ((), ()),
        ((None,), (None,)),
        (Pair(5, 6), (5, 6)),
    ],
    ids=repr,
)
def test_the_result_of_a_pre_hook_replaces_the_arguments(lib: Any, given: Any, args: Any) -> None:
    """A tuple is all of them, anything else but None is the only one."""
    module = echo(lib)
    module.register_forward_pre_hook(lambda module, args: given)
    assert module(1, 2, by=3) == (args, {"by": 3})


def test_a_tensor_that_a_pre_hook_returns_is_the_argument(lib: Any) -> None:
    module = scale(lib)
    module.register_forward_pre_hook(lambda module, args: args[0] + 10)
    assert module(constant(lib, 1, 2), by=3).tolist() == [33, 36]


def test_no_arguments_left_for_forward(lib: Any) -> None:
    module = scale(lib)
    module.register_forward_pre_hook(lambda module, args: ())
    with raises(TypeError):
        module(constant(lib, 1))


def test_a_pair_without_with_kwargs_is_two_arguments(lib: Any) -> None:
    module = echo(lib)
    module.register_forward_pre_hook(lambda module, args: (args, {"by": 5}))
    assert module(1) == (((1,), {"by": 5}), {})


@pytest.mark.parametrize(
    ("given", "result"),
    [
        (None, ((1, 2), {"by": 3})),
        (((5,), {}), ((5,), {})),
        (((5, 6), {"by": 7, "to": 8}), ((5, 6), {"by": 7, "to": 8})),
        (((), {"x": 1}), ((), {"x": 1})),
        (([5, 6], {}), ((5, 6), {})),
        (("ab", {}), (("a", "b"), {})),
        (Pair((5,), {"by": 6}), ((5,), {"by": 6})),  # type: ignore[arg-type]
        (((5,), OrderedDict(by=6)), ((5,), {"by": 6})),
    ],
    ids=repr,
)
def test_the_result_of_a_pre_hook_with_kwargs(lib: Any, given: Any, result: Any) -> None:
    """A pair: forward is called with all of the one and all of the other."""
    module = echo(lib)
    module.register_forward_pre_hook(lambda module, args, kwargs: given, with_kwargs=True)
    assert module(1, 2, by=3) == result


@pytest.mark.parametrize(
    "wrong",
    [5, 0, False, "ab", (), ((5,),), ((5,), {}, None), [(5,), {}], {"by": 5}, {"a": 1, "b": 2}],
    ids=repr,
)
def test_a_pre_hook_with_kwargs_returns_a_pair_or_nothing(lib: Any, wrong: Any) -> None:
    module = echo(lib)
    seen: list[Any] = []
    module.register_forward_pre_hook(lambda *_: wrong, with_kwargs=True)
    module.register_forward_pre_hook(note(seen, "pre"))
    module.register_forward_hook(note(seen, "post"))
    with raises(RuntimeError):
        module(1, 2, by=3)
    assert seen == []


def test_a_tensor_is_no_pair(lib: Any) -> None:
    module = scale(lib)
    module.register_forward_pre_hook(lambda module, args, kwargs: args[0], with_kwargs=True)
    with raises(RuntimeError):
        module(constant(lib, 1, 2))


@pytest.mark.parametrize(
    "wrong", [((1,), None), ((1,), [2]), (None, {}), (5, {}), ((1,), {2: 3})], ids=repr
)
def test_a_pair_of_the_wrong_kinds_fails_in_the_call(lib: Any, wrong: Any) -> None:
    module = echo(lib)
    module.register_forward_pre_hook(lambda module, args, kwargs: wrong, with_kwargs=True)
    with raises(TypeError):
        module(1)


def test_a_tensor_in_place_of_the_tuple_of_arguments_is_unpacked(lib: Any) -> None:
    """With kwargs nothing is wrapped: forward gets the rows."""
    module = echo(lib)
    module.register_forward_pre_hook(lambda module, args, kwargs: (args[0], {}), with_kwargs=True)
    args, _ = module(constant(lib, [[1, 2], [3, 4]]))
    assert [each.tolist() for each in args] == [[1, 2], [3, 4]]


def test_later_pre_hooks_get_the_results_of_earlier_ones(lib: Any) -> None:
    module = echo(lib)
    seen: Any = []
    module.register_forward_pre_hook(lambda _, args: seen.append(args) or 5)
    module.register_forward_pre_hook(lambda _, args: seen.append(args))
    module.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append((args, kwargs)) or ((6,), {"to": 7}), with_kwargs=True
    )
    module.register_forward_pre_hook(lambda _, args: seen.append(args) or (8, 9))
    module.register_forward_pre_hook(lambda _, *got: seen.append(got), with_kwargs=True)
    assert module(1, by=3) == ((8, 9), {"to": 7})
    assert seen == [(1,), (5,), ((5,), {"by": 3}), (6,), ((8, 9), {"to": 7})]


def test_keyword_arguments_changed_in_place(lib: Any) -> None:
    module = echo(lib)
    mine = {"by": 3}
    module.register_forward_pre_hook(
        lambda module, args, kwargs: kwargs.update(by=4, to=5), with_kwargs=True
    )
    assert module(1, **mine) == ((1,), {"by": 4, "to": 5})
    assert mine == {"by": 3}


def test_a_keyword_argument_made_positional(lib: Any) -> None:
    module = scale(lib)
    module.register_forward_pre_hook(
        lambda module, args, kwargs: ((kwargs.pop("x"),), kwargs), with_kwargs=True
    )
    module.register_forward_pre_hook(lambda module, args: args[0] + 1)
    assert module(by=3, x=constant(lib, 1)).item() == 6


def test_a_tensor_changed_in_place_before_forward(lib: Any) -> None:
    module = scale(lib)

    def add(module: Any, args: Any) -> None:
        args[0].add_(10)

    module.register_forward_pre_hook(add)
    x = constant(lib, 1)
    assert module(x).item() == 22
    assert x.item() == 11


# Hooks after forward: arguments and return values.


def test_a_forward_hook_gets_the_output(lib: Any) -> None:
    output = constant(lib, 7)
    module = returning(lib, output)
    seen: list[Any] = []
    module.register_forward_hook(lambda *got: seen.append(got))
    assert module() is output
    ((which, args, got),) = seen
    assert which is module
    assert args == ()
    assert got is output


def test_a_forward_hook_gets_the_arguments(lib: Any) -> None:
    module = echo(lib)
    seen: list[Any] = []
    module.register_forward_hook(lambda _, *got: seen.append(got))
    module.register_forward_hook(lambda _, *got: seen.append(got), with_kwargs=True)
    module(1, 2, by=3)
    assert seen == [
        ((1, 2), ((1, 2), {"by": 3})),
        ((1, 2), {"by": 3}, ((1, 2), {"by": 3})),
    ]


def test_a_forward_hook_gets_the_results_of_pre_hooks(lib: Any) -> None:
    module = scale(lib)
    seen: list[Any] = []
    module.register_forward_pre_hook(lambda _, args, kwargs: ((5,), {"by": 6}), with_kwargs=True)
    module.register_forward_hook(lambda _, *got: seen.append(got), with_kwargs=True)
    assert module(1, by=2) == 30
    assert seen == [((5,), {"by": 6}, 30)]


@pytest.mark.parametrize(
    "given", [0, False, "", (), [], {}, (1, 2), [3], {"a": 1}, ((4,), {"by": 5})], ids=repr
)
@pytest.mark.parametrize("with_kwargs", [False, True])
def test_the_result_of_a_forward_hook_is_the_output(
    lib: Any, given: Any, with_kwargs: bool
) -> None:
    module = scale(lib)
    module.register_forward_hook(lambda *_: given, with_kwargs=with_kwargs)
    assert module(1) is given


def test_a_forward_hook_that_returns_nothing(lib: Any) -> None:
    module = scale(lib)
    module.register_forward_hook(lambda module, args, output: None)
    assert module(3) == 6


def test_later_forward_hooks_get_the_results_of_earlier_ones(lib: Any) -> None:
    module = scale(lib)
    seen: Any = []
    module.register_forward_hook(lambda _, args, out: seen.append(out) or out + 1)
    module.register_forward_hook(lambda _, args, out: seen.append(out))
    module.register_forward_hook(
        lambda _, args, kwargs, out: seen.append(out) or out * 10, with_kwargs=True
    )
    module.register_forward_hook(lambda _, args, out: seen.append(out) or out - 3, always_call=True)
    assert module(1) == 27
    assert seen == [2, 3, 3, 30]


def test_forward_may_return_none(lib: Any) -> None:
    module = returning(lib, None)
    seen: Any = []
    module.register_forward_hook(lambda _, args, out: seen.append(out))
    assert module() is None
    module.register_forward_hook(lambda _, args, out: seen.append(out) or "mine")
    module.register_forward_hook(lambda _, args, out: seen.append(out))
    assert module() == "mine"
    assert seen == [None, None, None, "mine"]


def test_an_output_changed_in_place(lib: Any) -> None:
    module = scale(lib)

    def add(module: Any, args: Any, output: Any) -> None:
        output.add_(10)

    module.register_forward_hook(add)
    assert module(constant(lib, 1)).item() == 12


@pytest.mark.parametrize("container", [list, dict], ids=["list", "dict"])
def test_an_output_of_a_container_changed_in_place(lib: Any, container: Any) -> None:
    module = returning(lib, container())

    def change(module: Any, args: Any, output: Any) -> None:
        output.append(1) if container is list else output.update(a=1)

    module.register_forward_hook(change)
    assert module() == ([1] if container is list else {"a": 1})


def test_arguments_changed_after_forward_change_nothing_in_it(lib: Any) -> None:
    module = scale(lib)
    x = constant(lib, 3)

    def zero(module: Any, args: Any, output: Any) -> None:
        args[0].zero_()

    module.register_forward_hook(zero)
    assert module(x).item() == 6
    assert x.item() == 0


# Order.


def test_hooks_fire_around_forward_in_the_order_of_registration(lib: Any) -> None:
    seen: list[Any] = []

    class Net(lib.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            seen.append("forward")
            return x

    module = Net()
    module.register_forward_hook(note(seen, "post 1"))
    module.register_forward_pre_hook(note(seen, "pre 1"))
    module.register_forward_pre_hook(note(seen, "pre 2"), with_kwargs=True)
    module.register_forward_hook(note(seen, "post 2"), with_kwargs=True)
    module.register_forward_hook(note(seen, "post 3"), always_call=True)
    module.register_forward_pre_hook(note(seen, "pre 3"))
    module(1)
    assert seen == ["pre 1", "pre 2", "pre 3", "forward", "post 1", "post 2", "post 3"]


@FORWARD
def test_prepended_hooks_fire_before_all_others(lib: Any, register: str) -> None:
    module = scale(lib)
    seen: list[Any] = []
    add = getattr(module, register)
    add(note(seen, 1))
    add(note(seen, 2), prepend=True)
    add(note(seen, 3), with_kwargs=True)
    add(note(seen, 4), prepend=True, with_kwargs=True)
    add(note(seen, 5), prepend=False)
    module(1)
    assert seen == [4, 2, 1, 3, 5]


def test_a_prepended_hook_that_is_always_called(lib: Any) -> None:
    module = scale(lib)
    seen: list[Any] = []
    module.register_forward_hook(note(seen, 1), always_call=True)
    module.register_forward_hook(note(seen, 2), always_call=True, prepend=True)
    module(1)
    assert seen == [2, 1]
    with raises(TypeError):
        module()
    assert seen == [2, 1, 2, 1]


@FORWARD
def test_a_hook_registered_again_is_the_last(lib: Any, register: str) -> None:
    module = scale(lib)
    seen: list[Any] = []
    add = getattr(module, register)
    first = note(seen, 1)
    handle = add(first)
    add(note(seen, 2))
    handle.remove()
    add(first)
    module(1)
    assert seen == [2, 1]


@FORWARD
def test_a_hook_registered_twice_fires_twice(lib: Any, register: str) -> None:
    module = scale(lib)
    seen: list[Any] = []
    add = getattr(module, register)
    hook = note(seen, 1)
    handle = add(hook)
    add(hook)
    module(1)
    assert seen == [1, 1]
    handle.remove()
    module(1)
    assert seen == [1, 1, 1]


def test_one_hook_with_and_without_kwargs(lib: Any) -> None:
    module = scale(lib)
    seen: list[Any] = []

    def hook(*got: Any) -> None:
        seen.append(len(got))

    module.register_forward_pre_hook(hook, with_kwargs=True)
    module.register_forward_pre_hook(hook)
    module.register_forward_hook(hook)
    module.register_forward_hook(hook, with_kwargs=True)
    module(1)
    assert seen == [3, 2, 3, 4]


def test_hooks_of_nested_modules(lib: Any) -> None:
    seen: list[Any] = []
    model = lib.nn.Sequential(
        lib.nn.Identity(), lib.nn.Sequential(lib.nn.Identity(), lib.nn.Identity())
    )
    for name, module in model.named_modules():
        module.register_forward_pre_hook(note(seen, f"{name}>"))
        module.register_forward_hook(note(seen, f"<{name}"))
    model(constant(lib, 1))
    assert seen == [">", "0>", "<0", "1>", "1.0>", "<1.0", "1.1>", "<1.1", "<1", "<"]


def test_hooks_of_nested_modules_change_values(lib: Any) -> None:
    model = lib.nn.Sequential(scale(lib), scale(lib))
    model.register_forward_pre_hook(lambda _, args: args[0] + 1)
    model[0].register_forward_hook(lambda _, args, out: out + 10)
    model[1].register_forward_pre_hook(lambda _, args: args[0] + 100)
    model.register_forward_hook(lambda _, args, out: out + 1000)
    assert model(constant(lib, 1)).item() == ((1 + 1) * 2 + 10 + 100) * 2 + 1000


# Kinds of callables.


@FORWARD
def test_kinds_of_callables(lib: Any, register: str) -> None:
    module = scale(lib)
    counter = Counter()
    notes: collections.deque[Any] = collections.deque()
    add = getattr(module, register)
    for hook in (
        counter,
        counter.method,
        Counter.nothing,
        functools.partial(Counter.method, counter),
        lambda *got: notes.append(got),
        lambda module, *rest: notes.append(module),
    ):
        add(hook)
    assert module(2) == 4
    assert counter.count == 3
    assert notes[0][:2] == (module, (2,))
    assert notes[1] is module


def test_a_method_of_the_module_is_a_hook(lib: Any) -> None:
    class Net(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.register_forward_hook(self.count)

        def count(self, module: Any, args: Any, output: Any) -> Any:
            assert module is self
            self.calls += 1
            return output + 1

        def forward(self, x: Any) -> Any:
            return x

    module = Net()
    assert module(1) == 2
    assert module.calls == 1


def test_a_method_of_the_parent_is_a_hook_of_its_children(lib: Any) -> None:
    class Net(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.features: dict[Any, Any] = {}
            self.first, self.second = lib.nn.Identity(), scale(lib)
            for name, each in self.named_children():
                each.register_forward_hook(functools.partial(self.keep, name))

        def keep(self, name: str, module: Any, args: Any, output: Any) -> None:
            self.features[name] = output.item()

        def forward(self, x: Any) -> Any:
            return self.second(self.first(x))

    module = Net()
    module(constant(lib, 3))
    assert module.features == {"first": 3, "second": 6}


def test_a_hook_before_the_modules_init(lib: Any) -> None:
    class Net(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            self.register_forward_hook(lambda *_: None)
            super().__init__()

    with raises(AttributeError):
        Net()


# Modules called several times, shared, from within.


def test_hooks_fire_in_every_call(lib: Any) -> None:
    module = scale(lib)
    seen: list[Any] = []
    module.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    module.register_forward_hook(lambda _, args, out: seen.append(out))
    for value in (1, 2, 3):
        module(value)
    assert seen == [1, 2, 2, 4, 3, 6]


def test_a_module_that_occurs_twice(lib: Any) -> None:
    shared = scale(lib)
    model = lib.nn.Sequential(shared, lib.nn.Identity(), shared)
    seen: list[Any] = []
    shared.register_forward_hook(lambda _, args, out: seen.append((args[0], out)))
    model(1)
    assert seen == [(1, 2), (2, 4)]


def test_one_hook_of_several_modules(lib: Any) -> None:
    model = lib.nn.Sequential(scale(lib), scale(lib))
    seen: list[Any] = []

    def hook(module: Any, args: Any, output: Any) -> None:
        seen.append((module, output))

    handles = [each.register_forward_hook(hook) for each in model]
    model(1)
    assert seen == [(model[0], 2), (model[1], 4)]
    handles[0].remove()
    model(1)
    assert seen[2:] == [(model[1], 4)]


def recursive(lib: Any) -> Any:
    """Return a module that calls itself."""

    class Recursive(lib.nn.Module):  # type: ignore[misc]
        def forward(self, depth: int) -> Any:
            return depth if depth <= 0 else self(depth - 1) * 2

    return Recursive()


def test_hooks_of_a_module_that_calls_itself(lib: Any) -> None:
    module = recursive(lib)
    seen: list[Any] = []
    module.register_forward_pre_hook(lambda _, args: seen.append(("pre", args[0])))
    module.register_forward_hook(lambda _, args, out: seen.append(("post", args[0], out)))
    module.register_forward_hook(lambda _, args, out: out + 1)
    assert module(2) == 7
    assert seen == [
        ("pre", 2),
        ("pre", 1),
        ("pre", 0),
        ("post", 0, 0),
        ("post", 1, 2),
        ("post", 2, 6),
    ]


def test_always_called_hooks_of_a_module_that_calls_itself(lib: Any) -> None:
    """Each of the calls under way calls them, the innermost first."""
    seen: list[Any] = []

    class Falling(lib.nn.Module):  # type: ignore[misc]
        def forward(self, depth: int) -> Any:
            if depth == 0:
                raise BoomError
            return self(depth - 1)

    module = Falling()
    module.register_forward_hook(lambda _, args, out: seen.append(args[0]), always_call=True)
    with pytest.raises(BoomError):
        module(2)
    assert seen == [0, 1, 2]


def test_a_hook_that_calls_its_module(lib: Any) -> None:
    module = scale(lib)
    seen: list[Any] = []

    def hook(module: Any, args: Any, output: Any) -> Any:
        seen.append((args[0], output))
        return module(output) if output < 10 else None

    module.register_forward_hook(hook)
    assert module(1) == 16
    assert seen == [(1, 2), (2, 4), (4, 8), (8, 16)]


def test_a_pre_hook_that_calls_another_module(lib: Any) -> None:
    module, other = scale(lib), scale(lib)
    seen: list[Any] = []
    other.register_forward_hook(note(seen, "other"))
    module.register_forward_pre_hook(lambda _, args: other(args[0]))
    assert module(3) == 12
    assert seen == ["other"]


def test_a_module_is_a_hook(lib: Any) -> None:
    class Add(lib.nn.Module):  # type: ignore[misc]
        def forward(self, module: Any, args: Any, output: Any) -> Any:
            return output + 1

    module, hook = scale(lib), Add()
    seen: list[Any] = []
    hook.register_forward_hook(note(seen, "hook of the hook"))
    module.register_forward_hook(hook)
    assert module(1) == 3
    assert seen == ["hook of the hook"]


def test_forward_called_directly_has_no_hooks(lib: Any) -> None:
    module = scale(lib)
    seen: list[Any] = []
    module.register_forward_pre_hook(note(seen, "pre"))
    module.register_forward_hook(note(seen, "post"))
    assert module.forward(3) == 6
    assert seen == []


def test_lists_and_dicts_of_modules_have_hooks_that_do_not_fire(lib: Any) -> None:
    """They are not called themselves."""
    seen: list[Any] = []

    class Net(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = lib.nn.ModuleList([lib.nn.Identity(), lib.nn.Identity()])

        def forward(self, x: Any) -> Any:
            for each in self.layers:
                x = each(x)
            return x

    model = Net()
    model.layers.register_forward_pre_hook(note(seen, "list"))
    model.layers.register_forward_hook(note(seen, "list"))
    model.layers[1].register_forward_hook(note(seen, "layer"))
    model(1)
    assert seen == ["layer"]


def test_hooks_do_not_depend_on_the_mode(lib: Any) -> None:
    module = scale(lib)
    seen: list[Any] = []
    module.register_forward_hook(lambda module, args, output: seen.append(module.training))
    module(1)
    module.eval()
    module(1)
    module.train()
    module(1)
    assert seen == [True, False, True]


def test_hooks_survive_conversion_and_loading(lib: Any) -> None:
    module = lib.nn.Linear(2, 2)
    seen: list[Any] = []
    module.register_forward_hook(note(seen, "post"))
    module.register_forward_pre_hook(note(seen, "pre"))
    assert module.double() is module
    module.load_state_dict(module.state_dict())
    module.requires_grad_(False)
    module.zero_grad()
    module.apply(lambda each: None)
    module(constant(lib, [[1, 2]]))
    assert seen == ["pre", "post"]


def test_apply_registers_hooks_everywhere(lib: Any) -> None:
    model = lib.nn.Sequential(lib.nn.Identity(), lib.nn.Sequential(lib.nn.Identity()))
    seen: list[Any] = []
    model.apply(lambda module: module.register_forward_hook(lambda m, *_: seen.append(m)))
    model(1)
    assert seen == [model[0], model[1][0], model[1], model]


# Hooks and gradients.


def test_the_argument_that_a_pre_hook_returns_is_differentiated(lib: Any) -> None:
    module = scale(lib)
    module.register_forward_pre_hook(lambda _, args: args[0] * 10)
    x = leaf(lib, 1, 2)
    module(x).sum().backward()
    assert x.grad.tolist() == [20, 20]


def test_the_output_that_a_forward_hook_returns_is_differentiated(lib: Any) -> None:
    module = scale(lib)
    module.register_forward_hook(lambda _, args, out: out * args[0])
    x = leaf(lib, 1, 2)
    module(x).sum().backward()
    assert x.grad.tolist() == [4, 8]


def test_a_pre_hook_that_detaches(lib: Any) -> None:
    module = lib.nn.Linear(1, 1).double()
    module.register_forward_pre_hook(lambda _, args: args[0].detach())
    x = leaf(lib, [[3.0]])
    module(x).sum().backward()
    assert x.grad is None
    assert module.weight.grad.tolist() == [[3]]


def test_a_forward_hook_that_detaches(lib: Any) -> None:
    module = scale(lib)
    module.register_forward_hook(lambda _, args, out: out.detach())
    assert not module(leaf(lib, 1.0)).requires_grad


def test_an_output_changed_in_place_is_differentiated(lib: Any) -> None:
    module = scale(lib)

    def multiply(module: Any, args: Any, output: Any) -> None:
        output.mul_(5)

    module.register_forward_hook(multiply)
    x = leaf(lib, 1, 2)
    y = module(x)
    assert y.tolist() == [10, 20]
    y.sum().backward()
    assert x.grad.tolist() == [10, 10]


def test_a_forward_hook_registers_hooks_on_the_output(lib: Any) -> None:
    model = lib.nn.Sequential(scale(lib), scale(lib))
    seen: list[Any] = []

    def watch(module: Any, args: Any, output: Any) -> None:
        output.register_hook(lambda grad: seen.append((output.item(), grad.item())))

    for each in model:
        each.register_forward_hook(watch)
    x = leaf(lib, 1.0)
    model(x).backward()
    assert seen == [(4, 1), (2, 2)]
    assert x.grad.item() == 4


def test_a_forward_hook_retains_the_gradient(lib: Any) -> None:
    model = lib.nn.Sequential(scale(lib), scale(lib))
    kept: Any = []
    model[0].register_forward_hook(lambda _, args, out: (out.retain_grad(), kept.append(out))[1])
    model(leaf(lib, 1.0)).backward()
    assert kept[0].grad.item() == 2


def test_features_of_a_layer(lib: Any) -> None:
    model = lib.nn.Sequential(scale(lib), lib.nn.ReLU(), scale(lib))
    features: dict[str, Any] = {}

    def keep(name: str) -> Any:
        def hook(module: Any, args: Any, output: Any) -> None:
            features[name] = output.detach()

        return hook

    for name, module in model.named_children():
        module.register_forward_hook(keep(name))
    y = model(leaf(lib, 1, -2))
    assert {name: each.tolist() for name, each in features.items()} == {
        "0": [2, -4],
        "1": [2, 0],
        "2": [4, 0],
    }
    assert not features["0"].requires_grad
    assert y.requires_grad


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode", "enable_grad"])
def test_hooks_run_in_the_callers_grad_mode(lib: Any, mode: str) -> None:
    module = scale(lib)
    seen: list[Any] = []
    module.register_forward_pre_hook(lambda *_: seen.append(lib.is_grad_enabled()))
    module.register_forward_hook(lambda *_: seen.append(lib.is_grad_enabled()))
    with getattr(lib, mode)():
        module(leaf(lib, 1.0))
    assert seen == [mode == "enable_grad"] * 2


def test_hooks_run_outside_of_forwards_grad_mode(lib: Any) -> None:
    seen: list[Any] = []

    class Net(lib.nn.Module):  # type: ignore[misc]
        @lib.no_grad()  # type: ignore[untyped-decorator]
        def forward(self, x: Any) -> Any:
            seen.append(lib.is_grad_enabled())
            return x * 2

    module = Net()
    module.register_forward_pre_hook(lambda *_: seen.append(lib.is_grad_enabled()))
    module.register_forward_hook(lambda _, args, out: seen.append(lib.is_grad_enabled()))
    module.register_forward_hook(lambda _, args, out: out * args[0])
    x = leaf(lib, 3.0)
    y = module(x)
    assert seen == [True, False, True]
    y.backward()
    assert x.grad.item() == 6


def test_hooks_without_grad_around_a_module(lib: Any) -> None:
    """A pair of hooks turns gradients off for forward alone, an exception or not."""
    module = scale(lib)

    def before(module: Any, args: Any) -> None:
        lib.set_grad_enabled(False)

    def after(module: Any, args: Any, output: Any) -> None:
        lib.set_grad_enabled(True)

    module.register_forward_pre_hook(before)
    module.register_forward_hook(after, always_call=True)
    with lib.enable_grad():
        assert not module(leaf(lib, 1.0)).requires_grad
        assert lib.is_grad_enabled()
        with raises(TypeError):
            module()
        assert lib.is_grad_enabled()


def test_in_no_grad_the_results_of_hooks_have_no_graph(lib: Any) -> None:
    module = scale(lib)
    x = leaf(lib, 1.0)
    module.register_forward_pre_hook(lambda _, args: args[0] * x)
    module.register_forward_hook(lambda _, args, out: out * x)
    with lib.no_grad():
        assert not module(x).requires_grad
    assert module(x).requires_grad


def test_a_hook_may_run_backward(lib: Any) -> None:
    module = scale(lib)
    x = leaf(lib, 3.0)
    module.register_forward_hook(lambda _, args, out: (out * out).backward())
    y = module(x)
    assert x.grad.item() == 24
    assert y.item() == 6


def test_a_pre_hook_changes_a_parameter(lib: Any) -> None:
    module = lib.nn.Linear(1, 1, bias=False).double()

    def fix(module: Any, args: Any) -> None:
        with lib.no_grad():
            module.weight.fill_(3)

    module.register_forward_pre_hook(fix)
    x = leaf(lib, [[2.0]])
    module(x).sum().backward()
    assert x.grad.tolist() == [[3]]
    assert module.weight.grad.tolist() == [[2]]


def test_a_pre_hook_computes_the_weight(lib: Any) -> None:
    """As weight normalisation and pruning do it: the parameter is another one."""
    module = lib.nn.Linear(1, 1, bias=False).double()
    original = module.weight
    with lib.no_grad():
        original.fill_(3)
    del module.weight
    module.register_parameter("weight_original", original)

    def compute(module: Any, args: Any) -> None:
        module.weight = module.weight_original * module.weight_original

    module.register_forward_pre_hook(compute)
    for _ in range(2):
        original.grad = None
        y = module(constant(lib, [[2.0]]))
        assert y.item() == 18
        y.sum().backward()
        assert original.grad.item() == 12
    assert [name for name, _ in module.named_parameters()] == ["weight_original"]


# Modules that call in their own way.


def test_forward_as_an_attribute_of_the_module(lib: Any) -> None:
    module = scale(lib)
    seen: list[Any] = []
    module.register_forward_pre_hook(lambda _, args: args[0] + 1)
    module.register_forward_hook(lambda _, args, out: seen.append((args[0], out)))
    module.forward = lambda x: x * 100
    assert module(1) == 200
    assert seen == [(2, 200)]
    del module.forward
    assert module(1) == 4


def test_forward_as_an_attribute_wraps_the_method(lib: Any) -> None:
    module = scale(lib)
    inner = module.forward
    module.forward = lambda *args, **kwargs: inner(*args, **kwargs) + 1
    assert module(3, by=5) == 16
    module.register_forward_hook(lambda _, args, out: out * 2)
    assert module(3, by=5) == 32


def test_forward_replaced_on_the_class(lib: Any) -> None:
    module = scale(lib)
    module.register_forward_hook(lambda _, args, out: out + 1)
    type(module).forward = lambda self, x: x * 100
    assert module(1) == 101


def test_forward_replaced_by_a_pre_hook(lib: Any) -> None:
    """The call has looked up forward before its hooks run."""
    module = scale(lib)

    def replace(module: Any, args: Any) -> None:
        module.forward = lambda x: x * 100

    module.register_forward_pre_hook(replace)
    assert module(1) == 2
    assert module(1) == 100


def test_another_module_is_forward(lib: Any) -> None:
    """Each has its own hooks."""
    module, other = lib.nn.Identity(), scale(lib)
    seen: list[Any] = []
    object.__setattr__(module, "forward", other)
    module.register_forward_hook(note(seen, "outer"))
    other.register_forward_hook(note(seen, "inner"))
    assert module(1) == 2
    assert seen == ["inner", "outer"]


def test_call_overridden(lib: Any) -> None:
    seen: list[Any] = []

    class Net(lib.nn.Module):  # type: ignore[misc]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            seen.append("begin")
            result = super().__call__(*args, **kwargs)
            seen.append("end")
            return result + 1

        def forward(self, x: Any) -> Any:
            return x

    module = Net()
    module.register_forward_pre_hook(note(seen, "pre"))
    module.register_forward_hook(note(seen, "post"))
    assert module(1) == 2
    assert seen == ["begin", "pre", "post", "end"]


def test_call_overridden_without_the_base(lib: Any) -> None:
    class Net(lib.nn.Module):  # type: ignore[misc]
        def __call__(self, x: Any) -> Any:
            return self.forward(x) + 1

        def forward(self, x: Any) -> Any:
            return x

    module = Net()
    seen: list[Any] = []
    module.register_forward_pre_hook(note(seen, "pre"))
    module.register_forward_hook(note(seen, "post"))
    assert module(1) == 2
    assert seen == []


def test_call_as_an_attribute_is_not_looked_at(lib: Any) -> None:
    module = scale(lib)
    module.__call__ = lambda *_: "mine"
    assert module(1) == 2
    module.register_forward_hook(lambda _, args, out: out + 1)
    assert module(1) == 3


def test_a_module_without_forward(lib: Any) -> None:
    module = lib.nn.Module()
    seen: list[Any] = []
    with raises(NotImplementedError):
        module(1)
    module.register_forward_pre_hook(note(seen, "pre"))
    module.register_forward_hook(note(seen, "post"))
    module.register_forward_hook(note(seen, "always"), always_call=True)
    with raises(NotImplementedError):
        module(1)
    assert seen == ["pre", "always"]


def test_forward_given_by_a_pre_hooks_replacement_of_the_class(lib: Any) -> None:
    """A module without forward may get one as an attribute."""
    module = lib.nn.Module()
    module.forward = lambda x: x + 1
    module.register_forward_hook(lambda _, args, out: out * 10)
    assert module(1) == 20


def test_hooks_of_a_base_class_and_its_subclass(lib: Any) -> None:
    class Base(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_forward_hook(lambda _, args, out: out + 1)

        def forward(self, x: Any) -> Any:
            return x

    class Derived(Base):
        def __init__(self) -> None:
            super().__init__()
            self.register_forward_hook(lambda _, args, out: out * 10)

        def forward(self, x: Any) -> Any:
            return super().forward(x) + 5

    assert Derived()(1) == 70
    assert Base()(1) == 2


def test_a_subclass_that_overrides_the_registration(lib: Any) -> None:
    class Net(lib.nn.Module):  # type: ignore[misc]
        def register_forward_hook(self, hook: Any, **options: Any) -> Any:
            return super().register_forward_hook(lambda *args: hook("mine", *args), **options)

        def forward(self, x: Any) -> Any:
            return x

    module = Net()
    seen: list[Any] = []
    with module.register_forward_hook(lambda *got: seen.append(got[0]), always_call=True):
        module(1)
    module(1)
    assert seen == ["mine"]
