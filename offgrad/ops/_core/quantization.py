"""The arithmetic of quantized numbers: (integer - zero point) * scale."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def rounded(x: Array, scale: Any, zero_point: Any) -> Array:
    """Return the integers that stand for `x`, as floating point numbers, not limited to a range."""
    inverse = np.float32(1) / np.asarray(scale, np.float32)
    codes: Array = np.rint(np.asarray(x, np.float32) * inverse) + zero_point
    return codes


def parameters_of_range(
    lowest: Any, highest: Any, quant_min: int, quant_max: int, is_symmetric: bool = False
) -> tuple[Array, Array]:
    """Return scale and zero point with which the integers span the numbers, and 0 is exact."""
    low = np.minimum(np.asarray(lowest, np.float32), 0).astype(np.float64)
    high = np.maximum(np.asarray(highest, np.float32), 0).astype(np.float64)
    has_both = (low < 0) & (high > 0) & is_symmetric
    half = (quant_max - quant_min) // 2
    spread = np.maximum(-low / (half + 1), high / half)
    scale = np.where(has_both, spread, (high - low) / (quant_max - quant_min))
    is_usable = (scale.astype(np.float32) != 0) & np.isfinite(1 / np.where(scale == 0, 1, scale))
    scale = np.where(is_usable, scale, 0.1)
    # The end that is reached with the smaller error of rounding decides.
    from_low, from_high = quant_min - low / scale, quant_max - high / scale
    low_is_better = abs(quant_min) + abs(low / scale) < abs(quant_max) + abs(high / scale)
    zero = np.where(low_is_better, from_low, from_high)
    zero = np.rint(np.where(has_both, (quant_min + quant_max) / 2, zero))
    return scale, np.clip(zero, quant_min, quant_max).astype(np.int64)
