"""User-defined Functions that the tests of both libraries share."""

from collections.abc import Callable
from typing import Any

import pytest


def differs(reason: str) -> pytest.MarkDecorator:
    """Mark a test that passes on torch and fails on offgrad."""
    mark = pytest.mark.xfail(strict=True, reason=reason)
    return pytest.mark.parametrize(
        "lib", [pytest.param("offgrad", marks=mark), "torch"], indirect=True
    )


def make(
    lib: Any,
    forward: Callable[..., Any] | None,
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., Any] | None = None,
    name: str = "Custom",
    **methods: Any,
) -> Any:
    """Return a subclass of the library's Function."""
    given = {"forward": forward, "backward": backward, "setup_context": setup_context, **methods}
    namespace = {key: staticmethod(value) for key, value in given.items() if value is not None}
    return type(name, (lib.autograd.Function,), namespace)


def double(lib: Any) -> Any:
    return make(lib, lambda ctx, x: x * 2, lambda ctx, grad: grad * 2, name="Double")


def cube(lib: Any) -> Any:
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x * x

    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad * 3 * x * x

    return make(lib, forward, backward, name="Cube")


def log_and(value: Any, log: list[Any], entry: Any) -> Any:
    """Return `value`, having appended `entry`: for lambdas."""
    log.append(entry)
    return value
