"""The parameter ``inplace`` of the functions of `offgrad.nn.functional`."""

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from offgrad import ops

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


def with_inplace(operation: "Callable[..., Tensor]") -> "Callable[..., Tensor]":
    """Return `operation` with PyTorch's additional last parameter, ``inplace=False``."""
    signature = inspect.signature(operation)
    parameters = list(signature.parameters.values())
    parameter_count = len(parameters)

    @functools.wraps(operation)
    def function(input: "Tensor", *args: Any, inplace: bool = False, **kwargs: Any) -> "Tensor":
        if len(args) == parameter_count:  # one more than the operation takes after `input`
            *args, inplace = args  # type: ignore[assignment]
        if inplace:
            return ops.inplace(operation, input, *args, **kwargs)
        return operation(input, *args, **kwargs)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters.append(inspect.Parameter("inplace", kind, default=False, annotation=bool))
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function
