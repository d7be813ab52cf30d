"""Transforms from all reals to a constraint: one to one `biject_to`, and simple `transform_to`."""

from collections.abc import Callable
from typing import Any

from offgrad.distributions import constraints, transforms

__all__ = ["ConstraintRegistry", "biject_to", "transform_to"]


class ConstraintRegistry:
    """Functions that make transforms, by the class of constraints."""

    def __init__(self) -> None:
        self._registry: dict[Any, Callable[[Any], Any]] = {}

    def register(self, constraint: Any, factory: Callable[[Any], Any] | None = None) -> Any:
        """Register a function for a class of constraints, or that of a constraint.

        Raises:
            TypeError: for anything else.
        """
        if factory is None:
            return lambda function: self.register(constraint, function)
        if not isinstance(constraint, (type, constraints.Constraint)):
            raise TypeError(f"a Constraint, or a subclass of it, is needed, got {constraint}")
        self._registry[_key(constraint)] = factory
        return factory

    def __call__(self, constraint: Any) -> Any:
        """Return the transform to a constraint.

        Raises:
            NotImplementedError: if there is none.
        """
        factory = self._registry.get(_key(constraint))
        if factory is None:
            raise NotImplementedError(f"Cannot transform {type(constraint).__name__} constraints")
        return factory(constraint)


def _key(constraint: Any) -> Any:
    """Return the class of bounds, but the object of other constraints."""
    if isinstance(constraint, type):
        return constraint
    kinds = constraints._Bounded, constraints.independent
    return type(constraint) if isinstance(constraint, kinds) else constraint


def _to_interval(constraint: Any) -> Any:
    low, high = constraint.lower_bound, constraint.upper_bound
    sigmoid = transforms.SigmoidTransform()
    if not hasattr(low, "shape") and not hasattr(high, "shape") and (low, high) == (0, 1):
        return sigmoid
    return transforms.ComposeTransform([sigmoid, transforms.AffineTransform(low, high - low)])


def _above(constraint: Any) -> Any:
    exp = transforms.ExpTransform()
    bound = constraint.lower_bound
    if not hasattr(bound, "shape") and bound == 0:
        return exp
    return transforms.ComposeTransform([exp, transforms.AffineTransform(bound, 1)])


def _below(constraint: Any) -> Any:
    affine = transforms.AffineTransform(constraint.upper_bound, -1)
    return transforms.ComposeTransform([transforms.ExpTransform(), affine])


biject_to, transform_to = ConstraintRegistry(), ConstraintRegistry()

for _registry in (biject_to, transform_to):
    _registry.register(constraints.real, lambda _: transforms.identity_transform)
    _registry.register(constraints.greater_than, _above)
    _registry.register(constraints.greater_than_eq, _above)
    _registry.register(constraints.less_than, _below)
    _registry.register(constraints.interval, _to_interval)
    _registry.register(constraints.half_open_interval, _to_interval)
    _registry.register(
        constraints.independent,
        lambda it, registry=_registry: transforms.IndependentTransform(  # type: ignore[misc]
            registry(it.base_constraint), it.reinterpreted_batch_ndims
        ),
    )
biject_to.register(constraints.simplex, lambda _: transforms.StickBreakingTransform())
transform_to.register(constraints.lower_cholesky, lambda _: transforms.LowerCholeskyTransform())
transform_to.register(constraints.simplex, lambda _: transforms.SoftmaxTransform())
for _registry in (biject_to, transform_to):
    _registry.register(constraints.corr_cholesky, lambda _: transforms.CorrCholeskyTransform())
for _constraint in (constraints.positive_definite, constraints.positive_semidefinite):
    transform_to.register(_constraint, lambda _: transforms.PositiveDefiniteTransform())
