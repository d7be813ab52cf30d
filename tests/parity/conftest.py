"""The same lines on offgrad and on torch, with the same assertions: torch is the reference.

A test that takes `lib` runs twice, once with each library as `lib`; on torch it is skipped where
torch is not installed. Dtypes are `lib.float64` and so on. Promises of offgrad alone (it raises
where torch is silently wrong) are tested with `offgrad` itself, without `lib`.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

import offgrad


@pytest.fixture(params=["offgrad", "torch"])
def lib(request: pytest.FixtureRequest) -> Any:
    """The library under test."""
    if request.param == "offgrad":
        return offgrad
    return pytest.importorskip("torch", reason="compares with torch, which is not installed")


@pytest.fixture(autouse=True)
def _torch_as_it_was(lib_name: str | None) -> Iterator[None]:
    """Restore torch's settings, so that a failed test does not fail the next."""
    if lib_name != "torch":
        yield
        return
    torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
    torch.default_generator.manual_seed(0)  # torch.manual_seed takes a millisecond: it seeks GPUs
    grad, anomaly = torch.is_grad_enabled(), torch.is_anomaly_enabled()
    yield
    torch.set_grad_enabled(grad)
    torch.autograd.set_detect_anomaly(anomaly)
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def lib_name(request: pytest.FixtureRequest) -> str | None:
    """The name of the library that `lib` will be, or None where a test does not take it."""
    call = getattr(request.node, "callspec", None)
    name = call.params.get("lib") if call is not None else None
    assert name is None or isinstance(name, str)
    return name


@pytest.fixture
def switch_often() -> Iterator[None]:
    """Let threads interrupt each other thousands of times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def leaf(lib: Any, *values: Any, dtype: Any = None) -> Any:
    """Return a vector that requires grad, of float64 unless said otherwise.

    `leaf(lib, 1, 2)` has shape (2,), `leaf(lib, 3)` has shape (), `leaf(lib, [3])` has shape (1,).
    """
    data: Any = values[0] if len(values) == 1 else values
    return lib.tensor(data, dtype=lib.float64 if dtype is None else dtype, requires_grad=True)


def constant(lib: Any, *values: Any, dtype: Any = None) -> Any:
    """Return the tensor that `leaf` returns, not requiring grad."""
    data: Any = values[0] if len(values) == 1 else values
    return lib.tensor(data, dtype=lib.float64 if dtype is None else dtype)


def lists(tensors: Sequence[Any]) -> list[Any]:
    """Return the values of several tensors, None for None."""
    return [None if each is None else each.tolist() for each in tensors]


def builtin_class(error: BaseException) -> type[BaseException]:
    """Return the first of Python's own classes that an exception is one of.

    A library may raise a class of its own, so long as `except` of torch's class catches it.
    NotImplementedError is a RuntimeError to Python: the first one is compared, not any.
    """
    for each in type(error).__mro__:
        if each.__module__ == "builtins" and issubclass(each, BaseException):
            return each
    raise AssertionError(f"{error!r} is no exception")


@contextmanager
def raises(expected: type[BaseException]) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """Assert that the block raises an exception of exactly this class of Python's own."""
    with pytest.raises(expected) as info:
        yield info
    assert builtin_class(info.value) is expected


def raised(call: Callable[[], Any]) -> type[BaseException] | None:
    """Return the builtin class of the exception that a call raises, or None if it returns."""
    try:
        call()
    except Exception as error:
        return builtin_class(error)
    return None
