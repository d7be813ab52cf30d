"""Fourier transforms against their definition, and their use of memory and threads."""

import re
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import (
    Tensor,
    fft,
    kernels,
    memory,
)
from offgrad.autograd import gradcheck, gradgradcheck, graph
from tests.ops.opspec import Array

LENGTHS = [1, 2, 3, 4, 5, 8, 9, 12, 17]


def _numbers(*shape: int, dtype: Any = np.complex128) -> Array:
    rng = np.random.default_rng(3)
    values = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    return (values if np.dtype(dtype).kind == "c" else values.real).astype(dtype)


def _matrix(n: int, sign: int = -1) -> Array:
    """Return w^(jk): the transform of n elements, by its definition."""
    return np.asarray(np.exp(sign * 2j * np.pi * np.outer(np.arange(n), np.arange(n)) / n))


def _close(have: Tensor, want: Array, tolerance: float = 1e-11) -> None:
    assert have.shape == want.shape
    assert np.dtype(have.dtype).kind == want.dtype.kind
    np.testing.assert_allclose(have.detach().numpy(), want, tolerance, tolerance)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize(("norm", "power"), [(None, 0), ("ortho", 0.5), ("forward", 1)])
def test_definition(n: int, norm: Any, power: float) -> None:
    z, x = _numbers(2, n), _numbers(2, n, dtype=np.float64)
    forward = _matrix(n) / n**power
    inverse = _matrix(n, 1) / n ** (1 - power)
    for each in (z, x):
        _close(fft.fft(offgrad.tensor(each), norm=norm), each @ forward)
        _close(fft.ifft(offgrad.tensor(each), norm=norm), each @ inverse)
    half = n // 2 + 1
    _close(fft.rfft(offgrad.tensor(x), norm=norm), (x @ forward)[:, :half])
    _close(fft.ihfft(offgrad.tensor(x), norm=norm), (x @ inverse)[:, :half])
    _close(fft.irfft(offgrad.tensor((x @ forward)[:, :half]), n, norm=norm), x)
    _close(fft.hfft(offgrad.tensor((x @ inverse)[:, :half]), n, norm=norm), x)


@pytest.mark.parametrize("n", LENGTHS)
def test_gradients_are_the_adjoint(n: int) -> None:
    """For y = A x and real L, dL/dx = A^H dL/dy, whose real part is the gradient of real x."""
    grad = _numbers(n)
    forward = _matrix(n)
    z = offgrad.tensor(_numbers(n), requires_grad=True)
    fft.fft(z).backward(offgrad.tensor(grad))
    assert z.grad is not None
    _close(z.grad, forward.conj().T @ grad)
    for call, rows in ((fft.fft, n), (fft.rfft, n // 2 + 1)):
        x = offgrad.tensor(_numbers(n, dtype=np.float64), requires_grad=True)
        call(x).backward(offgrad.tensor(grad[:rows]))
        assert x.grad is not None
        assert x.grad.is_contiguous()
        _close(x.grad, (forward[:rows].conj().T @ grad[:rows]).real)


@pytest.mark.parametrize("n", [6, 7])
def test_unused_imaginary_parts_have_no_gradient(n: int) -> None:
    z = offgrad.tensor(_numbers(n // 2 + 1), requires_grad=True)
    fft.irfft(z, n).backward(offgrad.tensor(_numbers(n, dtype=np.float64)))
    assert z.grad is not None
    alone = {0} if n % 2 else {0, n // 2}
    assert {k for k, value in enumerate(z.grad.numpy()) if value.imag == 0} == alone


@pytest.mark.parametrize("shape", [(4, 5), (3, 6), (2, 3, 4)])
def test_inverses(shape: tuple[int, ...]) -> None:
    z, x = offgrad.tensor(_numbers(*shape)), offgrad.tensor(_numbers(*shape, dtype=np.float64))
    for norm in (None, "ortho", "forward"):
        _close(fft.ifftn(fft.fftn(z, norm=norm), norm=norm), z.numpy())
        _close(fft.irfftn(fft.rfftn(x, norm=norm), shape, norm=norm), x.numpy())
        _close(fft.hfftn(fft.ihfftn(x, norm=norm), shape, norm=norm), x.numpy())
        _close(fft.hfft2(fft.ihfft2(x, norm=norm), shape[-2:], norm=norm), x.numpy())


def test_second_derivatives_of_a_nonlinear_function() -> None:
    """A filtered signal's energy: the spectrum's gradient depends on the signal."""

    def energy(x: Tensor, weights: Tensor) -> Any:
        spectrum = fft.rfft2(x) * weights
        return (fft.irfft2(spectrum, (3, 5)) ** 2).sum(), (fft.fft(x) * fft.ifft(x)).abs().sum()

    inputs = (
        offgrad.tensor(_numbers(3, 5, dtype=np.float64), requires_grad=True),
        offgrad.tensor(_numbers(3, 3), requires_grad=True),
    )
    assert gradcheck(energy, inputs)
    assert gradgradcheck(energy, inputs)


def test_convolution() -> None:
    a, b = _numbers(4, dtype=np.float64), _numbers(3, dtype=np.float64)
    x, y = offgrad.tensor(a, requires_grad=True), offgrad.tensor(b)
    result = fft.irfft(fft.rfft(x, 6) * fft.rfft(y, 6), 6)
    _close(result, np.convolve(a, b))
    start = _numbers(6, dtype=np.float64)
    result.backward(offgrad.tensor(start))
    assert x.grad is not None
    _close(x.grad, np.correlate(start, b))


def test_memory_order_does_not_matter() -> None:
    z = _numbers(4, 6, 5)
    for view in (z.T, z[::-1, ::2], z[:, ::-1], np.broadcast_to(z[:1], z.shape)):
        tensor = offgrad.from_numpy(view)
        _close(fft.fft(tensor, dim=0), np.fft.fft(view, axis=0))
        _close(fft.fft2(tensor, (3, 9), dim=(-1, 0)), np.fft.fft2(view, (3, 9), (-1, 0)))
        _close(fft.irfft2(tensor), np.fft.irfft2(view))
        real = offgrad.from_numpy(view.real)
        _close(fft.fft(real, 4, 1), np.fft.fft(view.real, 4, 1))
        _close(fft.rfftn(real), np.fft.rfftn(view.real))


@pytest.mark.parametrize("shape", [(0, 6), (2, 0, 4), (0, 1)])
def test_no_signals(shape: tuple[int, ...]) -> None:
    x = offgrad.zeros(shape, requires_grad=True)
    result = fft.irfft(fft.rfft(fft.ifft(fft.fft(x)).real), shape[-1])
    assert result.shape == shape
    result.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == shape


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128, np.float32, np.float64])
@pytest.mark.parametrize("dim", [0, 1])
def test_large_transforms_are_the_same_on_any_number_of_threads(dtype: Any, dim: int) -> None:
    x = _numbers(600, 520, dtype=dtype)
    functions: list[Any] = [fft.fft, fft.ifft, fft.irfft]
    if np.dtype(dtype).kind == "f":
        functions += [fft.rfft, fft.ihfft]
    threads = kernels.get_num_threads()
    try:
        for each in functions:
            found = []
            for count in (1, 3):
                kernels.set_num_threads(count)
                result = each(offgrad.tensor(x), dim=dim)
                assert memory.pool.owns(result._array)
                found.append(result.numpy().tobytes())
            assert found[0] == found[1]
            want = getattr(np.fft, each.__name__)(x.astype(np.result_type(dtype, float)), axis=dim)
            error = np.abs(result.numpy() - want).max() / np.abs(want).max()
            assert error < (1e-6 if np.dtype(dtype).char in "fF" else 1e-14)
    finally:
        kernels.set_num_threads(threads)


@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
def test_infinities_are_silent(norm: Any) -> None:
    x = offgrad.full((400, 600), float("inf"))
    for call in (fft.fft, fft.ifft, fft.rfft, fft.irfft, fft.fft2, fft.rfft2, fft.irfft2):
        assert not call(x, norm=norm).isfinite().all()


def test_nothing_is_saved() -> None:
    x = offgrad.tensor(_numbers(4, 6, dtype=np.float64), requires_grad=True)
    z = offgrad.tensor(_numbers(4, 6), requires_grad=True)

    def refuse(tensor: Tensor) -> Tensor:
        raise AssertionError("saved")

    with graph.saved_tensors_hooks(refuse, refuse):
        for name in fft.__all__:
            if "freq" not in name:
                result = getattr(fft, name)(x if "rfft" in name or "ihfft" in name else z)
                result.backward(offgrad.ones_like(result))


def test_the_input_is_unchanged_without_dims() -> None:
    z = offgrad.tensor(_numbers(2, 3))
    result = fft.fftn(z, dim=())
    assert result is not z
    assert not np.may_share_memory(result._array, z._array)
    assert result.numpy().tobytes() == z.numpy().tobytes()


@pytest.mark.parametrize("n", [0, 1, 2, 5, 8])
def test_frequencies(n: int) -> None:
    if n:
        _close(fft.fftfreq(n, 0.3, dtype=offgrad.float64), np.fft.fftfreq(n, 0.3))
        _close(fft.rfftfreq(n, 0.3, dtype=offgrad.float64), np.fft.rfftfreq(n, 0.3))
    assert fft.fftfreq(n).shape == (n,)
    assert fft.rfftfreq(n).shape == (n // 2 + 1,)
    assert fft.fftfreq(n).dtype == offgrad.float32
    assert fft.fftfreq(n, requires_grad=True).requires_grad


@pytest.mark.parametrize("dim", [None, 0, -1, (1, 0), [0, 0], (2, 1, 0)])
def test_shifts(dim: Any) -> None:
    x = _numbers(3, 4, 5)
    shifted = fft.fftshift(offgrad.tensor(x), dim)
    _close(shifted, np.fft.fftshift(x, dim), 0)
    _close(fft.ifftshift(shifted, dim), x, 0)


def test_messages_name_the_function_the_argument_and_the_fix() -> None:
    cases: dict[str, Any] = {
        "rfft expects a real input tensor, got a complex64 tensor of shape [2]": lambda: fft.rfft(
            offgrad.ones(2, dtype=offgrad.complex64)
        ),
        "irfft: Invalid number of data points (0) of the result": lambda: fft.irfft(
            offgrad.ones(1)
        ),
        "fft: Invalid number of data points (0) along dim 1": lambda: fft.fft(offgrad.ones(2, 0)),
        "fftn computes in single and double precision, got float16": lambda: fft.fftn(
            offgrad.ones(2, dtype=offgrad.float16)
        ),
        "'both'; norm must be one of backward, ortho, forward": lambda: fft.fft(
            offgrad.ones(2), norm="both"
        ),
    }
    for message, call in cases.items():
        with pytest.raises(RuntimeError, match=re.escape(message)):
            call()


def test_missing_names_say_so() -> None:
    with pytest.raises(AttributeError, match=r"offgrad\.fft has no attribute 'dct'"):
        fft.dct
