"""Tensors as text, as PyTorch prints them: the numbers of a tensor share one format."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offgrad._dtype import DTYPES
from offgrad.memory.meta import MetaArray
from offgrad.ops._core.dtypes import common_dtype, default_dtype

Array = NDArray[Any]


@dataclass
class _Options:
    """How tensors print; see `set_printoptions`."""

    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


_PROFILES: dict[str, dict[str, Any]] = {
    "default": {"precision": 4, "threshold": 1000, "edgeitems": 3, "linewidth": 80},
    "short": {"precision": 2, "threshold": 1000, "edgeitems": 2, "linewidth": 80},
    "full": {"precision": 4, "threshold": math.inf, "edgeitems": 3, "linewidth": 80},
}

_options = _Options()


def set_printoptions(
    precision: int | None = None,
    threshold: float | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
    sci_mode: bool | None = None,
) -> None:
    """Set how tensors print.

    Args:
        precision: digits behind the point, 4 by default.
        threshold: of more elements only the first and last print.
        edgeitems: how many of these at each end of a dimension.
        linewidth: characters to a line.
        profile: "default", "short" or "full": values of the options above, which these override.
        sci_mode: True or False to print with or without exponents; None to decide by the numbers.
    """
    given = {
        "precision": precision,
        "threshold": threshold,
        "edgeitems": edgeitems,
        "linewidth": linewidth,
    }
    for name, value in _PROFILES.get(profile or "", {}).items():
        setattr(_options, name, value)
    for name, value in given.items():
        if value is not None:
            setattr(_options, name, value)
    _options.sci_mode = sci_mode


class _Format:
    """One format for real numbers, and the width that they take."""

    def __init__(self, values: Array) -> None:
        self.template, self.is_float, self.width = "{}", values.dtype.kind == "f", 1
        if not self.is_float:
            shown = values.reshape(-1).tolist()
        else:
            numbers = values[np.isfinite(values) & (values != 0)].astype(np.float64)
            self.template = self._template(np.abs(numbers))
            shown = numbers.tolist()
        self.width = max([1, *(len(self.text(each)) for each in shown)])

    def _template(self, magnitudes: Array) -> str:
        """Return the format of numbers of these absolute values."""
        precision, exponents = _options.precision, _options.sci_mode
        integral = bool(np.all(magnitudes == np.floor(magnitudes)))
        if exponents is None and magnitudes.size:
            largest, smallest = float(magnitudes.max()), float(magnitudes.min())
            exponents = largest / smallest > 1000 or largest > 1e8
            exponents = exponents or (not integral and smallest < 1e-4)
        if exponents and magnitudes.size:
            return f"{{:.{precision}e}}"
        return "{:.0f}." if integral else f"{{:.{precision}f}}"

    def text(self, value: Any) -> str:
        """Return a number as text, without padding."""
        if not self.is_float:
            return str(value)
        text = self.template.format(value)
        # Numbers without a fraction end with a point, infinities and NaN do not.
        return text if math.isfinite(value) else text.rstrip(".")

    def __call__(self, value: Any) -> str:
        return self.text(value).rjust(self.width)


class _ComplexFormat:
    """One format for the real, and one for the imaginary parts."""

    def __init__(self, values: Array) -> None:
        self.real, self.imag = _Format(values.real), _Format(values.imag)
        self.width = self.real.width + self.imag.width + 1

    def __call__(self, value: complex) -> str:
        imag = self.imag(value.imag).lstrip() + "j"
        return self.real(value.real) + ("" if imag[0] in "+-" else "+") + imag


def _ends(array: Array) -> Array:
    """Return the elements that print if only the ends of dimensions do."""
    count = _options.edgeitems
    for axis, size in enumerate(array.shape):
        if size > 2 * count:
            picked = [*range(count), *range(size - count, size)]
            array = np.take(array, picked, axis)
    return array


def _vector(array: Array, show: Any, indent: int, shortened: bool) -> str:
    per_line = max(1, (_options.linewidth - indent) // (show.width + 2))
    count, values = _options.edgeitems, array.tolist()
    if shortened and len(values) > 2 * count:
        last = values[-count:] if count else []
        texts = [*map(show, values[:count]), " ...", *map(show, last)]
    else:
        texts = [show(each) for each in values]
    lines = [", ".join(texts[at : at + per_line]) for at in range(0, len(texts), per_line)]
    return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"


def _nested(array: Array, show: Any, indent: int, shortened: bool) -> str:
    """Return the numbers of an array in brackets, its lines indented."""
    if array.ndim == 0:
        return str(show(array.tolist()))
    if array.ndim == 1:
        return _vector(array, show, indent, shortened)
    count = _options.edgeitems

    def rows(indices: Any) -> list[str]:
        return [_nested(array[each], show, indent + 1, shortened) for each in indices]

    if shortened and len(array) > 2 * count:
        texts = [*rows(range(count)), "...", *rows(range(len(array) - count, len(array)))]
    else:
        texts = rows(range(len(array)))
    return "[" + ("," + "\n" * (array.ndim - 1) + " " * (indent + 1)).join(texts) + "]"


def _numbers(array: Array, indent: int) -> str:
    if array.dtype.kind == "V" or (array.dtype.kind == "f" and array.itemsize == 1):
        array = array.astype(np.float32)  # ml_dtypes' bfloat16 and float8
    shortened = array.size > _options.threshold
    shown = _ends(array) if shortened else array
    show = _ComplexFormat(shown) if array.dtype.kind == "c" else _Format(shown)
    return _nested(array, show, indent, shortened)


def text_of(tensor: Any, contents: str | None = None) -> str:
    """Return the text of a tensor; `contents` replaces its numbers."""
    array = tensor._array
    kind = type(tensor).__name__
    prefix = "tensor(" if kind in ("Tensor", "Parameter", "Buffer") else f"{kind}("
    notes = []
    default = default_dtype()
    has_values = type(array) is not MetaArray
    if not has_values:
        notes += ["device='meta'", f"size={tuple(array.shape)}"]
    elif array.size == 0 and array.ndim != 1:
        notes.append(f"size={tuple(array.shape)}")
    defaults = (default, np.dtype(np.int64), np.dtype(np.bool_), common_dtype(1j, 1.0))
    # Without numbers the dtype of integers does not show.
    if array.dtype not in (defaults if array.size and has_values else defaults[:1]):
        notes.append(f"dtype={DTYPES[array.dtype]}")
    try:
        node = tensor.grad_fn
    except RuntimeError:  # the history of a view that cannot follow its base
        notes.append("grad_fn=<Invalid>")
    else:
        if node is not None:
            notes.append(f"grad_fn=<{node.name()}>")
        elif tensor._requires_grad:
            notes.append("requires_grad=True")
    if contents is None and not has_values:
        contents = "..."
    elif contents is None:
        contents = _numbers(array, len(prefix)) if array.size else "[]"
    text = prefix + contents
    used = len(text) - text.rfind("\n") + 1
    for note in notes:
        if used + len(note) + 2 > _options.linewidth:
            text += ",\n" + " " * len(prefix) + note
            used = len(prefix) + len(note)
        else:
            text += ", " + note
            used += len(note) + 2
    return text + ")"
