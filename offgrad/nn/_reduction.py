"""The legacy parameters ``size_average`` and ``reduce`` of losses."""

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


def legacy_reduction(size_average: bool | None, reduce: bool | None, reduction: str) -> str:
    """Return the reduction that the legacy parameters mean, with a warning; `reduction` if both
    are None.
    """
    if size_average is None and reduce is None:
        return reduction
    if reduce is not None and not reduce:
        meant = "none"
    else:
        meant = "sum" if size_average is not None and not size_average else "mean"
    warnings.warn(
        f"size_average and reduce args are deprecated: pass reduction={meant!r}",
        UserWarning,
        stacklevel=3,
    )
    return meant


def with_legacy_reduction(loss: "Callable[..., Tensor]") -> "Callable[..., Tensor]":
    """Return `loss` with PyTorch's legacy parameters, in PyTorch's order.

    ``reduce`` comes before ``reduction``, and ``size_average`` before ``reduce`` or the parameter
    that comes before that, if it is ``ignore_index`` or ``eps``.
    """
    signature = inspect.signature(loss)
    parameters = list(signature.parameters.values())
    names = [each.name for each in parameters]
    at = names.index("reduction")
    first = at - 1 if names[at - 1] in ("ignore_index", "eps") else at
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    for place, name in ((at, "reduce"), (first, "size_average")):
        parameters.insert(
            place, inspect.Parameter(name, kind, default=None, annotation=bool | None)
        )
    full = signature.replace(parameters=parameters)

    @functools.wraps(loss)
    def function(*args: Any, **kwargs: Any) -> "Tensor":
        if len(args) <= first and "size_average" not in kwargs and "reduce" not in kwargs:
            return loss(*args, **kwargs)
        given = full.bind(*args, **kwargs).arguments
        size_average, reduce = given.pop("size_average", None), given.pop("reduce", None)
        given["reduction"] = legacy_reduction(size_average, reduce, given.get("reduction", "mean"))
        return loss(**given)

    function.__signature__ = full  # type: ignore[attr-defined]
    return function
