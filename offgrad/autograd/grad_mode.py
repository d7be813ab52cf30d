"""Whether operations are recorded: `no_grad`, `enable_grad`, `set_grad_enabled`; one flag a
thread.
"""

import functools
import inspect
import threading
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


class _State(threading.local):
    grad_enabled = True


state = _State()


def is_grad_enabled() -> bool:
    """Return whether operations of this thread are recorded for backward."""
    return state.grad_enabled


class _GradMode:
    """A grad mode as context manager and as decorator, of functions and of generators."""

    _mode: bool

    def __new__(cls, *args: Any) -> Any:
        """Return the mode; or, used as a decorator without parentheses, the decorated function."""
        if args and callable(args[0]):
            return cls()(args[0])
        return super().__new__(cls)

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        self._previous: list[bool] = []

    def __enter__(self) -> None:
        self._previous.append(state.grad_enabled)
        state.grad_enabled = self._mode

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        state.grad_enabled = self._previous.pop()

    def _fresh(self) -> "_GradMode":
        return type(self)()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        if inspect.isgeneratorfunction(function):
            return cast("Callable[P, R]", self._decorate_generator(function))

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with self._fresh():
                return function(*args, **kwargs)

        return run

    def _decorate_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        # The mode holds while the generator runs and not while its caller does.
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            generator = function(*args, **kwargs)
            resume: Callable[[], Any] = functools.partial(next, generator)
            while True:
                try:
                    with self._fresh():
                        item = resume()
                except StopIteration as stop:
                    return stop.value
                try:
                    sent = yield item
                    resume = functools.partial(generator.send, sent)
                except GeneratorExit:
                    with self._fresh():
                        generator.close()
                    raise
                except BaseException as error:
                    resume = functools.partial(generator.throw, error)

        return run


class no_grad(_GradMode):
    """Record nothing: results do not require grad. Context manager and decorator."""

    _mode = False


class enable_grad(_GradMode):
    """Record again inside `no_grad`. Context manager and decorator."""

    _mode = True


class set_grad_enabled(_GradMode):
    """Set recording to `mode` at once; as a context manager, restore it at the end."""

    def __init__(self, mode: bool) -> None:
        super().__init__()
        self._mode = bool(mode)
        self._previous.append(state.grad_enabled)
        state.grad_enabled = self._mode

    def __enter__(self) -> None:
        state.grad_enabled = self._mode

    def _fresh(self) -> "_GradMode":
        return set_grad_enabled(self._mode)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate `function`; the mode set when this object was made is undone."""
        state.grad_enabled = self._previous.pop()
        return super().__call__(function)
