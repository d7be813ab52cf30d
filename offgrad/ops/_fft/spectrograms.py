"""Short-time Fourier transforms, and the windows that they use."""

from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad._warning import warn_program
from offgrad.autograd.op import Array
from offgrad.autograd.tensor_base import describe, wrap
from offgrad.ops._core.autocast import full_precision
from offgrad.ops._core.dims import integer
from offgrad.ops._core.dtypes import category, check_tensor, default_dtype
from offgrad.ops._core.factories import placed, set_requires_grad
from offgrad.ops._elementwise.complex_numbers import view_as_real
from offgrad.ops._fft.transforms import fft, ifft, irfft, rfft

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "bartlett_window",
    "blackman_window",
    "hamming_window",
    "hann_window",
    "istft",
    "kaiser_window",
    "stft",
]


def _window(
    length: int, periodic: bool, formula: Any, where: str, dtype: Any, device: Any,
    requires_grad: bool,
) -> "Tensor":  # fmt: skip
    """Return `formula` of positions from 0 to 1; a periodic window lacks the last point."""
    kind = np.dtype(default_dtype() if dtype is None else dtype)
    if category(kind) != 2:
        raise RuntimeError(f"{where}(): a floating point dtype is needed, got {kind.name}")
    count = integer(length, where, "window_length")
    if count < 0:
        raise RuntimeError(f"{where} requires non-negative window_length, got {count}")
    values: Array = np.ones(count)
    if count > 1:
        values = formula(np.arange(count) / (count if periodic else count - 1))
    window = placed(wrap(np.asarray(values).astype(kind)), device)
    return set_requires_grad(window, requires_grad)


def _cosines(*factors: float) -> Any:
    def formula(at: Array) -> Array:
        terms = [factor * np.cos(2 * np.pi * k * at) for k, factor in enumerate(factors)]
        return np.asarray(sum(terms))

    return formula


def hann_window(
    window_length: int,
    periodic: bool = True,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
) -> "Tensor":
    """Return the Hann window: ``0.5 - 0.5 cos(2 pi n / N)``.

    Args:
        window_length: the number of points.
        periodic: whether the window is one period, N being its length; else it is symmetric.
        dtype: floating point; the default dtype if None.
        layout: accepted.
        device: the CPU.
        pin_memory: accepted.
        requires_grad: whether it requires grad.

    Raises:
        RuntimeError: for another dtype, or a negative length.
    """
    formula = _cosines(0.5, -0.5)
    return _window(window_length, periodic, formula, "hann_window", dtype, device, requires_grad)


def hamming_window(
    window_length: int,
    periodic: bool = True,
    alpha: float = 0.54,
    beta: float = 0.46,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
) -> "Tensor":
    """Return the Hamming window: ``alpha - beta cos(2 pi n / N)``; see `hann_window`."""
    formula = _cosines(alpha, -beta)
    return _window(window_length, periodic, formula, "hamming_window", dtype, device, requires_grad)


def blackman_window(
    window_length: int,
    periodic: bool = True,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
) -> "Tensor":
    """Return the Blackman window, a sum of three cosines; see `hann_window`."""
    formula = _cosines(0.42, -0.5, 0.08)
    name = "blackman_window"
    return _window(window_length, periodic, formula, name, dtype, device, requires_grad)


def bartlett_window(
    window_length: int,
    periodic: bool = True,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
) -> "Tensor":
    """Return the triangular window; see `hann_window`."""
    formula = lambda at: 1 - np.abs(2 * at - 1)
    name = "bartlett_window"
    return _window(window_length, periodic, formula, name, dtype, device, requires_grad)


def kaiser_window(
    window_length: int,
    periodic: bool = True,
    beta: float = 12.0,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
) -> "Tensor":
    """Return the Kaiser window of shape `beta`; see `hann_window`."""
    formula = lambda at: np.i0(beta * np.sqrt(np.maximum(1 - (2 * at - 1) ** 2, 0))) / np.i0(beta)
    return _window(window_length, periodic, formula, "kaiser_window", dtype, device, requires_grad)


def _reflected(x: "Tensor", count: int, mode: str) -> "Tensor":
    """Return `x` [B, L] with `count` elements more at both ends."""
    size = x._array.shape[1]
    at = np.arange(-count, size + count)
    if mode == "constant":
        inside = (at >= 0) & (at < size)
        padded = x.index_select(1, wrap(np.where(inside, at, 0)))
        return padded.masked_fill(wrap(~inside), 0)
    if mode == "reflect":
        if count >= size:
            raise RuntimeError(
                "stft: the padding on each side must be shorter than the signal, got "
                f"{count} for a {describe(x)}"
            )
        at = size - 1 - np.abs(size - 1 - np.abs(at))
    elif mode == "replicate":
        at = np.clip(at, 0, size - 1)
    elif mode == "circular":
        at = at % size
    else:
        raise NotImplementedError(f"stft: Unrecognised padding mode {mode}")
    return x.index_select(1, wrap(at))


def _full_window(window: "Tensor | None", length: int, n_fft: int, where: str) -> "Tensor | None":
    """Return the window with zeros around it to the length `n_fft`; None for ones."""
    if window is None:
        if length == n_fft:
            return None
        window = wrap(np.ones(length, default_dtype()))
    if window._array.shape != (length,):
        raise RuntimeError(
            f"{where}: window must have win_length={length} elements in one dimension, got a "
            f"{describe(window)}"
        )
    if length == n_fft:
        return window
    before = (n_fft - length) // 2
    zeros = window.new_zeros(n_fft)
    return zeros.index_copy(0, wrap(np.arange(before, before + length)), window)


def _lengths(
    n_fft: int, hop_length: int | None, win_length: int | None, where: str
) -> tuple[int, int]:
    hop = n_fft // 4 if hop_length is None else hop_length
    length = n_fft if win_length is None else win_length
    if hop <= 0:
        raise RuntimeError(f"{where}: expected hop_length > 0, but got hop_length={hop}")
    if not 0 < length <= n_fft:
        raise RuntimeError(
            f"{where}: expected 0 < win_length <= n_fft, but got win_length={length}, n_fft={n_fft}"
        )
    return hop, length


@full_precision
def stft(
    input: "Tensor",
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: "Tensor | None" = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> "Tensor":
    """Return the Fourier transforms of overlapping frames of a signal.

    Args:
        input: shape [L] or [B, L].
        n_fft: the length of a frame.
        hop_length: the distance of frames; a quarter of `n_fft` by default.
        win_length: the length of the window; `n_fft` by default.
        window: what frames are multiplied with; ones by default.
        center: whether frames are centred on multiples of the distance, the signal continued at
            both ends as `pad_mode` says; else they begin there.
        pad_mode: "reflect", "replicate", "circular" or "constant", for zeros.
        normalized: whether to divide by the root of `n_fft`.
        onesided: whether to leave out the half that follows from the other; by default for real
            signals and windows.
        return_complex: whether to return complex numbers; else pairs of real ones in a last
            dimension. It must be given for real signals and windows.
        align_to_window: accepted if `center` is False.

    Returns:
        Shape [frequencies, frames] or [B, frequencies, frames].

    Raises:
        RuntimeError: if sizes do not fit.
    """
    x = check_tensor(input, "stft")
    hop, length = _lengths(n_fft, hop_length, win_length, "stft")
    if x._array.ndim not in (1, 2):
        raise RuntimeError(f"stft needs a 1D or 2D tensor, got a {describe(x)}")
    is_complex = x._array.dtype.kind == "c" or (
        window is not None and window._array.dtype.kind == "c"
    )
    if return_complex is None:
        if not is_complex:
            raise RuntimeError(
                "stft of a real signal needs return_complex=True, or False for pairs of reals"
            )
        return_complex = True
    if window is None:
        warn_program(
            "stft without a window cuts frames sharply, so that frequencies leak into their "
            "neighbours; consider offgrad.hann_window",
        )
    signal = x if x._array.ndim == 2 else x.unsqueeze(0)
    if center:
        signal = _reflected(signal, n_fft // 2, pad_mode)
    if not 0 < n_fft <= signal._array.shape[1]:
        raise RuntimeError(
            f"stft: expected 0 < n_fft <= {signal._array.shape[1]}, but got n_fft={n_fft}"
        )
    full = _full_window(window, length, n_fft, "stft")
    frames = signal.unfold(1, n_fft, hop)
    if full is not None:
        frames = frames * full
    half = not is_complex if onesided is None else onesided
    if half and is_complex:
        raise RuntimeError("stft: onesided=True needs a real input and a real window")
    norm = "ortho" if normalized else None
    spectra = (rfft if half else fft)(frames, norm=norm).transpose(1, 2)
    spectra = spectra if x._array.ndim == 2 else spectra.squeeze(0)
    return spectra if return_complex else view_as_real(spectra)


def istft(
    input: "Tensor",
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: "Tensor | None" = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> "Tensor":
    """Return the signal of which `stft` with the same arguments gives `input`.

    Args:
        input: complex, shape [frequencies, frames] or [B, frequencies, frames].
        n_fft: as in `stft`, as the arguments up to `onesided`.
        hop_length: the distance of frames.
        win_length: the length of the window.
        window: what frames were multiplied with.
        center: whether frames were centred.
        normalized: whether they were divided by the root of `n_fft`.
        onesided: whether half of the frequencies is left out; by default if their number says so.
        length: of the signal; by default what the frames hold.
        return_complex: whether the signal is complex.

    Raises:
        RuntimeError: if sizes do not fit, or windows leave a sample out.
    """
    x = check_tensor(input, "istft")
    hop, win = _lengths(n_fft, hop_length, win_length, "istft")
    if x._array.dtype.kind != "c" or x._array.ndim not in (2, 3) or not x._array.size:
        raise RuntimeError(
            "istft takes the complex numbers that stft returns with return_complex=True, got a "
            f"{describe(x)}"
        )
    batch = x if x._array.ndim == 3 else x.unsqueeze(0)
    n_frequencies, n_frames = batch._array.shape[1:]
    half = n_frequencies != n_fft if onesided is None else onesided
    if n_frequencies != (n_fft // 2 + 1 if half else n_fft):
        raise RuntimeError(
            f"istft: the number of frequencies, the size at -2, does not fit n_fft={n_fft}: got a "
            f"{describe(x)}"
        )
    norm = "ortho" if normalized else None
    spectra = batch.transpose(1, 2)
    if return_complex:
        frames = ifft(spectra, norm=norm)
    else:  # the first half of two-sided frequencies, as PyTorch
        frames = irfft(spectra[..., : n_fft // 2 + 1], n_fft, norm=norm)
    full = _full_window(window, win, n_fft, "istft")
    if full is None:
        full = wrap(np.ones(n_fft, frames._array.real.dtype))
    total = n_fft + hop * (n_frames - 1)
    at = wrap((np.arange(n_frames)[:, None] * hop + np.arange(n_fft)).reshape(-1))
    flat = (frames * full).reshape(len(batch._array), -1)
    signal = flat.new_zeros((len(batch._array), total)).index_add(1, at, flat)
    squares = (full * full).expand(n_frames, n_fft).reshape(-1)
    envelope = squares.new_zeros(total).index_add(0, at, squares)
    start = n_fft // 2 if center else 0
    if length is not None:
        stop = start + length
    else:
        stop = total - n_fft // 2 if center else total
    kept = envelope[start : min(stop, total)]
    if not (np.abs(kept._array) > 1e-11).all():
        raise RuntimeError("istft: window overlap add min: the windows leave samples out")
    signal = signal[:, start : min(stop, total)] / kept
    if stop > total:
        zeros = signal.new_zeros((len(batch._array), stop - start))
        signal = zeros.index_copy(1, wrap(np.arange(total - start)), signal)
    return signal if x._array.ndim == 3 else signal.squeeze(0)
