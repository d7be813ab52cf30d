"""Sets of values that parameters and samples lie in; ``check(value)`` tells it by element."""

from collections.abc import Callable as _Callable
from typing import Any as _Any

import numpy as _np

from offgrad import linalg as _linalg
from offgrad import ops as _ops
from offgrad._missing import missing as _missing

__all__ = [
    "Constraint",
    "boolean",
    "cat",
    "corr_cholesky",
    "dependent",
    "dependent_property",
    "greater_than",
    "greater_than_eq",
    "half_open_interval",
    "independent",
    "integer_interval",
    "interval",
    "is_dependent",
    "less_than",
    "lower_cholesky",
    "lower_triangular",
    "multinomial",
    "nonnegative",
    "nonnegative_integer",
    "one_hot",
    "positive",
    "positive_definite",
    "positive_integer",
    "positive_semidefinite",
    "real",
    "real_vector",
    "simplex",
    "square",
    "stack",
    "symmetric",
    "unit_interval",
]


class Constraint:
    """A set of values.

    Attributes:
        is_discrete: whether the values are separate.
        event_dim: the number of last dimensions that form one value.
    """

    is_discrete = False
    event_dim = 0

    def check(self, value: _Any) -> _Any:
        """Return a tensor of bools, without the event's dimensions: whether values lie in it."""
        raise NotImplementedError(f"{type(self).__name__} defines no check()")

    def __repr__(self) -> str:
        return f"{type(self).__name__.lstrip('_').title().replace('_', '')}()"


class _Dependent(Constraint):
    """A constraint that depends on other values, and cannot be checked by itself."""

    def __init__(self, *, is_discrete: bool = False, event_dim: int = 0) -> None:
        self.is_discrete, self.event_dim = is_discrete, event_dim

    def __call__(self, *, is_discrete: bool = False, event_dim: int = 0) -> "_Dependent":
        return _Dependent(is_discrete=is_discrete, event_dim=event_dim)

    def check(self, value: _Any) -> _Any:
        """Raise: it depends on other values."""
        raise ValueError("Cannot determine validity of dependent constraint")


def is_dependent(constraint: _Any) -> bool:
    """Return whether a constraint depends on other values."""
    return isinstance(constraint, _Dependent)


class dependent_property(property, _Dependent):
    """A property that returns a constraint; of the class, one that depends on other values."""

    def __init__(
        self,
        fn: _Callable[..., _Any] | None = None,
        *,
        is_discrete: bool = False,
        event_dim: int = 0,
    ) -> None:
        property.__init__(self, fn)
        _Dependent.__init__(self, is_discrete=is_discrete, event_dim=event_dim)

    def __call__(self, fn: _Callable[..., _Any]) -> "dependent_property":  # type: ignore[override]
        return dependent_property(fn, is_discrete=self.is_discrete, event_dim=self.event_dim)


class independent(Constraint):
    """A constraint of which some dimensions of the batch belong to one value.

    Args:
        base_constraint: of the elements.
        reinterpreted_batch_ndims: the number of dimensions.
    """

    def __init__(self, base_constraint: _Any, reinterpreted_batch_ndims: int) -> None:
        self.base_constraint = base_constraint
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        self.is_discrete = base_constraint.is_discrete
        self.event_dim = base_constraint.event_dim + reinterpreted_batch_ndims

    def check(self, value: _Any) -> _Any:
        """Return whether all elements of each value lie in it."""
        result = self.base_constraint.check(value)
        count = self.reinterpreted_batch_ndims
        if result.ndim < count:
            raise ValueError(f"Expected value.dim() >= {self.event_dim} but got {value.ndim}")
        return result.flatten(result.ndim - count).all(-1) if count else result

    def __repr__(self) -> str:
        return f"Independent({self.base_constraint!r}, {self.reinterpreted_batch_ndims})"


class _Joined(Constraint):
    """Constraints of parts of a dimension."""

    def __init__(self, cseq: _Any, dim: int) -> None:
        self.cseq, self.dim = list(cseq), dim
        self.is_discrete = any(each.is_discrete for each in self.cseq)
        self.event_dim = max(each.event_dim for each in self.cseq)


class cat(_Joined):
    """Constraints of parts of a dimension, of `lengths`, 1 each by default."""

    def __init__(self, cseq: _Any, dim: int = 0, lengths: _Any = None) -> None:
        super().__init__(cseq, dim)
        self.lengths = [1] * len(self.cseq) if lengths is None else list(lengths)

    def check(self, value: _Any) -> _Any:
        """Return whether values lie in it."""
        parts = value.split(self.lengths, self.dim)
        found = [each.check(part) for each, part in zip(self.cseq, parts, strict=True)]
        return _ops.cat(found, self.dim)


class stack(_Joined):
    """A constraint for each entry of a dimension."""

    def __init__(self, cseq: _Any, dim: int = 0) -> None:
        super().__init__(cseq, dim)
        if self.dim < 0:
            self.event_dim += 1

    def check(self, value: _Any) -> _Any:
        """Return whether values lie in it."""
        parts = value.unbind(self.dim)
        found = [each.check(part) for each, part in zip(self.cseq, parts, strict=True)]
        return _ops.stack(found, self.dim)


class _Rule(Constraint):
    """A constraint by a function of the values."""

    def __init__(
        self,
        text: str,
        rule: _Callable[[_Any], _Any],
        is_discrete: bool = False,
        event_dim: int = 0,
    ) -> None:
        self._text, self._rule = text, rule
        self.is_discrete, self.event_dim = is_discrete, event_dim

    def check(self, value: _Any) -> _Any:
        """Return whether values lie in it."""
        return self._rule(value)

    def __repr__(self) -> str:
        return self._text

    def __reduce__(self) -> str:
        return next(name for name, each in globals().items() if each is self)


class _Bounded(Constraint):
    """Numbers within bounds; a bound is a number or a tensor."""

    _names: tuple[str, ...] = ()

    def __init__(self, *bounds: _Any, **named: _Any) -> None:
        for name, bound in [*zip(self._names, bounds, strict=False), *named.items()]:
            setattr(self, name, bound)

    def __repr__(self) -> str:
        name = type(self).__name__.lstrip("_")
        name = "".join(part.capitalize() for part in name.split("_"))
        return f"{name}({', '.join(f'{each}={getattr(self, each)}' for each in self._names)})"


class greater_than(_Bounded):
    """Numbers above `lower_bound`."""

    _names = ("lower_bound",)
    lower_bound: _Any

    def check(self, value: _Any) -> _Any:
        """Return whether values lie in it."""
        return self.lower_bound < value


class greater_than_eq(greater_than):
    """Numbers from `lower_bound`."""

    def check(self, value: _Any) -> _Any:
        """Return whether values lie in it."""
        return self.lower_bound <= value


class less_than(_Bounded):
    """Numbers below `upper_bound`."""

    _names = ("upper_bound",)
    upper_bound: _Any

    def check(self, value: _Any) -> _Any:
        """Return whether values lie in it."""
        return value < self.upper_bound


class interval(_Bounded):
    """Numbers from `lower_bound` to `upper_bound`."""

    _names = ("lower_bound", "upper_bound")
    lower_bound: _Any
    upper_bound: _Any

    def check(self, value: _Any) -> _Any:
        """Return whether values lie in it."""
        return (self.lower_bound <= value) & (value <= self.upper_bound)


class half_open_interval(interval):
    """Numbers from `lower_bound` to below `upper_bound`."""

    def check(self, value: _Any) -> _Any:
        """Return whether values lie in it."""
        return (self.lower_bound <= value) & (value < self.upper_bound)


class integer_interval(interval):
    """Integers from `lower_bound` to `upper_bound`."""

    is_discrete = True

    def check(self, value: _Any) -> _Any:
        """Return whether values lie in it."""
        return (value % 1 == 0) & super().check(value)


class _IntegersFrom(greater_than):
    is_discrete = True

    def check(self, value: _Any) -> _Any:
        """Return whether values lie in it."""
        return (value % 1 == 0) & (value >= self.lower_bound)

    def __repr__(self) -> str:
        return f"IntegerGreaterThan(lower_bound={self.lower_bound})"


class multinomial(Constraint):
    """Counts of categories that sum to at most `upper_bound`."""

    is_discrete = True
    event_dim = 1

    def __init__(self, upper_bound: _Any) -> None:
        self.upper_bound = upper_bound

    def check(self, value: _Any) -> _Any:
        """Return whether values lie in it."""
        return (value >= 0).all(-1) & (value.sum(-1) <= self.upper_bound)


def _tolerance(value: _Any) -> float:
    return 1e-6 if value._array.dtype != _np.float64 else 1e-8


def _is_square(value: _Any) -> _Any:
    return _ops.full(value.shape[:-2], value.shape[-2] == value.shape[-1], dtype=_np.bool_)


def _is_symmetric(value: _Any) -> _Any:
    if value.shape[-2] != value.shape[-1]:
        return _is_square(value)
    return _ops.isclose(value, value.mT, atol=1e-6).flatten(-2).all(-1)


def _is_positive_definite(value: _Any) -> _Any:
    symmetric = _is_symmetric(value)
    if not symmetric.all():
        return symmetric
    return _linalg.cholesky_ex(value).info == 0


def _is_positive_semidefinite(value: _Any) -> _Any:
    symmetric = _is_symmetric(value)
    if not symmetric.all():
        return symmetric
    return (_linalg.eigvalsh(value) >= 0).all(-1)


def _is_lower_triangular(value: _Any) -> _Any:
    return (value.tril() == value).flatten(-2).all(-1)


dependent = _Dependent()
boolean: Constraint = _Rule("Boolean()", lambda x: (x == 0) | (x == 1), is_discrete=True)
one_hot: Constraint = _Rule(
    "OneHot()",
    lambda x: ((x == 0) | (x == 1)).all(-1) & (x.sum(-1) == 1),
    is_discrete=True,
    event_dim=1,
)
nonnegative_integer: Constraint = _IntegersFrom(0)
positive_integer: Constraint = _IntegersFrom(1)
real: Constraint = _Rule("Real()", lambda x: x == x)
real_vector: Constraint = independent(real, 1)
positive: Constraint = greater_than(0.0)
nonnegative: Constraint = greater_than_eq(0.0)
unit_interval: Constraint = interval(0.0, 1.0)
simplex: Constraint = _Rule(
    "Simplex()",
    lambda x: (x >= 0).all(-1) & ((x.sum(-1) - 1).abs() < _tolerance(x)),
    event_dim=1,
)
lower_triangular: Constraint = _Rule("LowerTriangular()", _is_lower_triangular, event_dim=2)
lower_cholesky: Constraint = _Rule(
    "LowerCholesky()",
    lambda x: _is_lower_triangular(x) & (x.diagonal(dim1=-2, dim2=-1) > 0).all(-1),
    event_dim=2,
)
corr_cholesky: Constraint = _Rule(
    "CorrCholesky()",
    lambda x: (
        ((x**2).sum(-1) - 1).abs().le(_np.finfo(x._array.dtype).eps * x.shape[-1] * 10).all(-1)
        & lower_cholesky.check(x)
    ),
    event_dim=2,
)
square: Constraint = _Rule("Square()", _is_square, event_dim=2)
symmetric: Constraint = _Rule("Symmetric()", _is_symmetric, event_dim=2)
positive_semidefinite: Constraint = _Rule(
    "PositiveSemidefinite()", _is_positive_semidefinite, event_dim=2
)
positive_definite: Constraint = _Rule("PositiveDefinite()", _is_positive_definite, event_dim=2)

__getattr__ = _missing("offgrad.distributions.constraints")
