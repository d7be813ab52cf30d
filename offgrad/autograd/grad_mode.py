"""Whether operations are recorded, per thread: `no_grad`, `enable_grad`, `set_grad_enabled`,
`inference_mode`.
"""

import functools
import inspect
import threading
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np

P = ParamSpec("P")
R = TypeVar("R")


class _State(threading.local):
    """The modes of this thread.

    Attributes:
        grad_mode: the mode that `no_grad`, `enable_grad` and `set_grad_enabled` set.
        inference: whether the thread is in `inference_mode`.
        grad_enabled: whether operations are recorded: in grad mode, not in inference mode.
    """

    grad_mode = True
    inference = False
    grad_enabled = True

    def set(self, grad_mode: bool, inference: bool) -> tuple[bool, bool]:
        """Set both modes; return the previous ones."""
        previous = self.grad_mode, self.inference
        if inference and not inference_used:
            inference_used.append(True)
        self.grad_mode, self.inference = grad_mode, inference
        self.grad_enabled = grad_mode and not inference
        return previous


inference_used: list[bool] = []
"""Not empty once a thread has been in `inference_mode`; before, nothing need look at `state`."""

state = _State()


def call(mode: bool, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Return ``function(*args, **kwargs)``, called with grad mode `mode`.

    For use inside this package: Ctrl-C at the end of a ``with`` block would skip ``__exit__``, but
    Python does not raise KeyboardInterrupt between the plain statements here.
    """
    previous = state.grad_mode, state.grad_enabled
    try:
        state.grad_mode, state.grad_enabled = mode, mode and not state.inference
        return function(*args, **kwargs)
    finally:
        state.grad_mode, state.grad_enabled = previous


def is_grad_enabled() -> bool:
    """Return whether grad mode is on in this thread: operations are recorded, unless the thread is
    in `inference_mode`.
    """
    return state.grad_mode


def is_inference_mode_enabled() -> bool:
    """Return whether this thread is in `inference_mode`."""
    return state.inference


class _Mode:
    """A mode as a context manager, and as a decorator of functions and generators."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return the mode; used as a decorator without parentheses, the decorated function."""
        if args and callable(args[0]):
            return cls()(args[0])
        return super().__new__(cls)

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        self._previous: list[tuple[bool, bool, bool]] = []

    def _set(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> None:
        self._previous.append((state.grad_mode, state.inference, state.grad_enabled))
        try:
            self._set()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        # Plain statements, between which Python raises no KeyboardInterrupt.
        state.grad_mode, state.inference, state.grad_enabled = self._previous[-1]
        del self._previous[-1]

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        if inspect.isgeneratorfunction(function):
            return cast("Callable[P, R]", self._decorate_generator(function))

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            return self._run(function, *args, **kwargs)

        return run

    def _run(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` in this mode; see `call`."""
        previous = state.grad_mode, state.inference, state.grad_enabled
        try:
            self._set()
            return function(*args, **kwargs)
        finally:
            state.grad_mode, state.inference, state.grad_enabled = previous

    def _decorate_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        # The mode is on while the generator runs, and off while its caller runs.
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            generator = function(*args, **kwargs)
            resume: Callable[[], Any] = functools.partial(next, generator)
            while True:
                try:
                    item = self._run(resume)
                except StopIteration as stop:
                    return stop.value
                try:
                    sent = yield item
                    resume = functools.partial(generator.send, sent)
                except GeneratorExit:
                    self._run(generator.close)
                    raise
                except BaseException as error:
                    resume = functools.partial(generator.throw, error)

        return run


class _GradMode(_Mode):
    _mode: bool

    def _set(self) -> None:
        state.set(self._mode, state.inference)


class no_grad(_GradMode):
    """Record nothing: results do not require grad. Context manager and decorator."""

    _mode = False


class enable_grad(_GradMode):
    """Record operations inside `no_grad`. Context manager and decorator."""

    _mode = True


class set_grad_enabled(_GradMode):
    """Set recording to `mode` at once; as a context manager, restore it at the end."""

    def __init__(self, mode: bool) -> None:
        if not isinstance(mode, (bool, np.bool_)):
            raise TypeError(f"set_grad_enabled takes a bool, got {mode!r}")
        super().__init__()
        self._mode = bool(mode)
        super().__enter__()

    def __enter__(self) -> None:
        self._set()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate `function`; restore the mode from before this object was created."""
        self.__exit__()
        return super().__call__(function)


class inference_mode(_Mode):
    """Record nothing and create inference tensors, which recorded operations cannot save later.

    Context manager and decorator; ``mode=False`` switches an enclosing one off. Tensors created
    before, and views of them, stay normal tensors.
    """

    def __init__(self, mode: bool = True) -> None:
        super().__init__()
        self._mode = bool(mode)

    def _set(self) -> None:
        state.set(not self._mode, self._mode)


class _Threads(threading.local):
    """Whether backward may use several threads, as this thread has set it."""

    enabled = True


_threads = _Threads()


def is_multithreading_enabled() -> bool:
    """Return what `set_multithreading_enabled` has set, by default True."""
    return _threads.enabled


class set_multithreading_enabled:
    """Set whether backward may use several threads, at once; as a context manager, restore it.

    It has no effect: each backward pass runs in the thread that calls it.
    """

    def __init__(self, mode: bool) -> None:
        if not isinstance(mode, (bool, np.bool_)):
            raise TypeError(f"set_multithreading_enabled takes a bool, got {mode!r}")
        self._previous = _threads.enabled
        _threads.enabled = bool(mode)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        _threads.enabled = self._previous


__all__ = [
    "enable_grad",
    "inference_mode",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "is_multithreading_enabled",
    "no_grad",
    "set_grad_enabled",
    "set_multithreading_enabled",
    "state",
]
