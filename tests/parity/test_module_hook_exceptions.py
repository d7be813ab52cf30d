"""Exceptions in calls of modules with hooks, and the hooks that run then."""

import warnings
from typing import Any

import pytest

from tests.parity.conftest import raises
from tests.parity.hooked import BoomError, boom, note, scale

# The exception, and the hooks that run then.


def failing(lib: Any, places: set[str], seen: list[Any], error: BaseException) -> Any:
    """Return a module with hooks that note their names and raise in some places."""

    def step(name: str) -> None:
        seen.append(name)
        if name in places:
            raise error

    class Net(lib.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            step("forward")
            return x

    module = Net()
    for name in ("pre 1", "pre 2"):
        module.register_forward_pre_hook(lambda *_, name=name: step(name))
    for name in ("always 1", "post 1", "always 2", "post 2", "always 3"):
        module.register_forward_hook(
            lambda *_, name=name: step(name), always_call=name.startswith("always")
        )
    return module


ALWAYS = ["always 1", "always 2", "always 3"]
ALL = ["pre 1", "pre 2", "forward", "always 1", "post 1", "always 2", "post 2", "always 3"]
RUN = {
    "pre 1": ["pre 1", *ALWAYS],
    "pre 2": ["pre 1", "pre 2", *ALWAYS],
    "forward": ["pre 1", "pre 2", "forward", *ALWAYS],
    "always 1": ["pre 1", "pre 2", "forward", "always 1", "always 2", "always 3"],
    "post 1": ["pre 1", "pre 2", "forward", "always 1", "post 1", "always 2", "always 3"],
    "always 2": ["pre 1", "pre 2", "forward", "always 1", "post 1", "always 2", "always 3"],
    "post 2": ALL,
    "always 3": ALL,
}
EXCEPTIONS = pytest.mark.parametrize(
    "kind", [BoomError, ValueError, StopIteration, AttributeError, TypeError, RuntimeError]
)
BARE = pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])


@pytest.mark.parametrize("place", RUN)
@EXCEPTIONS
def test_an_always_called_hook_runs_once_wherever_the_error_is_raised(
    lib: Any, place: str, kind: Any
) -> None:
    error = kind("boom")
    seen: list[Any] = []
    module = failing(lib, {place}, seen, error)
    with pytest.raises(kind) as info:
        module(1)
    assert info.value is error
    assert seen == RUN[place]


@pytest.mark.parametrize("place", RUN)
@BARE
def test_nothing_is_called_after_an_interrupt(lib: Any, place: str, kind: Any) -> None:
    """A BaseException skips all hooks, also those always called."""
    error = kind()
    seen: list[Any] = []
    module = failing(lib, {place}, seen, error)
    with pytest.raises(kind) as info:
        module(1)
    assert info.value is error
    assert seen == ALL[: ALL.index(place) + 1]


def test_a_module_that_raised_can_be_called_again(lib: Any) -> None:
    places = {"post 1"}
    seen: list[Any] = []
    module = failing(lib, places, seen, BoomError())
    for _ in range(2):
        with pytest.raises(BoomError):
            module(1)
        assert seen == RUN["post 1"]
        seen.clear()
    places.clear()
    assert module(1) == 1
    assert seen == ALL


def test_no_hook_runs_after_an_exception_if_none_is_always_called(lib: Any) -> None:
    module = scale(lib)
    seen: list[Any] = []
    module.register_forward_pre_hook(note(seen, "pre"))
    module.register_forward_hook(note(seen, "post"), always_call=False)
    with raises(TypeError):
        module()
    assert seen == ["pre"]


@pytest.mark.parametrize("place", ["pre 1", "pre 2", "forward"])
def test_an_always_called_hook_gets_none_if_there_is_no_output(lib: Any, place: str) -> None:
    module = failing(lib, {place}, [], BoomError())
    got: list[Any] = []
    module.register_forward_hook(lambda *args: got.append(args), always_call=True)
    module.register_forward_hook(lambda *args: got.append(args), always_call=True, with_kwargs=True)
    with pytest.raises(BoomError):
        module(5)
    assert got == [(module, (5,), None), (module, (5,), {}, None)]


@pytest.mark.parametrize("place", ["always 1", "post 1", "always 2", "post 2", "always 3"])
def test_an_always_called_hook_gets_the_output_if_there_is_one(lib: Any, place: str) -> None:
    module = failing(lib, {place}, [], BoomError())
    got: list[Any] = []
    module.register_forward_hook(lambda *args: got.append(args), always_call=True)
    with pytest.raises(BoomError):
        module(5)
    assert got == [(module, (5,), 5)]


def test_an_always_called_hook_gets_the_output_so_far(lib: Any) -> None:
    module = scale(lib)
    got: Any = []
    module.register_forward_hook(lambda _, args, out: out + 1)
    module.register_forward_hook(lambda *_: boom())
    module.register_forward_hook(lambda _, args, out: out + 100)
    module.register_forward_hook(lambda _, args, out: got.append(out), always_call=True)
    with pytest.raises(BoomError):
        module(1)
    assert got == [3]


def test_an_always_called_hook_gets_the_arguments_so_far(lib: Any) -> None:
    module = scale(lib)
    got: Any = []
    module.register_forward_pre_hook(lambda *_: ((7,), {"by": 8}), with_kwargs=True)
    module.register_forward_pre_hook(lambda *_: (9,))
    module.register_forward_pre_hook(boom)
    module.register_forward_pre_hook(lambda *_: (10,))
    module.register_forward_hook(
        lambda _, *rest: got.append(rest), always_call=True, with_kwargs=True
    )
    with pytest.raises(BoomError):
        module(1)
    assert got == [((9,), {"by": 8}, None)]


def test_the_wrong_result_of_a_pre_hook_leaves_the_arguments(lib: Any) -> None:
    module = scale(lib)
    got: Any = []
    module.register_forward_pre_hook(lambda *_: 5, with_kwargs=True)
    module.register_forward_hook(
        lambda _, *rest: got.append(rest), always_call=True, with_kwargs=True
    )
    with raises(RuntimeError):
        module(1, by=3)
    assert got == [((1,), {"by": 3}, None)]


def test_after_an_exception_hooks_pass_their_results_on(lib: Any) -> None:
    """The next of them sees their return value, and the first exception is raised."""
    module = scale(lib)
    got: Any = []
    module.register_forward_pre_hook(boom)
    module.register_forward_hook(lambda _, args, out: got.append(out) or "first", always_call=True)
    module.register_forward_hook(lambda _, args, out: got.append(out), always_call=True)
    module.register_forward_hook(
        lambda _, args, kwargs, out: got.append(out) or "third", always_call=True, with_kwargs=True
    )
    module.register_forward_hook(lambda _, args, out: got.append(out), always_call=True)
    with pytest.raises(BoomError):
        module(1)
    assert got == [None, "first", "first", "third"]


def test_arguments_that_forward_does_not_take(lib: Any) -> None:
    module = scale(lib)
    got: Any = []
    module.register_forward_hook(
        lambda _, *rest: got.append(rest), always_call=True, with_kwargs=True
    )
    with raises(TypeError):
        module(1, wrong=2)
    assert got == [((1,), {"wrong": 2}, None)]


@pytest.mark.parametrize("place", ["pre 1", "forward", "post 1"])
def test_an_always_called_hook_that_raises_after_another_exception(lib: Any, place: str) -> None:
    """Its own exception becomes a warning, the others still run."""
    error = BoomError()
    seen: list[Any] = []
    places = {place}
    module = failing(lib, places, seen, error)

    def fail(*args: Any) -> None:
        seen.append("fail")
        raise ValueError

    module.register_forward_hook(fail, always_call=True)
    module.register_forward_hook(note(seen, "always 4"), always_call=True)
    with pytest.raises(BoomError) as info, pytest.warns(UserWarning, match="hook") as warned:
        module(1)
    assert info.value is error
    assert error.__context__ is None
    assert len(warned) == 1
    assert seen == [*RUN[place], "fail", "always 4"]


def test_the_warning_names_the_silenced_error(lib: Any) -> None:
    module = scale(lib)

    def fail(*args: Any) -> None:
        raise ValueError("the reason")

    module.register_forward_pre_hook(boom)
    module.register_forward_hook(fail, always_call=True)
    with pytest.raises(BoomError), pytest.warns(UserWarning, match="the reason"):
        module(1)


def test_each_exception_that_is_silenced_warns(lib: Any) -> None:
    seen: list[Any] = []
    module = failing(lib, {"forward", *ALWAYS}, seen, BoomError())
    with pytest.raises(BoomError), pytest.warns(UserWarning, match="hook") as warned:
        module(1)
    assert len(warned) == 3
    assert seen == RUN["forward"]


def test_the_first_always_called_hook_that_raises_is_heard(lib: Any) -> None:
    """Without an exception before, its own is the one; it is not called again."""
    module = scale(lib)
    seen: Any = []

    def fail(name: str) -> Any:
        def hook(*args: Any) -> None:
            seen.append(name)
            raise BoomError(name)

        return hook

    module.register_forward_hook(fail("first"), always_call=True)
    module.register_forward_hook(fail("second"), always_call=True)
    module.register_forward_hook(note(seen, "third"), always_call=True)
    with pytest.raises(BoomError, match="first"), pytest.warns(UserWarning, match="second"):
        module(1)
    assert seen == ["first", "second", "third"]


def test_an_always_called_hook_with_the_wrong_parameters(lib: Any) -> None:
    module = scale(lib)
    module.register_forward_pre_hook(boom)
    module.register_forward_hook(lambda module: None, always_call=True)
    with pytest.raises(BoomError), pytest.warns(UserWarning, match="hook"):
        module(1)


@BARE
def test_an_interrupt_of_an_always_called_hook_is_not_silenced(lib: Any, kind: Any) -> None:
    module = scale(lib)
    seen: list[Any] = []

    def interrupt(*args: Any) -> None:
        raise kind

    module.register_forward_pre_hook(boom)
    module.register_forward_hook(note(seen, 1), always_call=True)
    module.register_forward_hook(interrupt, always_call=True)
    module.register_forward_hook(note(seen, 2), always_call=True)
    with pytest.raises(kind):
        module(1)
    assert seen == [1]


def test_a_warning_made_an_error_takes_the_place(lib: Any) -> None:
    """Under `-W error` the warning is the exception raised."""
    module = scale(lib)
    seen: list[Any] = []
    module.register_forward_pre_hook(boom)
    module.register_forward_hook(lambda module: None, always_call=True)
    module.register_forward_hook(note(seen, 1), always_call=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning):
            module(1)
    assert seen == []


def test_always_called_hooks_of_nested_modules(lib: Any) -> None:
    """The exception passes the child first, then its parents; those beside do not run."""
    seen: list[Any] = []
    model = lib.nn.Sequential(
        lib.nn.Identity(), lib.nn.Sequential(lib.nn.Identity()), lib.nn.Identity()
    )
    for name, module in model.named_modules():
        module.register_forward_hook(
            lambda module, args, output, name=name: seen.append((name, output)), always_call=True
        )
        module.register_forward_hook(note(seen, "not always"))
    model[0]._forward_hooks.clear()
    model[1][0].register_forward_pre_hook(boom)
    with pytest.raises(BoomError):
        model(1)
    assert seen == [("1.0", None), ("1", None), ("", None)]


def test_a_parent_that_catches_its_childs_error(lib: Any) -> None:
    seen: list[Any] = []

    class Net(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.child = lib.nn.Identity()

        def forward(self, x: Any) -> Any:
            try:
                return self.child(x)
            except BoomError:
                return x + 1

    model = Net()
    model.child.register_forward_pre_hook(boom)
    model.child.register_forward_hook(note(seen, "child"), always_call=True)
    model.register_forward_hook(lambda _, args, out: seen.append(out))
    assert model(1) == 2
    assert seen == ["child", 2]


def test_an_always_called_hook_is_removed_by_the_raising_hook(lib: Any) -> None:
    module = scale(lib)
    seen: list[Any] = []
    handle = module.register_forward_hook(note(seen, "removed"), always_call=True)
    module.register_forward_hook(note(seen, "kept"), always_call=True)
    module.register_forward_pre_hook(lambda *_: handle.remove() or boom())
    with pytest.raises(BoomError):
        module(1)
    assert seen == ["kept"]


def test_an_always_called_hook_is_added_by_the_raising_hook(lib: Any) -> None:
    module = scale(lib)
    seen: list[Any] = []

    def fail(*args: Any) -> None:
        module.register_forward_hook(note(seen, "added"), always_call=True)
        raise BoomError

    module.register_forward_pre_hook(fail)
    with pytest.raises(BoomError):
        module(1)
    assert seen == ["added"]


def test_a_hooks_error_exits_a_context(lib: Any) -> None:
    module = scale(lib)
    with pytest.raises(BoomError), module.register_forward_pre_hook(boom):
        module(1)
    assert module(1) == 2


def test_always_called_hooks_when_all_goes_well(lib: Any) -> None:
    module = scale(lib)
    seen: list[Any] = []
    module.register_forward_hook(note(seen, 1), always_call=True)
    module.register_forward_hook(note(seen, 2))
    module.register_forward_hook(lambda _, args, out: out + 5, always_call=True)
    assert module(1) == 7
    assert seen == [1, 2]
