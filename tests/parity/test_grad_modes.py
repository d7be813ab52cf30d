"""no_grad, enable_grad, set_grad_enabled: as contexts, functions, decorators; in every thread."""

import inspect
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from tests.parity.conftest import constant, leaf, lists, raises


def recorded(lib: Any) -> bool:
    """Return whether an operation on a leaf is recorded; is_grad_enabled must agree."""
    y = leaf(lib, 1, 2) * 2
    assert y.requires_grad == lib.is_grad_enabled()
    assert (y.grad_fn is not None) == y.requires_grad
    return bool(y.requires_grad)


@pytest.fixture(autouse=True)
def _left_on(lib: Any) -> Iterator[None]:
    """Every test leaves the default mode as it found it."""
    assert recorded(lib)
    yield
    assert recorded(lib)


# Contexts.


def test_no_grad_records_nothing(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    with lib.no_grad():
        y = (x * 2).exp().sum()
    assert not y.requires_grad
    assert y.is_leaf
    assert y.grad_fn is None
    assert x.requires_grad
    with raises(RuntimeError):
        y.backward()


def test_modes_nest(lib: Any) -> None:
    found = []
    with lib.no_grad():
        found.append(recorded(lib))
        with lib.enable_grad():
            found.append(recorded(lib))
            with lib.set_grad_enabled(False):
                found.append(recorded(lib))
                with lib.set_grad_enabled(mode=True):
                    found.append(recorded(lib))
                found.append(recorded(lib))
            found.append(recorded(lib))
        found.append(recorded(lib))
    found.append(recorded(lib))
    assert found == [False, True, False, True, False, True, False, True]


@pytest.mark.parametrize("name", ["no_grad", "enable_grad"])
def test_put_back_after_an_exception(lib: Any, name: str) -> None:
    for outside in (True, False):
        with lib.set_grad_enabled(outside):
            with pytest.raises(KeyError), getattr(lib, name)():
                raise KeyError
            assert recorded(lib) is outside


def test_set_grad_enabled_puts_back_after_an_exception(lib: Any) -> None:
    with pytest.raises(KeyError), lib.set_grad_enabled(False):
        raise KeyError


def test_put_back_where_leaving_is_by_return_break_and_continue(lib: Any) -> None:
    def returns() -> None:
        with lib.no_grad():
            return

    returns()
    assert recorded(lib)
    for _ in range(2):
        with lib.no_grad():
            continue
    assert recorded(lib)
    for _ in range(2):
        with lib.no_grad():
            break


def test_entering_gives_nothing(lib: Any) -> None:
    with lib.no_grad() as found:
        assert found is None
    with lib.enable_grad() as found:
        assert found is None


def test_entered_and_left_by_hand(lib: Any) -> None:
    off, on = lib.no_grad(), lib.enable_grad()
    assert recorded(lib)
    off.__enter__()
    assert not recorded(lib)
    on.__enter__()
    assert recorded(lib)
    on.__exit__(None, None, None)
    assert not recorded(lib)
    off.__exit__(None, None, None)


def test_one_object_used_again(lib: Any) -> None:
    off = lib.no_grad()
    for _ in range(3):
        with off:
            assert not recorded(lib)
        assert recorded(lib)


def test_they_are_of_autograd_too(lib: Any) -> None:
    for name in ("no_grad", "enable_grad", "set_grad_enabled"):
        assert getattr(lib.autograd, name) is getattr(lib, name)


# set_grad_enabled as a function.


def test_set_grad_enabled_as_a_function(lib: Any) -> None:
    lib.set_grad_enabled(False)
    assert not recorded(lib)
    lib.set_grad_enabled(True)
    assert recorded(lib)


def test_set_within_a_context_lasts_until_it_is_left(lib: Any) -> None:
    with lib.no_grad():
        lib.set_grad_enabled(True)
        assert recorded(lib)
    with lib.no_grad():
        with lib.enable_grad():
            lib.set_grad_enabled(False)
            assert not recorded(lib)
        assert not recorded(lib)


def test_set_when_made_and_put_back_when_left(lib: Any) -> None:
    mode = lib.set_grad_enabled(False)
    assert not recorded(lib)
    with mode:
        assert not recorded(lib)
    assert recorded(lib)


@pytest.mark.parametrize("mode", ["yes", 1, None])
def test_set_grad_enabled_takes_a_bool(lib: Any, mode: Any) -> None:
    with pytest.raises(TypeError):
        lib.set_grad_enabled(mode)


# Decorators.

Function = Callable[..., Any]
Decorator = Callable[[Function], Function]

DECORATORS: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "no_grad": (lambda lib: lib.no_grad(), False),
    "no_grad without parentheses": (lambda lib: lib.no_grad, False),
    "enable_grad": (lambda lib: lib.enable_grad(), True),
    "enable_grad without parentheses": (lambda lib: lib.enable_grad, True),
    "set_grad_enabled(False)": (lambda lib: lib.set_grad_enabled(False), False),
    "set_grad_enabled(True)": (lambda lib: lib.set_grad_enabled(True), True),
}


@pytest.fixture(params=DECORATORS)
def decorator(request: pytest.FixtureRequest, lib: Any) -> tuple[Decorator, bool]:
    """A new decorator for each use, and the mode it sets."""
    make, mode = DECORATORS[request.param]
    return (lambda function: make(lib)(function)), mode


def test_decorated_functions(lib: Any, decorator: tuple[Decorator, bool]) -> None:
    decorate, mode = decorator

    @decorate
    def inner(a: int, *, b: int = 2) -> tuple[bool, int]:
        """Say what it does."""
        return recorded(lib), a + b

    assert recorded(lib)  # decorating is not calling
    assert inner.__name__ == "inner"
    assert inner.__doc__ == "Say what it does."
    for outside in (True, False):
        with lib.set_grad_enabled(outside):
            assert inner(1) == (mode, 3)
            assert inner(1, b=5) == (mode, 6)
            assert recorded(lib) is outside


def test_decorated_methods(lib: Any, decorator: tuple[Decorator, bool]) -> None:
    decorate, mode = decorator

    class Example:
        @decorate
        def method(self) -> bool:
            return recorded(lib)

        @classmethod
        @decorate
        def of_class(cls) -> bool:
            return recorded(lib)

        @staticmethod
        @decorate
        def static() -> bool:
            return recorded(lib)

        @property
        @decorate
        def value(self) -> bool:
            return recorded(lib)

    example = Example()
    found = [example.method(), Example.of_class(), Example.static(), example.value]
    assert found == [mode] * 4


def test_decorated_functions_that_raise_or_call_themselves(
    lib: Any, decorator: tuple[Decorator, bool]
) -> None:
    decorate, mode = decorator

    @decorate
    def down(n: int) -> None:
        assert recorded(lib) is mode
        with lib.set_grad_enabled(not mode):
            if n == 0:
                raise KeyError
            down(n - 1)

    with pytest.raises(KeyError):
        down(5)


# Generators: the mode is the function's while it runs, and the caller's while it waits.

Log = list[Any]


def conversation(lib: Any, log: Log) -> Generator[bool, Any, str]:
    """Yield the mode until told to stop; record each sent value and the mode then."""
    try:
        while True:
            try:
                sent = yield recorded(lib)
            except KeyError:
                log.append(("thrown", recorded(lib)))
            else:
                log.append((sent, recorded(lib)))
                if sent == "stop":
                    return "stopped"
    finally:
        log.append(("end", recorded(lib)))


@pytest.mark.parametrize("outside", [True, False])
def test_generators_sent_to_and_thrown_into(
    lib: Any, decorator: tuple[Decorator, bool], outside: bool
) -> None:
    decorate, mode = decorator
    log: Log = []
    with lib.set_grad_enabled(outside):
        running = decorate(conversation)(lib, log)
        steps: list[Callable[[], Any]] = [
            lambda: next(running),
            lambda: running.send(1),
            lambda: running.throw(KeyError()),
            lambda: next(running),
        ]
        for step in steps:
            assert step() is mode
            assert recorded(lib) is outside
        with pytest.raises(StopIteration) as stop:
            running.send("stop")
        assert stop.value.value == "stopped"
        assert recorded(lib) is outside
    assert log == [(1, mode), ("thrown", mode), (None, mode), ("stop", mode), ("end", mode)]


def test_generators_closed(lib: Any, decorator: tuple[Decorator, bool]) -> None:
    decorate, mode = decorator
    log: Log = []
    with lib.set_grad_enabled(not mode):
        running = decorate(conversation)(lib, log)
        next(running)
        running.close()
        assert recorded(lib) is not mode
    assert log == [("end", mode)]


def test_generators_that_raise(lib: Any, decorator: tuple[Decorator, bool]) -> None:
    decorate, mode = decorator

    @decorate
    def steps() -> Iterator[bool]:
        yield recorded(lib)
        raise KeyError

    with lib.set_grad_enabled(not mode):
        running = steps()
        assert next(running) is mode
        with pytest.raises(KeyError):
            next(running)
        assert recorded(lib) is not mode


def test_a_thrown_and_uncaught_exception_is_raised(
    lib: Any, decorator: tuple[Decorator, bool]
) -> None:
    decorate, _ = decorator
    log: Log = []
    running = decorate(conversation)(lib, log)
    next(running)
    with pytest.raises(ZeroDivisionError):
        running.throw(ZeroDivisionError())
    assert [each[0] for each in log] == ["end"]


def test_a_mode_set_within_a_generator_lasts_over_a_yield_or_not(lib: Any) -> None:
    """A context entered within it does; a mode set by set_grad_enabled does not."""

    @lib.no_grad()  # type: ignore[untyped-decorator]
    def with_context() -> Iterator[bool]:
        yield recorded(lib)
        with lib.enable_grad():
            yield recorded(lib)
        yield recorded(lib)

    assert [(inside, recorded(lib)) for inside in with_context()] == [
        (False, True),
        (True, True),
        (False, True),
    ]

    @lib.no_grad()  # type: ignore[untyped-decorator]
    def with_function() -> Iterator[bool]:
        lib.set_grad_enabled(True)
        yield recorded(lib)
        yield recorded(lib)

    assert [(inside, recorded(lib)) for inside in with_function()] == [(True, True), (False, True)]


def test_generators_within_generators(lib: Any) -> None:
    @lib.no_grad()  # type: ignore[untyped-decorator]
    def inner() -> Iterator[bool]:
        yield recorded(lib)
        yield recorded(lib)

    @lib.enable_grad()  # type: ignore[untyped-decorator]
    def outer() -> Iterator[bool]:
        yield recorded(lib)
        yield from inner()
        yield recorded(lib)

    with lib.no_grad():
        found = [(inside, recorded(lib)) for inside in outer()]
    assert found == [(True, False), (False, False), (False, False), (True, False)]


def test_two_generators_taking_turns(lib: Any) -> None:
    def steps() -> Iterator[bool]:
        for _ in range(3):
            yield recorded(lib)

    off, on = lib.no_grad()(steps)(), lib.enable_grad()(steps)()
    assert [(a, b, recorded(lib)) for a, b in zip(off, on, strict=True)] == [
        (False, True, True)
    ] * 3


def test_decorated_generators_are_generator_functions(lib: Any) -> None:
    def steps() -> Iterator[int]:
        yield 1

    assert inspect.isgeneratorfunction(lib.no_grad()(steps))
    assert not inspect.isgeneratorfunction(lib.no_grad()(len))


# Effects of modes on tensors.


def test_factories_are_not_overridden(lib: Any) -> None:
    with lib.no_grad():
        x = lib.ones(2, requires_grad=True)
        y = lib.zeros(2).requires_grad_()
        parameter = lib.nn.Parameter(lib.ones(2))
        results = [x * 2, y.clone(), parameter + 1]
    assert [each.requires_grad for each in (x, y, parameter)] == [True] * 3
    assert [each.requires_grad for each in results] == [False] * 3


def test_results_may_be_used_afterwards(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    with lib.no_grad():
        y = x * 3
    (y * x).sum().backward()
    assert x.grad.tolist() == [3, 6]
    y.requires_grad_()
    (y * x).sum().backward()
    assert y.grad.tolist() == [1, 2]


def test_nothing_is_saved_in_no_grad_mode(lib: Any) -> None:
    packed: list[Any] = []
    x = leaf(lib, 1, 2)
    with lib.autograd.graph.saved_tensors_hooks(packed.append, lambda t: t), lib.no_grad():
        (x * x).exp().sum()
    assert packed == []


def test_an_optimizer_by_hand(lib: Any) -> None:
    w = leaf(lib, 4, 2)
    for _ in range(2):
        (w * w).sum().backward()
        with lib.no_grad():
            w -= 0.25 * w.grad
        w.grad = None
    assert w.tolist() == [1, 0.5]
    assert w.is_leaf
    assert w.requires_grad


def test_backward_runs_without_and_with_a_graph_in_any_mode(lib: Any) -> None:
    """Hooks run in the mode that create_graph says, not in the caller's."""
    x = leaf(lib, 1, 2)
    for caller in (True, False):
        for create_graph in (True, False):
            seen: list[Any] = []
            y = x * x
            y.register_hook(lambda g, seen=seen: seen.append((recorded(lib), g.requires_grad)))
            loss = (y * y).sum()
            with lib.set_grad_enabled(caller):
                (found,) = lib.autograd.grad(loss, x, create_graph=create_graph)
                assert recorded(lib) is caller
            assert seen == [(create_graph, create_graph)]
            assert found.requires_grad is create_graph


def test_custom_functions_run_forward_without_recording(lib: Any) -> None:
    seen = []

    class Custom(lib.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            seen.append(recorded(lib))
            with lib.enable_grad():
                seen.append(recorded(lib))
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            seen.append(recorded(lib))
            return grads[0] * 2

    x = leaf(lib, 1, 2)
    y = Custom.apply(x)
    assert y.requires_grad
    y.sum().backward()
    assert seen == [False, True, False]
    with lib.no_grad():
        assert not Custom.apply(x).requires_grad


def test_requires_grad_is_the_finer_switch(lib: Any) -> None:
    x, frozen = leaf(lib, 1, 2), constant(lib, 3, 4)
    assert not (frozen * frozen).requires_grad
    y = frozen * x
    assert y.requires_grad
    y.sum().backward()
    assert lists([frozen.grad]) == [None]
    frozen.requires_grad_()
    (frozen * x.requires_grad_(False)).sum().backward()
    assert frozen.grad.tolist() == [1, 2]


def test_evaluation_mode_is_another_matter(lib: Any) -> None:
    model = lib.nn.Sequential(lib.nn.Linear(2, 2), lib.nn.Dropout(0.5))
    x = lib.ones(1, 2)
    model.eval()
    assert recorded(lib)
    assert model(x).requires_grad
    assert all(each.requires_grad for each in model.parameters())
    with lib.no_grad():
        assert not model.training
        assert not model(x).requires_grad
        model.train()
        assert not recorded(lib)
        assert model.training
        assert not model(x).requires_grad
    assert model.training
    assert model(x).requires_grad


# Threads.


def in_a_thread(call: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    (only,) = found
    return only


def test_a_new_thread_starts_in_the_default_mode(lib: Any) -> None:
    with lib.no_grad():
        assert in_a_thread(lambda: recorded(lib)) is True
        assert not recorded(lib)


def test_a_mode_set_in_a_thread_stays_there(lib: Any) -> None:
    def off() -> bool:
        lib.set_grad_enabled(False)
        return recorded(lib)

    assert in_a_thread(off) is False
    assert recorded(lib)
    assert in_a_thread(lambda: recorded(lib)) is True


def test_threads_side_by_side_in_different_modes(lib: Any) -> None:
    barrier = threading.Barrier(4)
    found: dict[int, list[bool]] = {}

    def run(number: int) -> None:
        mode = bool(number % 2)
        found[number] = []
        for _ in range(20):
            barrier.wait(60)
            with lib.set_grad_enabled(mode):
                barrier.wait(60)
                found[number].append(recorded(lib) is mode)
            found[number].append(recorded(lib))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert found == {number: [True] * 40 for number in range(4)}
