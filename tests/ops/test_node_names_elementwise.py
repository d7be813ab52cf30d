"""Nodes of elementwise operations and reductions have torch's names and saved attributes."""

from typing import Any

import numpy as np
import pytest

import offgrad

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")

# m is the module; x, y, A, z, w (complex) and p (0 to 1) require grad;
# a, b, i and c (bool) do not.
EXPRESSIONS = """
    x + y; x + 2; m.add(x, y, alpha=3); 2 + x; x + a; x - y; x - 2; 2 - x; m.sub(x, y, alpha=2)
    m.rsub(x, y); m.rsub(x, 2, alpha=3); x * y; x * 2; x * a
    a * x; x / y; x / 2; 2 / x; x / a; a / x
    m.div(x, y, rounding_mode="floor"); m.div(x, 2, rounding_mode="trunc"); x % y; x % 2
    m.fmod(x, y); m.fmod(x, 2); m.square(x); m.true_divide(x, y); m.multiply(x, 3)
    x**y; x**2; x**2.5; x**a; a**x; 2.0**x; 0**x; m.float_power(x, 2); m.float_power(x, y)
    z * x; x * z; z + x; x - z; z / x; x / z; z**2; x**z; x * 2j; 1j - x; 2j / x; x**1j; z**x
    x * i; x + i; x / i; x**i; i / x
    -x; m.exp(x); m.exp2(x); m.expm1(x); m.log(x); m.log1p(x); m.log2(x); m.log10(x); m.sqrt(x)
    m.rsqrt(x); m.reciprocal(x); m.sigmoid(x); m.logit(p); m.logit(p, eps=0.1); m.exp(z); m.log(z)
    m.sin(x); m.cos(x); m.tan(x); m.asin(p); m.acos(p); m.atan(x); m.sinh(x); m.cosh(x); m.tanh(x)
    m.asinh(x); m.acosh(1 + x); m.atanh(p); m.sinc(x); m.deg2rad(x); m.rad2deg(x)
    m.atan2(x, y); m.hypot(x, y); m.arctan2(x, y); m.arcsin(p); m.tanh(z); m.acosh(z)
    m.floor(x); m.ceil(x); m.round(x); m.round(x, decimals=1); m.trunc(x); m.frac(x); m.sign(x)
    m.erf(x); m.erfc(x); m.erfinv(p); m.logaddexp(x, y); m.logaddexp2(x, y); m.logaddexp(z, w)
    m.xlogy(x, y); m.xlogy(2, y); m.xlogy(x, 2); m.copysign(x, y); m.copysign(x, -2)
    m.clamp(x, -1, 1); m.clamp(x, min=0); m.clamp(x, max=0.5); m.clamp(x, a, b); m.clamp(x, min=y)
    m.clamp(x, max=y); m.clamp_min(x, 0.5)
    m.clamp_max(x, 0.5); m.clamp_min(x, y); m.clamp_max(x, y)
    m.clip(x, 0, 1); m.maximum(x, y); m.minimum(x, y); m.fmax(x, y); m.fmin(x, y); m.max(x, y)
    m.nan_to_num(x); m.nan_to_num(x, 1.0)
    m.where(c, x, y); m.where(c, x, 0.5); m.where(c, 1.0, y)
    m.lerp(x, y, 0.3); m.lerp(x, y, p)
    m.addcmul(x, y, p, value=2); m.addcdiv(x, y, p); m.addcmul(a, y, b)
    m.abs(x); m.abs(z); m.absolute(x); m.sgn(x)
    m.sgn(z); m.angle(x); m.angle(z); m.conj_physical(z)
    m.view_as_real(z); m.view_as_complex(A); m.polar(x, y); m.complex(x, y); m.real(z); m.imag(z)
    m.conj(z)
    m.sum(x); m.sum(x, 0); m.sum(A, (0, 1)); m.sum(A, 1, keepdim=True); m.sum(z)
    A.sum_to_size(1, 2)
    m.nansum(x); m.nansum(A, 1); m.nanmean(x); m.nanmean(A, 0)
    m.mean(x); m.mean(A, 0); m.mean(A, (0, 1), keepdim=True); m.prod(x); m.prod(A, 1); m.prod(z)
    m.amax(x); m.amax(A, 0); m.amax(A, (0, 1), keepdim=True); m.amin(A, 1); m.max(x); m.min(x)
    m.max(A, 0)[0]; m.min(A, 1, keepdim=True)[0]; m.median(x); m.median(A, 1)[0]
    m.sort(x)[0]; m.sort(A, 0, descending=True)[0]; m.sort(x, stable=True)[0]; m.msort(x)
    m.topk(A, 1)[0]; m.kthvalue(A, 2, 0)[0]; m.kthvalue(A, 1, 1, True)[0]
    m.cumsum(A, 1); m.cumprod(A, 1); m.cummax(A, 0)[0]; m.cummin(A, 1)[0]; m.logcumsumexp(A, 1)
    m.var(x); m.var(A, 0); m.var(A, (0, 1), keepdim=True)
    m.var(x, correction=0); m.std(x); m.std(A, 1)
    m.std(A, 0, False); m.var(z); m.var(x, False); m.var(A, 0, True, True); x.var(unbiased=False)
    m.logsumexp(A, 0); m.logsumexp(A, (0, 1), keepdim=True)
    m.norm(x); m.norm(A, 2, 1); m.norm(x, 1)
    m.norm(x, 3); m.norm(x, 0); m.norm(x, float("inf")); m.norm(A, "fro"); m.norm(z, 3)
    m.norm(A, 2, (0, 1), keepdim=True); m.diff(x)
"""

# Nodes with other names than torch's: the name, and why.
NAMES = {
    "m.dist(x, y)": ("LinalgVectorNormBackward0", "a difference and its norm, two nodes"),
    "m.aminmax(x)[0]": ("AminBackward0", "two nodes, the smallest and the largest"),
    "m.var_mean(x)[0]": ("VarBackward0", "two nodes, the variance and the mean"),
    "m.std_mean(x)[0]": ("StdBackward0", "two nodes, the standard deviation and the mean"),
    "x // y": ("DivBackward2", "torch's has no derivative; ours has that of the rounded quotient"),
    "5 % x": ("RemainderBackward1", "torch's has no derivative; ours has that of two tensors"),
}

# Saved tensors that torch does not save under that name.
SLOTS = {
    "m.polar(x, y)": (
        {"angle"},
        "where the magnitude is 0 or negative the result does not tell it",
    ),
    "m.xlogy(2, y)": ({"self"}, "a number, kept as a tensor"),
    "m.xlogy(x, 2)": ({"other"}, "a number, kept as a tensor"),
}


def _expressions() -> list[str]:
    lines = EXPRESSIONS.strip().splitlines()
    return [each.strip() for line in lines for each in line.split(";")]


def _names(m: Any) -> dict[str, Any]:
    def tensor(values: Any, dtype: Any, grad: bool = True) -> Any:
        return m.tensor(values, dtype=dtype, requires_grad=grad)

    return {
        "m": m,
        "x": tensor([0.5, 1.5], m.float64),
        "y": tensor([1.25, 0.75], m.float64),
        "p": tensor([0.25, 0.75], m.float64),
        "A": tensor([[1.0, 2.0], [4.0, 3.0]], m.float64),
        "z": tensor([1 + 2j, 2 - 1j], m.complex128),
        "w": tensor([0.5 - 1j, 1 + 1j], m.complex128),
        "a": tensor([0.25, 1.25], m.float64, False),
        "b": tensor([3.0, 1.75], m.float64, False),
        "i": tensor([1, 2], m.int64, False),
        "c": tensor([True, False], m.bool, False),
    }


def _node(m: Any, expression: str) -> Any:
    return eval(expression, _names(m)).grad_fn


def _saved_by_torch(node: Any) -> dict[str, Any]:
    return {name: getattr(node, name) for name in dir(node) if name.startswith("_saved_")}


def _same(mine: Any, theirs: Any) -> bool:
    if isinstance(theirs, tuple):
        return tuple(mine) == tuple(theirs)
    return bool(mine == theirs)


@pytest.mark.parametrize("expression", _expressions())
def test_names_and_saved_values_are_torchs(expression: str) -> None:
    mine, theirs = _node(offgrad, expression), _node(torch, expression)
    assert mine.name() == theirs.name()
    known = _saved_by_torch(theirs)
    exceptions, _ = SLOTS.get(expression, (set(), ""))
    for slot in mine._saved:
        if slot in exceptions:
            continue
        value = known[f"_saved_{slot}"]
        assert isinstance(value, torch.Tensor), f"{slot} is a tensor in torch too"
        saved = getattr(mine, f"_saved_{slot}")
        assert tuple(saved.shape) == tuple(value.shape), slot
        np.testing.assert_allclose(
            saved.detach().numpy(),
            value.detach().resolve_conj().numpy(),
            1e-12,
            1e-12,
            err_msg=slot,
        )
        if value.ndim:  # a number is a tensor of the dtype computed in, torch's of its own
            assert str(saved.dtype) == str(value.dtype), slot
    for name, value in known.items():
        if isinstance(value, torch.Tensor) or value is None or not hasattr(mine, name):
            continue
        if name == "_saved_dim" and _counted_from_the_end(value):
            continue
        assert _same(getattr(mine, name), value), name


def _counted_from_the_end(dim: Any) -> bool:
    """torch shows -1 as an unsigned number; ours is counted from the front."""
    return any(each > 2**32 for each in (dim if isinstance(dim, tuple) else (dim,)))


# Values of torch's that ours must have, so that the test above does not pass for want of them.
SHOWN: dict[str, dict[str, Any]] = {
    "m.add(x, y, alpha=3)": {"alpha": 3},
    "m.rsub(x, 2, alpha=3)": {"alpha": 3},
    "x**2.5": {"exponent": 2.5},
    "2.0**x": {"self": 2.0},
    "m.div(x, y, rounding_mode='floor')": {"rounding_mode": "floor"},
    "m.clamp(x, -1, 1)": {"min": -1, "max": 1},
    "m.clamp_min(x, 0.5)": {"min": 0.5},
    "m.logit(p, eps=0.1)": {"eps": 0.1},
    "m.lerp(x, y, 0.3)": {"weight": 0.3},
    "m.addcmul(x, y, p, value=2)": {"value": 2},
    "m.sum(x)": {"self_sym_sizes": (2,)},
    "m.sum(A, 1, keepdim=True)": {"dim": (1,), "keepdim": True, "self_sym_sizes": (2, 2)},
    "m.mean(A, (0, 1))": {"dim": (0, 1), "self_sym_numel": 4},
    "m.amax(x)": {"dim": (), "keepdim": False},
    "m.max(A, 0)[0]": {"dim": 0, "keepdim": False, "self_sym_sizes": (2, 2)},
    "m.cumsum(A, 1)": {"dim": 1},
    "m.var(A, 0)": {"correction": 1, "dim": (0,), "keepdim": False},
    "m.std(A, correction=2)": {"correction": 2, "dim": None},
    "m.logsumexp(A, 0)": {"dim": (0,), "keepdim": False},
    "m.norm(x, 3)": {"ord": 3, "dim": None, "keepdim": False},
    "m.prod(A, 1)": {"dim": 1, "keepdim": False},
}


@pytest.mark.parametrize("expression", SHOWN)
def test_plain_values_are_attributes(expression: str) -> None:
    for m in (offgrad, torch):
        node = _node(m, expression)
        for name, value in SHOWN[expression].items():
            assert getattr(node, f"_saved_{name}") == value, (m.__name__, name)


@pytest.mark.parametrize("expression", NAMES)
def test_nodes_with_other_names(expression: str) -> None:
    ours, reason = NAMES[expression]
    assert reason
    assert _node(offgrad, expression).name() == ours
    assert _node(torch, expression).name() != ours


# The saved tensor is the user's own where it is an input, and another over the same memory where it
# is a result.
INPUTS: dict[str, dict[str, str]] = {
    "x * y": {"self": "x", "other": "y"},
    "x * a": {"other": "a"},
    "x * z": {"self": "x", "other": "z"},
    "i / x": {},
    "x / y": {"self": "x", "other": "y"},
    "x**y": {"self": "x", "exponent": "y"},
    "x**2": {"self": "x"},
    "m.log(x)": {"self": "x"},
    "m.clamp(x, a, b)": {"self": "x", "min": "a", "max": "b"},
    "m.maximum(x, y)": {"self": "x", "other": "y"},
    "m.where(c, x, y)": {"condition": "c"},
    "m.addcmul(x, y, p)": {"tensor1": "y", "tensor2": "p"},
    "m.lerp(x, y, p)": {"self": "x", "end": "y", "weight": "p"},
    "m.var(A, 0)": {"self": "A"},
    "m.norm(x)": {"self": "x"},
    "m.amax(A, 0)": {"self": "A"},
    "m.hypot(x, y)": {"self": "x", "other": "y"},
}


@pytest.mark.parametrize("m", [offgrad, torch], ids=["offgrad", "torch"])
@pytest.mark.parametrize("expression", INPUTS)
def test_saved_inputs_are_the_tensors_themselves(m: Any, expression: str) -> None:
    names = _names(m)
    node = eval(expression, names).grad_fn
    for slot, name in INPUTS[expression].items():
        assert getattr(node, f"_saved_{slot}") is names[name]


RESULTS = [
    "m.exp(x)", "m.sqrt(x)", "m.tanh(x)", "m.sigmoid(x)", "x**y", "2.0**x", "m.tan(x)", "m.amax(x)",
    "m.max(x)", "m.prod(x)", "m.std(x)", "m.logsumexp(x, 0)", "m.norm(x)", "m.cumprod(x, 0)",
    "m.logcumsumexp(x, 0)", "m.hypot(x, y)", "m.copysign(x, y)",
]  # fmt: skip


@pytest.mark.parametrize("m", [offgrad, torch], ids=["offgrad", "torch"])
@pytest.mark.parametrize("expression", RESULTS)
def test_a_saved_result_is_another_object_over_the_same_memory(m: Any, expression: str) -> None:
    result = eval(expression, _names(m))
    saved = result.grad_fn._saved_result
    assert saved is not result
    assert saved.data_ptr() == result.data_ptr()
    assert saved.grad_fn is result.grad_fn


@pytest.mark.parametrize("m", [offgrad, torch], ids=["offgrad", "torch"])
@pytest.mark.parametrize("call", ["max", "sort", "cummax", "median"])
def test_saved_indices_are_the_second_result(m: Any, call: str) -> None:
    values, indices = getattr(m, call)(_names(m)["A"], 0)
    assert values.grad_fn._saved_indices.data_ptr() == indices.data_ptr()
    assert not indices.requires_grad


def test_mixed_dtypes_make_one_node() -> None:
    """The operands are converted within the operation, not by nodes before it."""
    for m in (offgrad, torch):
        names = _names(m)
        half = names["x"].detach().to(m.float32).requires_grad_()
        for result in (half * names["y"], half + names["z"], half / names["z"], half ** names["y"]):
            assert [node.name().split("::")[-1] for node, _ in result.grad_fn.next_functions] == [
                "AccumulateGrad"
            ] * 2
            (grad,) = m.autograd.grad(result.abs().sum(), half)
            assert grad.dtype == m.float32
