"""The same few lines with torch and with offgrad, down to the order of events."""

from collections.abc import Callable
from typing import Any

import pytest

import offgrad

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")


def leaf(lib: Any, *values: float) -> Any:
    return lib.tensor(values, dtype=lib.float64, requires_grad=True)


def node_hooks(lib: Any) -> Any:
    x = leaf(lib, 1, 2)
    y = x * x
    seen: list[Any] = []
    y.grad_fn.register_prehook(lambda go: seen.append(("pre", go[0].tolist())))
    y.grad_fn.register_hook(lambda gi, go: seen.append(("post", len(gi), gi[0].tolist())))
    y.register_hook(lambda g: seen.append(("tensor", g.tolist())))
    (y * 2).sum().backward()
    return seen


def hooks_of_inputs(lib: Any) -> Any:
    x = leaf(lib, 1, 2)
    y = x * x
    seen: list[str] = []
    y.register_hook(lambda g: seen.append("tensor"))
    y.grad_fn.register_prehook(lambda g: seen.append("pre"))
    y.grad_fn.register_hook(lambda *_: seen.append("post"))
    lib.autograd.grad((y * 2).sum(), y)
    return seen


def retained(lib: Any) -> Any:
    x = leaf(lib, 1, 2)
    a, b = x * 1, x * 2
    a.retain_grad()
    b.retain_grad()
    (a + b).sum().backward()
    a.grad.mul_(5)
    return a.grad.tolist(), b.grad.tolist(), x.grad.tolist()


def retained_is_not_the_given(lib: Any) -> Any:
    a = leaf(lib, 1, 2) * 1
    a.retain_grad()
    start = lib.ones(2, dtype=lib.float64)
    a.backward(start)
    a.grad.mul_(5)
    return start.tolist()


def inputs_do_not_share(lib: Any) -> Any:
    x = leaf(lib, 1, 2)
    a, b = x * 1, x * 2
    start = lib.ones(2, dtype=lib.float64)
    (a + b).backward(start, inputs=[a, b])
    a.grad.mul_(5)
    return b.grad.tolist(), start.tolist(), x.grad


def given_gradient_accumulates(lib: Any) -> Any:
    x = leaf(lib, 1, 2)
    x.grad = lib.ones(2, dtype=lib.float64)
    (x * 2).sum().backward()
    return x.grad.tolist()


def identities(lib: Any) -> Any:
    x = leaf(lib, 1, 2)
    y = x.pow(2)
    z = x.exp()
    w = x * x
    return (
        y.grad_fn._saved_self is x, y.grad_fn._saved_exponent, z.grad_fn._saved_result is z,
        z.grad_fn._saved_result.tolist(), w.grad_fn._saved_self is w.grad_fn._saved_other,
    )  # fmt: skip


def hooks_replace_identities(lib: Any) -> Any:
    x = leaf(lib, 1, 2)
    with lib.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        y = x * x
    return y.grad_fn._saved_self is x, y.grad_fn._saved_self.tolist()


def pack_order(lib: Any) -> Any:
    seen: list[Any] = []

    def pack(t: Any) -> Any:
        seen.append((tuple(t.shape), t.tolist()))
        return t

    x, w = leaf(lib, 1, 2), leaf(lib, 3, 4)
    with lib.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        ((x * w).exp() * w.sigmoid()).sum().backward()
    return sorted(seen), x.grad.tolist()


def changed_before_backward(lib: Any) -> Any:
    y = leaf(lib, 1, 2) * 1
    z = y * y
    y.add_(1)
    z.sum().backward()


def changed_through_a_view(lib: Any) -> Any:
    y = leaf(lib, 1, 2) * 1
    z = y.exp()
    z.detach()[0] = 3.0
    z.sum().backward()


def unpack_of_another_shape(lib: Any) -> Any:
    x = leaf(lib, 1, 2)
    with lib.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: 3):
        y = x.exp()
    y.sum().backward()


def disabled(lib: Any) -> Any:
    with (
        lib.autograd.graph.disable_saved_tensors_hooks("no"),
        lib.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
    ):
        pass


def function_materializes(lib: Any) -> Any:
    seen: list[Any] = []

    class Two(lib.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2, x * 3

        @staticmethod
        def backward(ctx: Any, a: Any, b: Any) -> Any:
            seen.append((a.tolist(), b.tolist()))
            return a * 2 + b * 3

    x = leaf(lib, 1, 2)
    Two.apply(x)[1].sum().backward()
    return seen, x.grad.tolist()


def function_without_any_gradient(lib: Any) -> Any:
    seen: list[Any] = []

    class One(lib.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            seen.append(g.tolist())

    class Drop(lib.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return None

    x = leaf(lib, 1, 2)
    Drop.apply(One.apply(x)).sum().backward()
    return seen, x.grad


def dirty(lib: Any) -> Any:
    class Triple(lib.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.mark_dirty(x)
            return x.mul_(3)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 3

    x = leaf(lib, 1, 2)
    y = x * 1
    z = Triple.apply(y)
    z.sum().backward()
    return z is y, y._version, y.tolist(), x.grad.tolist()


def complex_gradients(lib: Any) -> Any:
    z = lib.tensor([1 + 2j, -0.5j], dtype=lib.complex128, requires_grad=True)
    (z * z.conj() + z.abs()).real.sum().backward()
    first = z.grad.tolist()
    z.grad = None
    (z**3).sum().backward(lib.tensor(1 + 1j, dtype=lib.complex128))
    return first, z.grad.tolist()


def subgradients(lib: Any) -> Any:
    x = leaf(lib, 0, 0, 1)
    result = []
    f: Any
    for f in (
        lambda x: x.abs(), lambda x: x.relu(), lambda x: x.clamp(0, 1),
        lambda x: lib.maximum(x, x * 2),
        lambda x: x.max(), lambda x: x.amin(), lambda x: x.norm(), lambda x: (x * 0).norm(),
        lambda x: x.prod(), lambda x: x**0, lambda x: x**2, lambda x: x.sqrt()[2:],
        lambda x: x.sign(),
        lambda x: x.min(0)[0], lambda x: lib.pow(x, x)[2:], lambda x: (x * 0).norm(1),
        lambda x: x.cumsum(0).max(), lambda x: lib.minimum(x, lib.zeros(3, dtype=lib.float64)),
    ):  # fmt: skip
        result.append(lib.autograd.grad(f(x).sum(), x)[0].tolist())
    return result


def bad_hook_count(lib: Any) -> Any:
    y = leaf(lib, 1, 2) * 2
    y.grad_fn.register_hook(lambda gi, go: gi[:1] * 5)
    y.sum().backward()


def bad_hook_dtype(lib: Any) -> Any:
    x = leaf(lib, 1, 2)
    x.register_hook(lambda g: g.float())
    x.sum().backward()


def stale_closure(lib: Any) -> Any:
    """A constant that took in history; a view taken afterwards."""
    x = leaf(lib, 1, 2)
    base = lib.zeros(3, dtype=lib.float64)
    base[1] = x[0] * 2
    return base[1:].requires_grad, lib.autograd.grad(base[1:].sum(), x)[0].tolist()


CASES: list[Callable[[Any], Any]] = [
    node_hooks, hooks_of_inputs, retained, retained_is_not_the_given, inputs_do_not_share,
    given_gradient_accumulates, identities, hooks_replace_identities, pack_order,
    changed_before_backward, changed_through_a_view, unpack_of_another_shape, disabled,
    function_materializes, function_without_any_gradient, dirty, complex_gradients, subgradients,
    bad_hook_count, bad_hook_dtype, stale_closure,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_same_events(case: Callable[[Any], Any]) -> None:
    try:
        want = case(torch)
    except Exception as theirs:
        with pytest.raises(type(theirs)):
            case(offgrad)
        return
    _compare(case(offgrad), want)


def _compare(mine: Any, theirs: Any) -> None:
    if isinstance(theirs, list | tuple):
        assert len(mine) == len(theirs)
        for a, b in zip(mine, theirs, strict=True):
            _compare(a, b)
    elif isinstance(theirs, float | complex) and not isinstance(theirs, bool):
        assert mine == pytest.approx(theirs, rel=1e-12, nan_ok=True)
    else:
        assert mine == theirs


@pytest.mark.parametrize(
    "call",
    [
        lambda lib, x: x + 1, lambda lib, x: x * 2, lambda lib, x: x - 1, lambda lib, x: x / 2,
        lambda lib, x: -x, lambda lib, x: x.exp(), lambda lib, x: x**2, lambda lib, x: x.sum(),
        lambda lib, x: x.mean(), lambda lib, x: x.view(2, 1), lambda lib, x: x.clone(),
        lambda lib, x: x.expand(3, 2), lambda lib, x: lib.cat([x, x]), lambda lib, x: x.relu(),
        lambda lib, x: x.softmax(0), lambda lib, x: x.log_softmax(0), lambda lib, x: x.max(0)[0],
        lambda lib, x: lib.where(x > 0, x, x), lambda lib, x: x.split(1)[0], lambda lib, x: x[[0]],
        lambda lib, x: lib.nn.functional.gelu(x), lambda lib, x: x.view(1, 2).permute(1, 0),
        lambda lib, x: x.cumsum(0), lambda lib, x: x.float(), lambda lib, x: x.flip(0),
    ],
)  # fmt: skip
def test_names_of_nodes(call: Callable[[Any, Any], Any]) -> None:
    assert (
        call(offgrad, leaf(offgrad, 1, 2)).grad_fn.name()
        == call(torch, leaf(torch, 1, 2)).grad_fn.name()
    )
