"""In-place changes of shape: t_, transpose_, squeeze_, unsqueeze_, swapaxes_, swapdims_."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.parity.conftest import constant, leaf, raises

CHANGES: dict[str, Callable[[Any], Any]] = {
    "t_": lambda y: y.t_(),
    "transpose_": lambda y: y.transpose_(0, 1),
    "swapaxes_": lambda y: y.swapaxes_(0, -1),
    "swapdims_": lambda y: y.swapdims_(0, 1),
    "unsqueeze_": lambda y: y.unsqueeze_(1),
    "squeeze_": lambda y: y.unsqueeze(0).squeeze_(),
    "squeeze_ dim": lambda y: y.unsqueeze(0).squeeze_(0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_shape_and_gradient(lib: Any, name: str) -> None:
    x = leaf(lib, [[1, 2, 3], [4, 5, 6]])
    y = x * 1
    z = CHANGES[name](y)
    assert name.startswith("squeeze") or z is y
    (z * lib.arange(6, dtype=lib.float64).view(z.shape)).sum().backward()
    values = z.tolist()
    c = constant(lib, [[1, 2, 3], [4, 5, 6]])
    assert CHANGES[name](c).tolist() == values
    flat = [0, 2, 4, 1, 3, 5] if "t_" in name or "trans" in name or "swap" in name else range(6)
    expected = [[*flat][:3], [*flat][3:]]
    if name.startswith(("squeeze", "unsqueeze")):
        expected = [[0, 1, 2], [3, 4, 5]]
    assert x.grad.tolist() == expected


def test_views_taken_before_keep_their_places(lib: Any) -> None:
    x = leaf(lib, [[1, 2, 3], [4, 5, 6]])
    y = x * 1
    row = y[0]
    y.t_()
    assert y.tolist() == [[1, 4], [2, 5], [3, 6]]
    assert row.tolist() == [1, 2, 3]
    y[0].mul_(10)
    assert row.tolist() == [10, 2, 3]
    assert y.tolist() == [[10, 40], [2, 5], [3, 6]]
    (grad,) = lib.autograd.grad(row.sum(), x, retain_graph=True)
    assert grad.tolist() == [[10, 1, 1], [0, 0, 0]]
    row.mul_(2)
    (grad,) = lib.autograd.grad(y.sum(), x)
    assert grad.tolist() == [[20, 2, 2], [10, 1, 1]]


def test_again_and_again(lib: Any) -> None:
    x = leaf(lib, [[1, 2, 3], [4, 5, 6]])
    y = x * 1
    y.t_().unsqueeze_(0).transpose_(0, 2).squeeze_()
    y[1].mul_(3)
    y.t_()
    assert y.tolist() == [[1, 12], [2, 15], [3, 18]]
    y[2].exp_()
    (grad,) = lib.autograd.grad(y[:2].sum(), x)
    assert grad.tolist() == [[1, 1, 0], [3, 3, 0]]


def test_of_a_view(lib: Any) -> None:
    x = leaf(lib, [[1, 2, 3], [4, 5, 6]])
    y = x * 1
    part = y[:, :2]
    part.t_()
    part[1].mul_(5)
    assert y.tolist() == [[1, 10, 3], [4, 25, 6]]
    (grad,) = lib.autograd.grad(y.sum(), x)
    assert grad.tolist() == [[1, 5, 1], [1, 5, 1]]


def test_a_constant_that_takes_history_in_afterwards(lib: Any) -> None:
    x = leaf(lib, [1, 2])
    c = lib.zeros(2, 3, dtype=lib.float64)
    column = c[:, 1]
    c.t_()
    c[1] = x * 2
    assert column.requires_grad
    (grad,) = lib.autograd.grad((column * constant(lib, [1, 10])).sum(), x)
    assert grad.tolist() == [2, 20]


def test_refused_for_leaves_that_require_grad(lib: Any) -> None:
    x = leaf(lib, [[1, 2, 3]])
    for change in CHANGES.values():
        with raises(RuntimeError):
            change(x.detach().requires_grad_()[:]) if change is CHANGES["squeeze_"] else x.t_()
    assert x.tolist() == [[1, 2, 3]]
    with lib.no_grad():
        x.t_()
    assert x.tolist() == [[1], [2], [3]]
    assert x.requires_grad


def test_saved_values_do_not_change_silently(lib: Any) -> None:
    x = leaf(lib, [[1, 2], [3, 4]])
    y = x * 1
    z = (y * y).sum()
    y.t_()
    with raises(RuntimeError):
        z.backward()
