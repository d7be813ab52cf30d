"""A view taken before its base requires grad is an operand like any other."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

import offgrad as og

AT = og.tensor([0, 1])
BOTH = og.tensor([True, True])

CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "add_": lambda z, v: z.add_(v),
    "sub_": lambda z, v: z.sub_(v, alpha=2),
    "mul_": lambda z, v: z.mul_(v),
    "div_": lambda z, v: z.div_(v),
    "copy_": lambda z, v: z.copy_(v),
    "slice": lambda z, v: z.__setitem__(slice(None), v),
    "ellipsis": lambda z, v: z.__setitem__(..., v),
    "integer": lambda z, v: z.__setitem__(0, v[0]),
    "index": lambda z, v: z.__setitem__(AT, v),
    "mask": lambda z, v: z.__setitem__(BOTH, v),
    "index_put_": lambda z, v: z.index_put_((AT,), v, accumulate=True),
    "foreach": lambda z, v: og._foreach_add_([z], [v]),
    "fill_": lambda z, v: z.fill_(v[0]),
    "scatter_": lambda z, v: z.scatter_(0, AT, v),
}


@pytest.mark.parametrize("size", [4, 100_000])
@pytest.mark.parametrize("name", CHANGES)
def test_in_place_changes_by_it_are_recorded(name: str, size: int) -> None:
    root = og.ones(1, requires_grad=True)
    base = og.zeros(size)
    view = base[:2]
    base.add_(root)
    target = og.full((2,), 2.0)
    CHANGES[name](target, view)
    (found,) = og.autograd.grad(target.sum(), root)

    twin = og.full((2,), 2.0)
    CHANGES[name](twin, og.ones(2) * root)
    (expected,) = og.autograd.grad(twin.sum(), root)
    assert found.tolist() == expected.tolist()


def test_it_shows_its_history() -> None:
    root = og.ones(1, requires_grad=True)
    base = og.zeros(4)
    view = base[:2]
    base.add_(root)
    assert "grad_fn" in repr(view)
    with pytest.raises(RuntimeError, match="requires grad"):
        view.numpy()
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(view)


def test_values_can_be_read_under_no_grad() -> None:
    x = og.ones(2, requires_grad=True)
    with og.no_grad():
        assert x.numpy().tolist() == [1, 1]
    with og.inference_mode():
        assert (x * 1).numpy().tolist() == [1, 1]
    with pytest.raises(RuntimeError, match="requires grad"):
        x.numpy()
