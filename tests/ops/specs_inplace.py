"""In-place changes of views, whose gradients go through the history of the base."""

from collections.abc import Callable
from typing import Any

import numpy as np

from offgrad.autograd.mutation import CopySlices, TakeSlices
from offgrad.ops._core.inplace_forms import CopyBackwards
from tests.ops.opspec import OpSpec


def _plain(m: Any, x: Any) -> Any:
    return x * 1


def _in_columns(m: Any, x: Any) -> Any:
    """Return a copy of x in column-major order that is not a view."""
    dtype = np.dtype(str(x.dtype).removeprefix("torch."))
    return m.from_numpy(np.zeros(x.shape, dtype, order="F")).copy_(x)


def changed(take: Callable[[Any], Any], start: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Return the call that scales a view of a copy by a tensor, in place."""

    def call(m: Any, x: Any, w: Any) -> Any:
        base = start(m, x)
        take(base).mul_(w)
        return base

    return call


def reference(take: Callable[[Any], Any], order: Any) -> Callable[..., Any]:
    """Return the same in NumPy."""

    def call(x: Any, w: Any) -> Any:
        base = np.array(x, order=order)
        part = take(base)
        part *= w
        return base

    return call


def spec(name: str, take: Callable[[Any], Any], start: Any = _plain) -> OpSpec:
    return OpSpec(
        f"inplace_{name}", (CopySlices, TakeSlices), changed(take, start), [((2, 3), ())],
        reference(take, "C" if start is _plain else "F"), complex=True, third=name == "row",
    )  # fmt: skip


def _assigned(m: Any, x: Any, w: Any) -> Any:
    base = x * 1
    base[:, 1:] = w
    return base * base


SPECS = [
    spec("row", lambda y: y[0]),
    spec("column", lambda y: y[:, 1]),
    spec("steps", lambda y: y[:, ::2]),
    spec("transposed", lambda y: y.T[1:]),
    spec("reshaped", lambda y: y.reshape(3, 2)[1]),
    # A view that exists in the layout of the base only.
    spec("flat_of_transposed", lambda y: y.T.reshape(6)[1:4], _in_columns),
    spec("all", lambda y: y[...]),
    OpSpec(
        "inplace_copy", (CopySlices, CopyBackwards), _assigned, [((2, 3), (2, 2))],
        complex=True,
    ),
]  # fmt: skip
