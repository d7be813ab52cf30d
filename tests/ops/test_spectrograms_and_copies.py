"""Short-time Fourier transforms, their windows, and copies of views: the same as torch's."""

from typing import Any

import numpy as np
import pytest

import offgrad

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")

X = np.random.default_rng(0).standard_normal((2, 50))
W = np.hanning(12) + 0.1

CALLS = """
    m.stft(x, 12, return_complex=True)
    m.stft(x[0], 12, 3, window=w, return_complex=True)
    m.stft(x, 16, 4, 12, w, center=False, return_complex=True)
    m.stft(x, 16, 4, 12, w, normalized=True, onesided=False, return_complex=True)
    m.stft(x, 12, 4, window=w, return_complex=False, pad_mode='constant')
    x.stft(12, window=w, return_complex=True, pad_mode='replicate')
    m.stft(x + 0j, 12, window=w, pad_mode='circular')
    m.istft(m.stft(x, 12, 3, window=w, return_complex=True), 12, 3, window=w)
    m.istft(m.stft(x, 16, 4, 12, w, return_complex=True), 16, 4, 12, w, length=50)
    m.istft(m.stft(x, 12, 3, window=w, return_complex=True), 12, 3, window=w, length=60)
    m.istft(m.stft(x[0], 8, 2, None, w[:8], True, 'reflect', True, False, True), 8, 2, None, w[:8])
    m.istft(m.stft(x + 0j, 12, 3, window=w), 12, 3, window=w, return_complex=True)
    m.view_copy(x, (50, 2))
    m.select_copy(x, 0, 1)
    m.slice_copy(x, 1, 2, 9, 3)
    m.slice_copy(x, -1, 0, 5)
    m.unfold_copy(x, 1, 4, 2)
    m.split_copy(x, 20, 1)[1]
    m.split_with_sizes_copy(x, [20, 30], 1)[0]
    m.unbind_copy(x)[1]
    m.expand_copy(x[:1], (3, 50))
    m.squeeze_copy(x[:1])
    m.unsqueeze_copy(x, 0)
    m.t_copy(x)
    m.transpose_copy(x, 0, 1)
    m.permute_copy(x, (1, 0))
    m.as_strided_copy(x, (2, 2), (1, 3))
    m.diagonal_copy(x)
    m.alias_copy(x)
    m.narrow_copy(x, 1, 2, 3)
    x.narrow_copy(1, 2, 3)
    m.view_as_real_copy(m.complex(x, x))
    m.adjoint(m.complex(x, x))
""".strip().splitlines()


def outcomes(m: Any, text: str) -> list[Any]:
    x, w = m.tensor(X, requires_grad=True), m.tensor(W, requires_grad=True)
    result = eval(text, {"m": m, "x": x, "w": w})
    grads = m.autograd.grad((result * result.conj()).real.sum(), [x, w], allow_unused=True)
    return [result, *(each for each in grads if each is not None)]


@pytest.mark.parametrize("text", [each.strip() for each in CALLS])
@pytest.mark.filterwarnings("ignore")
def test_same_as_torch(text: str) -> None:
    for have, want in zip(outcomes(offgrad, text), outcomes(torch, text), strict=True):
        mine, theirs = (each.detach().resolve_conj().numpy() for each in (have, want))
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, 1e-9, 1e-9)


@pytest.mark.parametrize("name", ["hann", "hamming", "blackman", "bartlett", "kaiser"])
def test_windows(name: str) -> None:
    for count in (0, 1, 2, 7):
        samples: list[dict[str, Any]] = [{}, {"periodic": False}, {"dtype": "float64"}]
        for options in samples:
            made = []
            for m in (offgrad, torch):
                chosen = {k: getattr(m, v) if k == "dtype" else v for k, v in options.items()}
                made.append(getattr(m, f"{name}_window")(count, **chosen).numpy())
            assert made[0].dtype == made[1].dtype
            np.testing.assert_allclose(made[0], made[1], 1e-5, 1e-6)


ERRORS = """
    m.stft(x, 12)
    m.stft(x, 60, center=False, return_complex=True)
    m.stft(x, 12, 0, return_complex=True)
    m.stft(x, 12, 3, 20, return_complex=True)
    m.stft(x, 12, window=w[:5], return_complex=True)
    m.stft(x[None], 12, return_complex=True)
    m.istft(x, 12)
    m.istft(m.complex(x, x), 12)
    m.hann_window(-1)
    m.hann_window(3, dtype=m.int64)
""".strip().splitlines()


@pytest.mark.parametrize("text", [each.strip() for each in ERRORS])
@pytest.mark.filterwarnings("ignore")
def test_errors_are_those_of_torch(text: str) -> None:
    raised = []
    for m in (offgrad, torch):
        with pytest.raises(Exception) as info:
            eval(text, {"m": m, "x": m.tensor(X), "w": m.tensor(W)})
        raised.append(info.type)
    assert raised[0] is raised[1]
