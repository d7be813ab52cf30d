"""Numbers beside tensors whose dtype cannot hold them, NaN bounds, extreme exponents: as torch."""

from typing import Any

import pytest

import offgrad
from tests.ops.calls import call

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")

VALUES = """
    u / 256; u / -1; 300 / u; m.tensor([200, 7], dtype=m.int16) / 100000
    m.tensor([200], dtype=m.int32) / (300 * 10**9); m.tensor([True]) / 3; u.true_divide(2.5)
    m.copysign(u, -1); m.xlogy(u, -1); m.xlogy(-1, u); m.special.xlog1py(u, 300)
    m.special.zeta(m.tensor([3], dtype=m.int8), 300)
    i + 2**63; i / 2**63; i * (2**64 - 1); i.float() + 2**63
    m.ones(60000).clamp(min=nan)[:2]; m.ones(66000).clamp(min=nan)[:2]; big.clamp(max=nan)[:2]
    big.int().clamp_min(nan)[:2]; big.clone().clamp_(max=nan)[:2]; big.clamp(nan, 1.0)[:2]
    call(m, "F.hardtanh", big, nan, 2.0)[:2]; big.double().clamp(min=nan)[:2]
    u.clone().add_(2, alpha=-1); m.sub(u, 1, alpha=-1); m.rsub(u, u, alpha=-2)
    m.addcmul(u, u, u, value=-1); m.addmm(w, w, w, alpha=-1); m.addmm(w, w, w, beta=-1)
    m.addr(w, w[0], w[0], alpha=-1); m.baddbmm(w[None], w[None], w[None], alpha=-1)
    u.index_add(0, m.tensor([0]), u[:1], alpha=-1); m.where(u > 5, -1, u)
    m.log1p(m.tensor([1e-7 + 0j, 1e-10 + 1e-10j, -1 + 1e-4j, 3 + 4j, -0.5 + 0.1j]))
    m.log1p(m.tensor([1e-17 + 1e-17j, -3 + 0j, complex(inf, 1)], dtype=m.complex128))
    s.pow(m.tensor([-32768, 2, -32768, -3], dtype=m.int16)); i.pow(m.tensor([-2**63, -1]))
    m.tensor([2.0], dtype=m.float64).float_power_(2.0)
    m.remainder(i[:0], 0); m.fmod(i[:0], 0); i[:0] // 0; i[:0].remainder(i[:1] * 0)
    m.nan_to_num(c[0]); m.addcmul(i, i, i, value=m.tensor(2)); m.add(i, i, alpha=m.tensor(2))
    i.index_add(0, i - 1, i, alpha=m.tensor(2)); m.repeat_interleave(i.int())
    m.nan_to_num(c); m.nan_to_num(c, 1.0, 2.0, -3.0); c.clone().nan_to_num_()
    call(m, "F.bilinear", m.ones(1, 2), m.ones(1, 3), m.ones(0, 2, 3))
    m.true_divide(x, 2, out=e); m.absolute(x, out=e); m.arccos(x / 9, out=e); m.lgamma(x, out=e)
    m.arctan2(x, x, out=e); m.igamma(x, x, out=e); m.digamma(x, out=e); m.i0(x, out=e)
    m.hardshrink(x, out=e); m.inverse(m.eye(2) * 2, out=e); m.logspace(0, 1, 2, out=e)
"""

ERRORS = """
    i + 10**20; i / 10**20; m.tensor([True]) + 2**70; i == 10**20; i < 10**20; i // 10**20
    m.where(i > 0, i, 10**20); i.float() + 10**40; i.clamp(max=10**20); i.pow(10**20)
    i + (-(2**63) - 1)
    m.addmm(w, w, w, alpha=300); u.add(u, alpha=300); u.pow(300); m.where(u > 0, 300, u)
    m.tensor([2.0]).float_power_(2.0); i // 0; call(m, "F.softshrink", x, inf)
    m.ones(2, 2).renorm(2, 0, nan); call(m, "F.softshrink", x, nan)
"""


def _lines(text: str) -> list[str]:
    return [each.strip() for line in text.split("\n") for each in line.split(";") if each.strip()]


def _names(m: Any) -> dict[str, Any]:
    nan, inf = float("nan"), float("inf")
    return {
        "m": m, "nan": nan, "inf": inf, "call": call,
        "u": m.tensor([200, 7, 3], dtype=m.uint8), "i": m.tensor([1, 2]),
        "s": m.tensor([5, 5, -1, -1], dtype=m.int16), "w": m.ones(2, 2, dtype=m.uint8),
        "big": m.ones(140000), "x": m.tensor([0.5, 2.0]), "e": m.empty(0),
        "c": m.tensor([complex(nan, 1), complex(inf, nan), complex(1, -inf), 2 + 3j]),
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("line", _lines(VALUES))
def test_values(line: str) -> None:
    have, want = (eval(line, _names(m)) for m in (offgrad, torch))
    assert str(have.dtype).split(".")[-1] == str(want.dtype).split(".")[-1]
    assert list(have.shape) == list(want.shape)
    torch.testing.assert_close(
        torch.from_numpy(have.numpy()), want, rtol=2e-5, atol=0, equal_nan=True
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("line", _lines(ERRORS))
def test_errors(line: str) -> None:
    with pytest.raises((RuntimeError, OverflowError)) as want:
        eval(line, _names(torch))
    with pytest.raises(want.type):
        eval(line, _names(offgrad))


def test_a_factor_of_several_elements_is_no_number() -> None:
    x, pair = offgrad.ones(2, 2), offgrad.ones(2)
    calls: list[Any] = [
        lambda: offgrad.add(x, x, alpha=pair),
        lambda: offgrad.addmm(x, x, x, beta=pair),
        lambda: offgrad.addcmul(x, x, x, value=pair),
    ]
    for run in calls:
        with pytest.raises(TypeError, match="the factor must be a number, got a float32 tensor"):
            run()
