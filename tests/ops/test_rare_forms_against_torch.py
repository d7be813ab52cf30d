"""Forms of calls that PyTorch takes: old argument orders, NumPy's names and integers, out=."""

from typing import Any

import numpy as np
import pytest

import offgrad

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")

VALUES = """
    m.addcmul(a, 0.5, b, c); m.addcdiv(a, 0.5, b, c); a.clone().addcmul_(0.5, b, c)
    a.clone().addcdiv_(-0.5, b, c); a.addcmul(0.5, b, c); a.clone().add_(0.5, b); m.add(a, 0.5, b)
    a.clone().sub_(0.5, b); m.sub(a, 0.5, b); a.add(2, b)
    A[m.tensor(1, dtype=m.int16)]; A[m.tensor(1, dtype=m.int8)]; A[m.tensor(1, dtype=m.int32)]
    m.ones(np.array(3)); m.ones((np.array(3), 2)); A.view(np.array(2), -1)
    m.zeros(np.int64(2), np.array(1)); m.tensor(((7, np.array(5)), (np.array(9), 5.0)))
    m.zeros(3, 5).gather(1, none); m.zeros(5).gather(0, none.byte())
    m.zeros(3, 5).scatter_(1, none, none.float()); m.zeros(3, 5).scatter_(1, none, 1.0)
    m.zeros(3, 5).scatter_add_(1, none, none.float())
    m.zeros(3, 5).scatter_reduce_(1, none, none.float(), "sum")
    A.to(memory_format=m.preserve_format); A.to("cpu", m.float64, memory_format=m.preserve_format)
    m.tensor(3.0).index_reduce(0, zero, m.tensor(2.0), "prod")
    m.tensor(3.0).index_reduce(0, zero, m.tensor(2.0), "mean")
    m.stack(m.unravel_index(m.tensor(255, dtype=m.uint8), (6, 7, 8, 9)))
    A.int().type(m.Tensor); A.new(size=(3, 4)).zero_(); m.ldexp(b.half(), m.tensor([1, 2]))
    m.block_diag(); np.ones(2, np.float32) / b; m.tensor([float(m.tensor(1 + 0j))])
    m.tensor([int(m.tensor(3 + 0j))]); m.tensor([[1, 2][m.tensor(True)]])
    m.range(0, 3, out=m.empty(0)); m.fft.fft(x, out=m.empty(2, dtype=m.complex64))
    m.index_add(a, 0, zero, m.ones(1), out=m.empty(2)); m.polygamma(1, a, out=m.empty(2))
    m.arange(8, out=m.zeros(2, 2, 2)); m.linspace(1, 4, 4, out=m.zeros(2, 2))
    m.arange(2.1, -2.9, -1.0, dtype=m.uint8); m.arange(0, -8.1, -4, dtype=m.int16)
    m.arange(0, -8.1, -4, dtype=m.int64); m.arange(0.9, 3.1, 1.1, dtype=m.int32)
    m.linspace(4.3, -3, 50, dtype=m.int64); m.linspace(2.7, 9.9, 6, dtype=m.int32)
    m.logspace(0, 1.2, 4, dtype=m.int64); m.logspace(2.7, 9.9, 6, 2.0, dtype=m.int32)
    m.linspace(3, 7, 1); m.logspace(1, 7, 1); m.linspace(0, 1, 0)
    m.clamp_max(t, f); m.clamp_min(t, f); m.clamp(t, min=f)
    m.cov(A, aweights=m.tensor([0.5, 0.25, 0.75], dtype=m.float64))
    m.gradient(b * 3, spacing=None)[0]
    m.tensor(isinstance(m.gradient(b), tuple))
    m.cov(A * 1j + A, aweights=m.tensor([0.5, 0.25, 0.75]), correction=0)
    m.cov(A.bfloat16(), aweights=m.tensor([0.5, 0.25, 0.75]))
    m.istft(S, 10, window=m.ones(10)); m.istft(S[:7], 7, window=m.ones(7))
    m.expand_copy(m.tensor(3.0), ())
    m.quantile(b, q); m.autograd.grad(m.quantile(b, q).sum(), q)[0]
    m.autograd.grad(m.nanquantile(A, q, dim=1).sum(), q)[0]
    m.tensor(A.unsqueeze(1).stride()); m.tensor(A.t().unsqueeze(0).stride())
    m.tensor(m.tensor(3.0)[None].stride()); m.tensor(m.empty(2, 0, 3).stride())
    A.softmax(axis=1); m.softmax(A, axis=0); A.unsqueeze(axis=0); A.topk(1, axis=1).values
    A.index_select(axis=1, index=m.tensor([1])); m.chunk(A, 3, axis=1)[1]; A.unbind(axis=1)[2]
    m.special.chebyshev_polynomial_t(b, m.tensor(2.9)); m.special.hermite_polynomial_h(b, 3.9)
    m.histogram(m.zeros(0), 3).bin_edges; m.histogramdd(m.zeros(0, 2), [1, 2]).bin_edges[1]
    m.linalg.vander(m.tensor(3.0), N=3); m.linalg.vander(m.tensor([1, 2]).int())
    m.trace(m.ones(3, 3, dtype=m.uint8))
    m.tensordot(m.ones(1, 2, dtype=m.uint8), m.ones(2, 3, dtype=m.uint8), ([0], [0]))
    m.linalg.matrix_norm(A.bfloat16(), "fro"); m.linalg.norm(A.half(), 1)
    m.inner(A.double(), m.tensor(2)); m.inner(m.tensor(2), b)
    m.linalg.ldl_solve(m.ones(0, 0), m.ones(0).int(), m.ones(0, 5))
    m.nn.functional.multi_margin_loss(m.arange(5.0), m.tensor([2]), reduction="none")
    m.nn.functional.multi_margin_loss(m.arange(5.0), m.tensor(2), reduction="none")
    m.nn.functional.avg_pool3d(m.arange(-11, 5).view(1, 1, 2, 2, 4), 2)
    m.ormqr(A.tril(-1)[:2], m.tensor([0.5, 0.25]), A[:2]); m.searchsorted(*[m.ones(0, 0, 2)] * 2)
    m.native_group_norm(m.ones(0, 2), None, None, 0, 2, 1, 1, 1e-5)[1]
    m.tensor(A.t().ravel().stride()); m.tensor(A.sort(0, descending=True).values.stride())
    m.tensor(A.topk(2, 0).indices.stride()); m.tensor(A.kthvalue(2, 0).values.stride())
    m.tensor(A.median(1).values.stride()); m.tensor(m.transpose_copy(A, 0, 1).stride())
    m.tensor(m.nonzero(A, as_tuple=True)[1].stride()); m.tensor(m.unbind_copy(A, 1)[0].stride())
"""

ERRORS = """
    x.clone().abs_(); float(m.tensor(1 + 0.5j)); A.sum_to_size(5, 2, 3)
    m.zeros(2).bernoulli_(m.tensor([0.5, -1])); m.cov(A, aweights=m.tensor([1, 2, 1]))
    m.linalg.matrix_norm(A.bfloat16(), "nuc"); m.linalg.matrix_norm(A.int(), "fro")
    m.nn.functional.multi_margin_loss(A, m.zeros(2, dtype=m.int64), weight=m.tensor(1.0))
    m.nn.functional.linear_cross_entropy(m.ones(3), m.ones(2, 4, 3), m.zeros(2, dtype=m.int64))
"""


def _lines(text: str) -> list[str]:
    return [each.strip() for line in text.split("\n") for each in line.split(";") if each.strip()]


def _names(m: Any) -> dict[str, Any]:
    spectrum = np.random.default_rng(0).normal(size=(10, 2, 2)) @ [1, 1j]
    return {
        "m": m, "np": np, "a": m.ones(2), "b": m.tensor([2.0, 3.0]), "c": m.tensor([4.0, 5.0]),
        "A": m.arange(6.0).reshape(2, 3), "none": m.empty(0, dtype=m.long), "zero": m.tensor([0]),
        "x": m.tensor([1 + 2j, 3 + 4j]), "t": m.tensor([True, False]), "f": m.tensor([False] * 2),
        "S": m.from_numpy(spectrum), "q": m.tensor([0.2, 0.7], requires_grad=True),
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("line", _lines(VALUES))
def test_values(line: str) -> None:
    have, want = (eval(line, _names(m)).detach() for m in (offgrad, torch))
    assert str(have.dtype).split(".")[-1] == str(want.dtype).split(".")[-1]
    assert list(have.shape) == list(want.shape)
    if have.dtype == offgrad.bfloat16:
        have, want = have.float(), want.float()
    torch.testing.assert_close(torch.from_numpy(have.numpy()), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("line", _lines(ERRORS))
def test_errors(line: str) -> None:
    with pytest.raises(Exception) as want:
        eval(line, _names(torch))
    with pytest.raises(want.type):
        eval(line, _names(offgrad))


def test_an_old_form_warns_and_takes_a_number_alone() -> None:
    x = offgrad.ones(2)
    with pytest.warns(UserWarning, match="alpha="):
        assert x.add(2, x).tolist() == [3, 3]
    with pytest.raises(TypeError, match="value="):
        x.addcmul(x, x, x)


def test_parts_of_complex_numbers_can_be_set() -> None:
    x = offgrad.tensor([1 + 2j, 3 + 4j])
    x.real = 0
    x.imag = offgrad.tensor([7.0, 8.0])
    assert x.tolist() == [7j, 8j]
    y = offgrad.ones(2)
    y.real = offgrad.tensor([2.0, 3.0])
    assert y.tolist() == [2, 3]
    with pytest.raises(RuntimeError, match="imag"):
        y.imag = 1
    leaf: Any = offgrad.tensor([3 + 4j], requires_grad=True)
    z = leaf * 1
    z.real = offgrad.zeros(1)
    z.abs().sum().backward()
    assert leaf.grad.tolist() == [1j]


def test_out_of_as_many_elements_keeps_its_shape_and_neighbours() -> None:
    whole = offgrad.zeros(2, 3)
    offgrad.arange(0, 4, out=whole.narrow(1, 1, 2))
    assert whole.tolist() == [[0, 0, 1], [0, 2, 3]]


def test_limits_of_a_dtype_are_equal() -> None:
    assert offgrad.finfo() == offgrad.finfo(offgrad.float32) != offgrad.finfo(offgrad.float64)
    assert offgrad.iinfo(offgrad.int8) == offgrad.iinfo(offgrad.int8) != offgrad.finfo()


def test_random_integers_of_bfloat16() -> None:
    values = offgrad.empty(1000, dtype=offgrad.bfloat16).random_()
    assert values.min() >= 0
    assert values.max() <= 256
