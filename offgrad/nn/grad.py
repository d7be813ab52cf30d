"""The gradients of convolutions, as functions."""

from collections.abc import Callable as _Callable
from typing import Any as _Any

from offgrad._missing import missing as _missing
from offgrad._tensor.tensor import Tensor as _Tensor
from offgrad.ops._nn import convolution as _convolution

__all__ = [
    "conv1d_input",
    "conv1d_weight",
    "conv2d_input",
    "conv2d_weight",
    "conv3d_input",
    "conv3d_weight",
]


def _input(ndim: int) -> _Callable[..., _Tensor]:
    def function(
        input_size: _Any,
        weight: _Tensor,
        grad_output: _Tensor,
        stride: _Any = 1,
        padding: _Any = 0,
        dilation: _Any = 1,
        groups: int = 1,
    ) -> _Tensor:
        numbers = stride, padding, dilation, groups
        return _convolution.convolution_input(
            function.__name__, input_size, weight, grad_output, *numbers
        )

    function.__name__ = function.__qualname__ = f"conv{ndim}d_input"
    function.__doc__ = f"""Return the gradient that `conv{ndim}d` gives its input.

    Args:
        input_size: the shape of the input, with the batch.
        weight: as that of `conv{ndim}d`.
        grad_output: the gradient of the result.
        stride, padding, dilation, groups: as those of `conv{ndim}d`.

    Raises:
        RuntimeError: if shapes or numbers do not fit.
    """
    return function


def _weight(ndim: int) -> _Callable[..., _Tensor]:
    def function(
        input: _Tensor,
        weight_size: _Any,
        grad_output: _Tensor,
        stride: _Any = 1,
        padding: _Any = 0,
        dilation: _Any = 1,
        groups: int = 1,
    ) -> _Tensor:
        numbers = stride, padding, dilation, groups
        return _convolution.convolution_weight(
            function.__name__, input, weight_size, grad_output, *numbers
        )

    function.__name__ = function.__qualname__ = f"conv{ndim}d_weight"
    function.__doc__ = f"""Return the gradient that `conv{ndim}d` gives its weight.

    Args:
        input: as that of `conv{ndim}d`, with the batch.
        weight_size: the shape of the weight.
        grad_output: the gradient of the result.
        stride, padding, dilation, groups: as those of `conv{ndim}d`.

    Raises:
        RuntimeError: if shapes or numbers do not fit.
    """
    return function


conv1d_input, conv2d_input, conv3d_input = (_input(ndim) for ndim in (1, 2, 3))
conv1d_weight, conv2d_weight, conv3d_weight = (_weight(ndim) for ndim in (1, 2, 3))

__getattr__ = _missing("offgrad.nn.grad")
