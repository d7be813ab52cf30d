"""Gradients where a function is not differentiable, by PyTorch's rules, in their order.

1. Differentiable: the gradient. 2. Convex: the sub-gradient of minimum norm. 3. Concave: the
super-gradient of minimum norm. 4. Defined: by continuity, infinity included; one of several values.
5. Not defined: any value; here it is torch's. 6. Not a function: marked as not differentiable.

Each row gives the gradient by the rule, which both modules must return. Where torch departs from
the rule, the row gives torch's gradient, too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import e, inf, log, nan, sqrt
from typing import Any

import pytest

import offgrad

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")

# torch warns of deviations of one element.
pytestmark = pytest.mark.filterwarnings("ignore:std():UserWarning", "ignore:var():UserWarning")


@dataclass(frozen=True)
class Point:
    """A function at a point.

    Attributes:
        name: the name of the test.
        call: ``call(m, *tensors)``; where it returns several elements their sum is differentiated.
        at: the values of the tensors.
        grad: for each tensor its gradient, None for none.
        torch: torch's gradient, if it departs from the rule.
        second: whether second derivatives are compared with torch's.
    """

    name: str
    call: Callable[..., Any]
    at: Sequence[Any]
    grad: Sequence[Any]
    torch: Sequence[Any] | None = None
    second: bool = True

    def __str__(self) -> str:
        return self.name


def point(name: str, call: Callable[..., Any], at: Any, grad: Any, **options: Any) -> Point:
    """Return a point of a function of one tensor."""
    if "torch" in options:
        options["torch"] = (options["torch"],)
    return Point(name, call, (at,), (grad,), **options)


def norm(p: float, dim: Any = None) -> Callable[..., Any]:
    return lambda m, x: m.norm(x, p, dim)


ROWS = [[0.0, 0.0], [3.0, 4.0]]

DIFFERENTIABLE = [
    point("x**2 at 0", lambda m, x: x**2, [0.0, -1.0], [0.0, -2.0]),
    point("x**0 at 0 and nan", lambda m, x: x**0, [0.0, 2.0, nan], [0.0, 0.0, 0.0]),
    point("x**1 at 0", lambda m, x: x**1, [0.0], [1.0]),
    point("x**3 at 0", lambda m, x: x**3, [0.0, -2.0], [0.0, 12.0]),
    point("x**1.5 at 0", lambda m, x: x**1.5, [0.0, 4.0], [0.0, 3.0]),
    point("negative base, whole power", lambda m, x: x**-1, [-2.0], [-0.25]),
    Point("x**y, y = 0 at x = 0", lambda m, x, y: x**y, ([0.0, 2.0], [0.0, 0.0]),
          ([0.0, 0.0], [0.0, log(2)])),
    Point("x**y, y > 0 at x = 0", lambda m, x, y: x**y, ([0.0, 0.0], [2.0, 1.0]),
          ([0.0, 1.0], [0.0, 0.0])),
    Point("x**y, whole power of a negative base, x's gradient",
          lambda m, x, y: x ** y.detach(), ([-2.0], [3.0]), ([12.0], None)),
    point("0**x above 0", lambda m, x: 0.0**x, [2.0, 0.5], [0.0, 0.0]),
    point("2**x", lambda m, x: 2.0**x, [0.0], [log(2)]),
    point("e**x", lambda m, x: e**x, [1.0], [e]),
    point("prod with one zero", lambda m, x: x.prod(), [0.0, 2.0, 3.0], [6.0, 0.0, 0.0]),
    point("prod with two zeros", lambda m, x: x.prod(), [0.0, 0.0, 3.0], [0.0, 0.0, 0.0]),
    point("prod along a dim with zeros", lambda m, x: x.prod(1), [[0.0, 2.0], [0.0, 0.0]],
          [[2.0, 0.0], [0.0, 0.0]]),
    point("cumprod with zeros", lambda m, x: m.cumprod(x, 0), [2.0, 0.0, 3.0, 0.0, 5.0],
          [1.0, 8.0, 0.0, 0.0, 0.0]),
    point("var of equals", lambda m, x: x.var(), [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]),
    point("var of equals along a dim", lambda m, x: x.var(1), [[2.0, 2.0]], [[0.0, 0.0]]),
    point("sinc at 0", lambda m, x: m.sinc(x), [0.0], [0.0], second=False),
    point("floor between steps", lambda m, x: x.floor(), [0.5, -0.5], [0.0, 0.0]),
    point("sign of a real number", lambda m, x: m.sign(x), [3.0, -3.0], [0.0, 0.0],
          second=False),
    Point("where, the other branch not finite",
          lambda m, x: m.where(x > 0, x.clamp(min=0), x.sqrt().detach()), ([4.0, -1.0],),
          ([1.0, 0.0],)),
    Point("xlogy at 0", lambda m, x, y: m.xlogy(x, y), ([0.0, 1.0], [2.0, 1.0]),
          ([log(2), 0.0], [0.0, 1.0])),
    Point("fmod and remainder between steps", lambda m, x, y: m.fmod(x, y) + m.remainder(x, y),
          ([5.0, -5.0], [3.0, 3.0]), ([2.0, 2.0], [-2.0, 3.0])),
    point("polar at magnitude 0 and below",
          lambda m, r: m.view_as_real(m.polar(r, r.detach() * 0)).sum(), [0.0, -1.0, 2.0],
          [1.0, 1.0, 1.0], torch=[0.0, -1.0, 1.0], second=False),
    point("where the result is NaN elsewhere", lambda m, x: x[:1].sqrt(), [4.0, -1.0], [0.25, 0.0]),
]  # fmt: skip

SUBGRADIENT = [
    point("relu at 0", lambda m, x: m.relu(x), [0.0, -0.0, 1.0], [0.0, 0.0, 1.0]),
    point("abs at 0", lambda m, x: x.abs(), [0.0, -0.0, -2.0], [0.0, 0.0, -1.0], second=False),
    point("max of equals", lambda m, x: x.max(), [2.0, 2.0, 1.0], [0.5, 0.5, 0.0]),
    point("amax of equals", lambda m, x: x.amax(), [2.0, 2.0, 2.0, 2.0], [0.25] * 4),
    point("amax of equals along a dim", lambda m, x: x.amax(1), [[1.0, 1.0], [0.0, 1.0]],
          [[0.5, 0.5], [0.0, 1.0]]),
    point("amax of equals along two dims", lambda m, x: x.amax((0, 1)), [[1.0, 1.0], [0.0, 1.0]],
          [[1 / 3, 1 / 3], [0.0, 1 / 3]]),
    Point("maximum of equals", lambda m, x, y: m.maximum(x, y), ([1.0, 2.0], [1.0, 3.0]),
          ([0.5, 0.0], [0.5, 1.0])),
    point("clamp at the lower bound: by a sub-gradient, not the one of minimum norm",
          lambda m, x: x.clamp(min=1.0), [1.0, 0.5], [1.0, 0.0]),
    point("2-norm at 0", norm(2), [0.0, 0.0], [0.0, 0.0], second=False),
    point("2-norm along a dim at 0", norm(2, 1), ROWS, [[0.0, 0.0], [0.6, 0.8]], second=False),
    point("1-norm at 0", norm(1), [0.0, 2.0], [0.0, 1.0], second=False),
    point("1-norm along a dim at 0", norm(1, 1), ROWS, [[0.0, 0.0], [1.0, 1.0]], second=False),
    point("3-norm at 0", norm(3), [0.0, 0.0], [0.0, 0.0]),
    point("3-norm along a dim at 0", norm(3, 1), [[0.0, 0.0], [0.0, 2.0]],
          [[0.0, 0.0], [0.0, 1.0]]),
    point("1.5-norm at 0", norm(1.5), [0.0, 0.0], [0.0, 0.0], second=False),
    point("infinity norm at 0", norm(inf), [0.0, 0.0], [0.0, 0.0], second=False),
    point("infinity norm of equals", norm(inf), [-2.0, 2.0], [-0.5, 0.5], second=False),
    point("infinity norm along a dim", norm(inf, 1), ROWS, [[0.0, 0.0], [0.0, 1.0]], second=False),
    point("std of equals", lambda m, x: x.std(), [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]),
    point("std of equals along a dim", lambda m, x: x.std(1), [[2.0, 2.0], [0.0, 1.0]],
          [[0.0, 0.0], [-1 / sqrt(2), 1 / sqrt(2)]]),
    Point("hypot at the origin", lambda m, x, y: m.hypot(x, y), ([0.0, 3.0], [0.0, 0.0]),
          ([0.0, 1.0], [0.0, 0.0]), torch=([nan, 1.0], [nan, 0.0]), second=False),
    Point("dist of equals", lambda m, x, y: m.dist(x, y), ([1.0, 2.0], [1.0, 2.0]),
          ([0.0, 0.0], [0.0, 0.0]), second=False),
    point("aminmax of equals", lambda m, x: m.aminmax(x)[1], [1.0, 1.0], [0.5, 0.5]),
    point("complex abs at 0", lambda m, z: z.abs(), [0j, 3 + 4j], [0j, 0.6 + 0.8j], second=False),
]  # fmt: skip

SUPERGRADIENT = [
    point("min of equals", lambda m, x: x.min(), [1.0, 1.0, 2.0], [0.5, 0.5, 0.0]),
    point("amin of equals", lambda m, x: x.amin(0), [1.0, 1.0], [0.5, 0.5]),
    Point("minimum of equals", lambda m, x, y: m.minimum(x, y), ([1.0, 2.0], [1.0, 3.0]),
          ([0.5, 1.0], [0.5, 0.0])),
    point("-abs at 0", lambda m, x: -x.abs(), [0.0], [-0.0], second=False),
    point("-relu at 0", lambda m, x: -m.relu(x), [0.0], [-0.0]),
    point("clamp at the upper bound: by a super-gradient, not the one of minimum norm",
          lambda m, x: x.clamp(max=1.0), [1.0, 1.5], [1.0, 0.0]),
    point("minus infinity norm of equals", norm(-inf), [-2.0, 2.0], [-0.5, 0.5], second=False),
]  # fmt: skip

CONTINUITY = [
    point("sqrt at 0", lambda m, x: x.sqrt(), [0.0, 4.0], [inf, 0.25]),
    point("x**0.5 at 0", lambda m, x: x**0.5, [0.0], [inf]),
    Point("x**y, y = 0.5 at x = 0", lambda m, x, y: x**y, ([0.0], [0.5]), ([inf], [0.0]),
          second=False),
    point("rsqrt at 0", lambda m, x: x.rsqrt(), [0.0], [-inf]),
    point("reciprocal at 0", lambda m, x: x.reciprocal(), [0.0], [-inf]),
    point("x**-1 at 0", lambda m, x: x**-1, [0.0], [-inf]),
    point("1/x at 0", lambda m, x: 1 / x, [0.0], [-inf]),
    point("x/0", lambda m, x: x / 0, [1.0, -1.0], [inf, inf]),
    Point("x/y, y = 0", lambda m, x, y: x / y, ([1.0, -1.0], [0.0, 0.0]),
          ([inf, inf], [-inf, inf])),
    point("log at 0", lambda m, x: x.log(), [0.0], [inf]),
    point("log2, log10 at 0", lambda m, x: x.log2() + m.log10(x), [0.0], [inf]),
    point("log1p at -1", lambda m, x: x.log1p(), [-1.0], [inf]),
    point("asin at 1", lambda m, x: m.asin(x), [1.0], [inf]),
    point("acos at -1", lambda m, x: m.acos(x), [-1.0], [-inf]),
    point("acosh at 1", lambda m, x: m.acosh(x), [1.0], [inf]),
    point("atanh at 1", lambda m, x: m.atanh(x), [1.0], [inf]),
    point("logit at 0 and 1", lambda m, x: m.logit(x), [0.0, 1.0], [inf, inf]),
    point("erfinv at the ends", lambda m, x: m.erfinv(x), [1.0, -1.0], [inf, inf]),
    Point("atan2 at the origin", lambda m, x, y: m.atan2(x, y), ([0.0], [0.0]), ([0.0], [0.0]),
          second=False),
    point("sign at 0", lambda m, x: x.sign(), [0.0], [0.0]),
    point("floor at a step", lambda m, x: x.floor(), [1.0], [0.0]),
    point("ceil at a step", lambda m, x: x.ceil(), [1.0], [0.0]),
    point("round at a step", lambda m, x: x.round(), [0.5], [0.0]),
    point("trunc at a step", lambda m, x: x.trunc(), [-1.0], [0.0]),
    point("frac at a step", lambda m, x: m.frac(x), [1.0, -1.0], [1.0, 1.0]),
    point("rounded quotient", lambda m, x: m.div(x, 2, rounding_mode="floor"), [4.0], [0.0]),
    Point("remainder at a step", lambda m, x, y: x % y, ([6.0], [3.0]), ([1.0], [-2.0])),
    point("0-norm", norm(0), [0.0, 2.0], None, second=False),
    point("0.5-norm at 0", norm(0.5), [0.0, 0.0], [0.0, 0.0], second=False),
    point("clamp within and beyond", lambda m, x: x.clamp(-1, 1), [-2.0, -1.0, 0.0, 1.0, 2.0],
          [0.0, 1.0, 1.0, 1.0, 0.0]),
    Point("clamp between tensors", lambda m, x, a, b: x.clamp(a, b),
          ([-2.0, -1.0, 0.0, 1.0, 2.0], [-1.0] * 5, [1.0] * 5),
          ([0.0, 1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0])),
    Point("clamp, the upper bound below the lower", lambda m, x, a, b: m.clamp(x, a, b),
          ([0.0, 1.5, 3.0], [2.0] * 3, [1.0] * 3), ([0.0] * 3, [0.0] * 3, [1.0] * 3)),
    Point("clamp_min of a tensor at it", lambda m, x, a: m.clamp_min(x, a), ([1.0], [1.0]),
          ([1.0], [0.0])),
    point("clamp, the bounds equal", lambda m, x: x.clamp(1, 1), [0.0, 1.0, 2.0], [0.0, 1.0, 0.0]),
    point("max along a dim takes the first of equals", lambda m, x: x.max(0)[0], [1.0, 1.0],
          [1.0, 0.0]),
    point("min along a dim takes the first of equals", lambda m, x: x.min(0)[0], [1.0, 1.0],
          [1.0, 0.0]),
    point("median of equals", lambda m, x: m.median(x), [1.0, 1.0, 2.0], [0.5, 0.5, 0.0]),
    point("cummax takes the last of equals", lambda m, x: m.cummax(x, 0)[0], [1.0, 1.0, 0.0],
          [1.0, 2.0, 0.0]),
    Point("fmax of equals", lambda m, x, y: m.fmax(x, y), ([1.0], [1.0]), ([1.0], [0.0])),
    Point("copysign at 0", lambda m, x, y: m.copysign(x, y), ([0.0, 2.0], [-1.0, -0.0]),
          ([0.0, -1.0], [0.0, 0.0]), second=False),
    point("sgn of a complex 0", lambda m, z: m.sgn(z).real, [0j], [0j], second=False),
    point("angle of a complex 0", lambda m, z: m.angle(z), [0j, 2j], [0j, -0.5 + 0j],
          second=False),
    point("angle of a real number", lambda m, x: m.angle(x), [0.0, -1.0, -0.0], [0.0, 0.0, 0.0]),
    point("nan_to_num", lambda m, x: m.nan_to_num(x), [nan, inf, -inf, 1.0], [0.0, 0.0, 0.0, 1.0]),
    point("nansum", lambda m, x: m.nansum(x), [nan, 1.0], [0.0, 1.0]),
    point("exp, sigmoid, tanh far out", lambda m, x: x.exp() + x.sigmoid() + x.tanh(), [-inf],
          [0.0], second=False),
    Point("logaddexp of infinities", lambda m, x, y: m.logaddexp(x, y), ([-inf, inf], [0.0, 0.0]),
          ([0.0, 1.0], [1.0, 0.0]), second=False),
    point("softmax and logsumexp with -inf", lambda m, x: x.logsumexp(0), [-inf, 0.0], [0.0, 1.0],
          second=False),
]  # fmt: skip

UNDEFINED = [
    point("sqrt of -1", lambda m, x: x.sqrt(), [-1.0], [nan]),
    point("log of -1", lambda m, x: x.log(), [-1.0], [-1.0]),
    point("log2, log10, log1p below 0", lambda m, x: x.log2() + m.log10(x) + m.log1p(x - 1), [-1.0],
          [-1 / log(2) - 1 / log(10) - 1.0]),
    point("rsqrt of -1", lambda m, x: x.rsqrt(), [-1.0], [nan]),
    point("negative base, fractional power", lambda m, x: x**0.5 + x**1.5, [-1.0], [nan]),
    Point("negative base, the power's gradient", lambda m, x, y: x**y, ([-2.0, -2.0], [3.0, 2.5]),
          ([12.0, nan], [nan, nan]), second=False),
    Point("0 to a negative power", lambda m, x, y: x**y, ([0.0], [-1.0]), ([-inf], [-inf]),
          second=False),
    point("0**x at 0 and below", lambda m, x: 0.0**x, [0.0, -1.0], [0.0, -inf], second=False),
    point("(-2)**x", lambda m, x: (-2.0) ** x, [2.0], [nan], second=False),
    point("asin beyond 1", lambda m, x: m.asin(x) + m.acos(x), [2.0], [nan]),
    point("acosh below 1", lambda m, x: m.acosh(x), [0.0], [nan]),
    point("atanh beyond 1", lambda m, x: m.atanh(x), [2.0], [-1 / 3]),
    point("logit beyond 1", lambda m, x: m.logit(x), [-0.1, 1.1], [nan, nan], second=False),
    point("erfinv beyond 1", lambda m, x: m.erfinv(x), [2.0], [nan]),
    point("std and var of one", lambda m, x: x.std() + x.var(), [1.0], [nan], second=False),
    point("mean of nothing but nan", lambda m, x: m.nanmean(x), [nan], [nan]),
    point("nan: sign", lambda m, x: x.sign(), [nan], [0.0]),
    point("nan: relu", lambda m, x: m.relu(x), [nan], [1.0]),
    point("nan: abs", lambda m, x: x.abs(), [nan], [0.0], second=False),
    point("nan: clamp", lambda m, x: x.clamp(-1, 1), [nan], [0.0]),
    Point("nan: clamp by tensors", lambda m, x, a: x.clamp(min=a), ([nan, 1.0], [0.0, nan]),
          ([0.0, 0.0], [0.0, 0.0])),
    point("nan: max", lambda m, x: x.max(), [1.0, nan, nan], [0.0, 0.5, 0.5]),
    point("nan: min", lambda m, x: x.min(), [1.0, nan], [0.0, 1.0]),
    point("nan: amax", lambda m, x: x.amax(), [1.0, nan], [nan, nan]),
    point("nan: max along a dim", lambda m, x: x.max(0)[0], [1.0, nan, nan], [0.0, 1.0, 0.0]),
    point("nan: median", lambda m, x: m.median(x), [1.0, nan], [0.0, 1.0]),
    point("nan: sort", lambda m, x: m.sort(x)[0][:1], [nan, 1.0], [0.0, 1.0]),
    Point("nan: maximum", lambda m, x, y: m.maximum(x, y), ([nan, 1.0, nan], [1.0, nan, nan]),
          ([1.0, 1.0, 1.0], [1.0, 1.0, 1.0])),
    Point("nan: fmin", lambda m, x, y: m.fmin(x, y), ([nan, 1.0, nan], [1.0, nan, nan]),
          ([0.0, 1.0, 1.0], [1.0, 0.0, 0.0])),
    point("nan: exp, sqrt, log", lambda m, x: x.exp() + x.sqrt() + x.log(), [nan], [nan]),
    point("nan: norm", norm(2), [nan, 1.0], [nan, nan]),
    point("nan: x**2", lambda m, x: x**2, [nan], [nan]),
    point("nan: prod", lambda m, x: x.prod(), [nan, 1.0], [nan, nan]),
    point("nan: where takes the other", lambda m, x: m.where(x == x, x * 2, 1.0), [nan, 1.0],
          [0.0, 2.0]),
    point("nan through where's other branch: 0 times infinity",
          lambda m, x: m.where(x > 0, x.sqrt(), x * 0), [0.0], [nan], second=False),
    point("0/0", lambda m, x: x / 0, [0.0], [inf]),
    Point("x % 0", lambda m, x, y: x % y, ([1.0], [0.0]), ([1.0], [-inf]), second=False),
    point("-inf in logsumexp alone", lambda m, x: x.logsumexp(0), [-inf, -inf], [nan, nan],
          second=False),
    point("complex log of 0", lambda m, z: m.log(z).real, [0j], [complex(inf, nan)], second=False),
]  # fmt: skip


def _tensors(m: Any, at: Sequence[Any]) -> list[Any]:
    found = []
    for values in at:
        flat = str(values)
        dtype = m.complex128 if "j" in flat else m.float64
        found.append(m.tensor(values, dtype=dtype, requires_grad=True))
    return found


def _gradients(m: Any, case: Point) -> tuple[list[Any], list[Any] | None]:
    """Return the gradients, and those of their sum; None where there are none."""
    tensors = _tensors(m, case.at)
    result = case.call(m, *tensors)
    first = m.autograd.grad(result.sum(), tensors, create_graph=True, allow_unused=True)
    again = [each for each in first if each is not None and each.requires_grad]
    second = None
    if case.second and again:
        total = sum(each.sum() for each in again)
        second = m.autograd.grad(total, tensors, allow_unused=True)
    return list(first), second if second is None else list(second)


def _listed(values: Sequence[Any]) -> list[Any]:
    return [None if each is None else _flat(each.tolist()) for each in values]


def _flat(values: Any) -> list[Any]:
    """Return nested lists as one, complex numbers as their parts."""
    if isinstance(values, list):
        return [each for part in values for each in _flat(part)]
    return [values.real, values.imag] if isinstance(values, complex) else [values]


def _approximately(values: Sequence[Any]) -> list[Any]:
    return [
        None if each is None else pytest.approx(_flat(each), nan_ok=True, rel=1e-9)
        for each in values
    ]


def _check(case: Point) -> None:
    mine, second = _gradients(offgrad, case)
    theirs, their_second = _gradients(torch, case)
    assert _listed(mine) == _approximately(case.grad), "offgrad"
    assert _listed(theirs) == _approximately(case.torch or case.grad), "torch"
    if their_second is None:
        assert second is None or not any(any(each) for each in _listed(second) if each), "second"
        return
    wanted = _listed(their_second)
    # A tensor outside the graph of one has gradient zero in the other.
    have = [None] * len(wanted) if second is None else _listed(second)
    for index, (values, want) in enumerate(zip(have, wanted, strict=True)):
        for place, number in enumerate(want or []):
            if number == number:  # where torch has a number so have we
                got = values[place] if values else 0.0
                assert got == pytest.approx(number, rel=1e-9), f"second derivative {index}, {place}"


@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=str)
def test_1_the_gradient_where_there_is_one(case: Point) -> None:
    _check(case)


@pytest.mark.parametrize("case", SUBGRADIENT, ids=str)
def test_2_the_sub_gradient_of_minimum_norm_of_a_convex_function(case: Point) -> None:
    _check(case)


@pytest.mark.parametrize("case", SUPERGRADIENT, ids=str)
def test_3_the_super_gradient_of_minimum_norm_of_a_concave_function(case: Point) -> None:
    _check(case)


@pytest.mark.parametrize("case", CONTINUITY, ids=str)
def test_4_by_continuity(case: Point) -> None:
    _check(case)


@pytest.mark.parametrize("case", UNDEFINED, ids=str)
def test_5_any_value_where_the_function_is_not_defined(case: Point) -> None:
    """The value is torch's: there is no better one."""
    _check(case)


@pytest.mark.parametrize("m", [offgrad, torch], ids=["offgrad", "torch"])
def test_6_results_that_are_not_functions_are_not_differentiable(m: Any) -> None:
    probabilities = m.tensor([0.0, 0.5, 1.0], requires_grad=True)
    for sample in (m.multinomial(probabilities, 1), m.rand_like(probabilities)):
        assert not sample.requires_grad
    with pytest.raises(RuntimeError):
        m.rand_like(probabilities).sum().backward()


def test_6_bernoulli() -> None:
    """Torch records it with gradient zero; ours has none."""
    p = torch.tensor([0.0, 1.0], requires_grad=True)
    torch.bernoulli(p).sum().backward()
    assert p.grad.tolist() == [0.0, 0.0]
    q = offgrad.tensor([0.0, 1.0], requires_grad=True)
    sample = offgrad.bernoulli(q)
    assert sample.tolist() == [0.0, 1.0]
    if sample.requires_grad:
        sample.sum().backward()
        assert q.grad is not None
        assert q.grad.tolist() == [0.0, 0.0]


COMPARISONS = [
    lambda m, x: x > 0, lambda m, x: x == x, lambda m, x: m.isnan(x), lambda m, x: x.argmax(),
    lambda m, x: m.argsort(x), lambda m, x: m.signbit(x), lambda m, x: m.isclose(x, x),
    lambda m, x: m.count_nonzero(x), lambda m, x: x.any(), lambda m, x: m.isreal(x),
    lambda m, x: m.sort(x)[1], lambda m, x: m.logical_xor(x, x), lambda m, x: x.max(0)[1],
]  # fmt: skip


@pytest.mark.parametrize("m", [offgrad, torch], ids=["offgrad", "torch"])
@pytest.mark.parametrize("call", COMPARISONS)
def test_discrete_results_have_no_gradient(m: Any, call: Callable[..., Any]) -> None:
    result = call(m, m.tensor([1.0, 2.0], requires_grad=True))
    assert not result.requires_grad
    assert result.grad_fn is None
