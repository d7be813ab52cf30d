"""OpSpec: the facts of an operation that its tests need, in one place.

The calls take the module first, `offgrad` or `torch`, so that one line runs on both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

import offgrad
from offgrad import Tensor
from offgrad.autograd.op import Op

Array: TypeAlias = NDArray[Any]
Domain: TypeAlias = Callable[[Array], Array]

FLOATS = (np.dtype(np.float64), np.dtype(np.float32))
COMPLEX = np.dtype(np.complex128)


@dataclass(frozen=True)
class OpSpec:
    """An operation, with the facts that its tests need.

    Attributes:
        name: the name of the tests.
        covers: the op classes that forward, backward and their derivatives run.
        call: ``call(module, *tensors)`` returns a tensor or a tuple of tensors.
        samples: for each sample its inputs: a shape stands for random numbers, an array for itself.
        reference: the same on NumPy arrays; None if torch is the only reference.
        domain: maps random numbers to values at which the operation is defined and smooth.
        complex: whether complex inputs are supported.
        real: whether real inputs are supported.
        torch: whether torch has it (then `call` runs there too).
        twin: the call for torch, if not `call`.
        view: whether the result shares memory with an input.
        third: whether derivatives of third order are checked too.
        twice: whether there are second derivatives to check.
    """

    name: str
    covers: tuple[type[Op], ...]
    call: Callable[..., Any]
    samples: Sequence[tuple[Any, ...]]
    reference: Callable[..., Any] | None = None
    domain: Domain | None = None
    complex: bool = False
    real: bool = True
    torch: bool = True
    twin: Callable[..., Any] | None = None
    view: bool = False
    third: bool = False
    twice: bool = True

    def __str__(self) -> str:
        return self.name

    def dtypes(self) -> list[np.dtype[Any]]:
        """Return the dtypes inputs can have."""
        return [*(FLOATS if self.real else ()), *((COMPLEX,) if self.complex else ())]

    def double(self) -> list[np.dtype[Any]]:
        """Return the dtypes for finite differences."""
        return [dtype for dtype in self.dtypes() if dtype.itemsize >= 8]

    def arrays(self, dtype: Any) -> list[tuple[Array, ...]]:
        """Return the samples as arrays, the floating ones of `dtype`; the same at each call."""
        rng = np.random.default_rng(crc32(self.name.encode()))
        return [tuple(self._array(each, dtype, rng) for each in sample) for sample in self.samples]

    def _array(self, given: Any, dtype: Any, rng: np.random.Generator) -> Array:
        if isinstance(given, np.ndarray):
            return given.astype(dtype) if given.dtype.kind == "f" else given.copy()
        values = np.asarray(rng.standard_normal(given))
        if self.domain is not None:
            values = self.domain(values)
        if np.dtype(dtype).kind == "c":
            values = values + 1j * np.asarray(rng.standard_normal(given)) * 0.7
        return np.asarray(values, dtype)


def is_floating(array: Array) -> bool:
    """Return whether gradients with respect to `array` make sense."""
    return array.dtype.kind in "fc"


def tensors(arrays: Sequence[Array], requires_grad: bool = True) -> list[Tensor]:
    """Return copies of `arrays` as tensors; the floating ones require grad."""
    return [
        offgrad.tensor(each, requires_grad=requires_grad and is_floating(each)) for each in arrays
    ]


def outputs_of(result: Any) -> tuple[Any, ...]:
    """Return a result as a tuple."""
    return tuple(result) if isinstance(result, tuple | list) else (result,)


# Domains


def positive(values: Array) -> Array:
    """Well above 0."""
    return np.abs(values) + 0.5


def nonzero(values: Array) -> Array:
    """Away from 0, either sign."""
    return np.where(values < 0, values - 0.4, values + 0.4)


def inside(values: Array) -> Array:
    """Between -0.9 and 0.9."""
    return np.asarray(0.9 * np.tanh(values))


def between_integers(values: Array) -> Array:
    """Neither near an integer nor near a half."""
    return np.asarray(np.floor(values * 3) + 0.15 + 0.2 * (np.abs(values) % 1))


def apart(values: Array) -> Array:
    """All different, by 0.1 and more."""
    order = np.argsort(np.argsort(values, axis=None)).reshape(values.shape)
    return np.asarray((order - values.size / 2) * 0.31 + 0.05)
