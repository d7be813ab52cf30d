"""Operations on lists of tensors: the same as torch's."""

from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import _foreach

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")

CALLS = """
    add(a, 2.0); add(a, b); add(a, b, alpha=3); add(a, [1.0, 2.0]); add(a, m.tensor(2.0))
    sub(a, b); sub(a, 0.5); mul(a, 0.9); mul(a, m.tensor(2.0)); div(a, b); div(a, [2.0, 4.0])
    pow(a, 2.0); pow(a, b); pow(a, [2.0, 3.0]); lerp(a, b, 0.1); lerp(a, b, b)
    addcmul(a, b, b); addcmul(a, b, b, 0.5); addcmul(a, b, b, [0.5, 2.0]); addcmul(a, b, b, value=2)
    addcdiv(a, b, b, -0.5); addcdiv(a, b, b, m.tensor([0.5, 2.0]))
    add(a, other=b); add(a, scalars=[1.0, 2.0]); mul(a, scalar=0.5); lerp(a, b, weight=0.25)
    addcmul(a, tensor1=b, tensor2=b, value=0.5); addcdiv(a, b, b, scalars=[1.0, 2.0])
    pow(a, exponent=2.0); clamp_min(a, 1.0)
    clamp_max(a, [1.0, 0.8]); maximum(a, b); maximum(a, 1.0); minimum(a, b)
"""


def _check(have: Any, want: Any) -> None:
    assert type(have) is type(want)
    assert len(have) == len(want)
    for mine, torchs in zip(have, want, strict=True):
        np.testing.assert_allclose(mine.numpy(), torchs.numpy(), rtol=1e-5)


def _lists(m: Any) -> tuple[Any, Any]:
    return (
        [m.tensor([0.5, 0.75]), m.tensor([[1.5, 2.0, 0.25]])],
        [m.tensor([0.25, 2.0]), m.tensor([[0.75, 0.5, 3.0]])],
    )


def _run(m: Any, name: str, call: str) -> tuple[Any, Any]:
    a, b = _lists(m)
    result = eval(f"f{call}", {"f": getattr(m, f"_foreach_{name}"), "m": m, "a": a, "b": b})
    assert (result is a) == name.endswith("_")
    return result, a


@pytest.mark.parametrize("suffix", ["", "_"])
@pytest.mark.parametrize(
    "call",
    [each.strip() for line in CALLS.splitlines() for each in line.split(";") if each.strip()],
)
def test_two_operands(call: str, suffix: str) -> None:
    name, _, arguments = call.partition("(")
    results = [_run(m, name + suffix, f"({arguments}") for m in (offgrad, torch)]
    for have, want in zip(*results, strict=True):
        _check(have, want)


@pytest.mark.parametrize("name", sorted(_foreach._UNARY.split()))
def test_one_operand(name: str) -> None:
    for each in (name, f"{name}_"):
        for have, want in zip(*[_run(m, each, "(a)") for m in (offgrad, torch)], strict=True):
            _check(list(have), list(want))


def test_others() -> None:
    found = []
    for m in (offgrad, torch):
        a, b = _lists(m)
        found.append([
            m._foreach_norm(a), m._foreach_norm(a, 1), m._foreach_norm(a, ord=1),
            m._foreach_max(a), m._foreach_clone(a),
            m._foreach_pow(2.0, a), m._foreach_copy_(b, a), m._foreach_zero_(a), b,
        ])  # fmt: skip
    for have, want in zip(*found, strict=True):
        _check(have, want)


def test_gradients_flow() -> None:
    a = [each.requires_grad_() for each in _lists(offgrad)[0]]
    total = sum(each.sum() for each in offgrad._foreach_mul(a, [2.0, 3.0]))
    offgrad.autograd.backward(total)
    assert [each.grad.max().item() for each in a if each.grad is not None] == [2.0, 3.0]


def test_errors() -> None:
    a, _ = _lists(offgrad)
    with pytest.raises(RuntimeError, match="got 2 and 1"):
        offgrad._foreach_add(a, [1.0])
    calls: list[Any] = [
        lambda: offgrad._foreach_sub(2.0, a),
        lambda: offgrad._foreach_add([2.0, 3.0], 3),
        lambda: offgrad._foreach_sqrt(a[0]),
        lambda: offgrad._foreach_zero_(a[0]),
        lambda: offgrad._foreach_add(a[0], a),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="takes a list of tensors first"):
            call()
    with pytest.raises(RuntimeError, match="at least one tensor"):
        offgrad._foreach_add([], 1.0)
    with pytest.raises(AttributeError, match="if PyTorch has, it is internal"):
        _ = offgrad._foreach_nothing
