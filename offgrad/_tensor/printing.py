"""Tensors as text. As in PyTorch a tensor's numbers share one format, with four decimals."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_THRESHOLD, _EDGE_ITEMS, _LINE_WIDTH, _DECIMALS = 1000, 3, 80, 4


def numbers(array: NDArray[Any], prefix: str) -> str:
    """Return the numbers of an array in brackets; of a large array the first and the last."""
    if array.dtype.kind == "V":
        # ml_dtypes' bfloat16.
        array = array.astype(np.float32)
    formatter = {"float_kind": _float_format(_printed(array))} if array.dtype.kind == "f" else None
    return np.array2string(
        array,
        max_line_width=_LINE_WIDTH,
        precision=_DECIMALS,
        separator=", ",
        prefix=prefix,
        formatter=formatter,  # type: ignore[arg-type]
        threshold=_THRESHOLD,
        edgeitems=_EDGE_ITEMS,
    )


def _printed(array: NDArray[Any]) -> NDArray[Any]:
    """Return the printed elements of an array."""
    if array.size > _THRESHOLD:
        for axis, size in enumerate(array.shape):
            if size > 2 * _EDGE_ITEMS:
                ends = [*range(_EDGE_ITEMS), *range(size - _EDGE_ITEMS, size)]
                array = np.take(array, ends, axis)
    return array


def _float_format(values: NDArray[Any]) -> Callable[[Any], str]:
    """Return a function that formats each of `values` with the same width."""
    nonzero = values[np.isfinite(values) & (values != 0)].astype(np.float64)
    magnitudes = np.abs(nonzero)
    template = "{:.0f}."
    if magnitudes.size:
        largest, smallest = float(magnitudes.max()), float(magnitudes.min())
        integral = bool(np.all(magnitudes == np.floor(magnitudes)))
        scientific = largest / smallest > 1000 or largest > 1e8
        if scientific or (not integral and smallest < 1e-4):
            template = f"{{:.{_DECIMALS}e}}"
        elif not integral:
            template = f"{{:.{_DECIMALS}f}}"

    def format_one(value: Any) -> str:
        return template.format(value) if np.isfinite(value) else str(float(value))

    width = max((len(format_one(each)) for each in nonzero.tolist()), default=0)
    return lambda value: format_one(value).rjust(width if values.ndim else 0)
