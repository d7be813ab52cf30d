"""Convolutions and transposed convolutions over one, two and three dimensions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.ops._core.autocast import lower_precision
from offgrad.ops._core.broadcasting import conj
from offgrad.ops._core.dtypes import check_tensor
from offgrad.ops._nn.convolution_arguments import Convolving, same_padding, unbatched_ndim

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "convolution",
]


class Convolution(Op):
    """A convolution or a transposed one; keeps x and the weight where their partner needs a
    gradient.

    Either is the gradient of the other with respect to its input.
    """

    torch_name = "ConvolutionBackward0"
    shapes: tuple[tuple[int, ...], tuple[int, ...]]

    def forward(
        self, x: Array, weight: Array, bias: Array | None, how: Convolving, size: tuple[int, ...]
    ) -> Array:
        """Return [N, O, *size] for x [N, C, *S], weight [O, C / groups, *K] and bias [O].

        The weight of a transposed one is [C, O / groups, *K].
        """
        need_x, need_weight, _ = self.needs_input_grad
        self.save(input=x if need_weight else None, weight=weight if need_x else None)
        self.shapes, self.how = (x.shape, weight.shape), how
        self.bias_sym_sizes_opt = (0,) if bias is None else bias.shape
        for name, value in how._asdict().items():
            setattr(self, name, value)  # read as _saved_stride ...
        channels = weight.shape[1] * how.groups if how.transposed else weight.shape[0]
        out = memory.empty((x.shape[0], channels, *size), x.dtype)
        kernel = kernels.convolve_transposed if how.transposed else kernels.convolve
        kernel(x, weight, out, how.steps(), bias)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """dx is the opposite kind of convolution of G with W; dW sums products of G and x."""
        need_x, need_weight, need_bias = self.needs_input_grad
        grad_x = grad_weight = grad_bias = None
        how, (shape, weight_shape) = self.how, self.shapes
        if need_bias:
            grad_bias = grad.sum((0, *range(2, len(shape))))
        if need_weight:
            pair = grad, conj(self.saved("input"))
            grad_weight = ConvolutionWeight.apply(
                *(reversed(pair) if how.transposed else pair), how=how, kernel=weight_shape[2:]
            )
            del pair  # perhaps recomputed: it makes room for the next product
        if need_x:
            opposite = how._replace(transposed=not how.transposed)
            grad_x = _Gradient.apply(
                grad, conj(self.saved("weight")), None, how=opposite, size=shape[2:]
            )
        return grad_x, grad_weight, grad_bias


_Gradient = Convolution.named("ConvolutionBackwardBackward0")


class ConvolutionWeight(Op):
    """The gradient of a convolution's weight, linear in the gradient of the result and in x.

    Keeps each where the other needs a gradient. Those of a transposed one change places.
    """

    torch_name = "ConvolutionBackwardBackward0"

    def forward(self, grad: Array, x: Array, how: Convolving, kernel: tuple[int, ...]) -> Array:
        """Return [O, C / groups, *kernel] for grad [N, O, *P] and x [N, C, *S]."""
        need_grad, need_x = self.needs_input_grad
        self.save(grad_output=grad if need_x else None, input=x if need_grad else None)
        self.spaces, self.how = (grad.shape[2:], x.shape[2:]), how
        out = memory.empty((grad.shape[1], x.shape[1] // how.groups, *kernel), x.dtype)
        kernels.convolve_weight(grad, x, out, how.steps())
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Return two convolutions with the gradient of the weight as their weight."""
        need_grad, need_x = self.needs_input_grad
        size, x_size = self.spaces
        forward, transposed = (self.how._replace(transposed=each) for each in (False, True))
        first = second = None
        if need_grad:
            x = conj(self.saved("input"))
            first = _Gradient.apply(x, grad, None, how=forward, size=size)
        if need_x:
            upper = conj(self.saved("grad_output"))
            second = _Gradient.apply(upper, grad, None, how=transposed, size=x_size)
        return first, second


def _convolve(
    where: str,
    ndim: int,
    input: "Tensor",
    weight: "Tensor",
    bias: "Tensor | None",
    how: Convolving,
) -> "Tensor":
    """Check the arguments and convolve; an input without a batch gives a result without one."""
    unbatched = unbatched_ndim(where, ndim, input)
    x = input.unsqueeze(0) if unbatched else input
    size = how.check(where, x, weight, bias)
    out = Convolution.apply(x, weight, bias, how=how, size=size)
    return out.squeeze(0) if unbatched else out


@lower_precision
def _conv(
    ndim: int,
    input: "Tensor",
    weight: "Tensor",
    bias: "Tensor | None",
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
) -> "Tensor":
    where = f"conv{ndim}d"
    after: tuple[int, ...] | None = None
    if isinstance(padding, str):
        padding, after = same_padding(where, ndim, padding, stride, dilation, weight)
    how = Convolving.of(where, ndim, stride, padding, dilation, False, 0, groups, after)
    return _convolve(where, ndim, input, weight, bias, how)


def conv1d(
    input: "Tensor",
    weight: "Tensor",
    bias: "Tensor | None" = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> "Tensor":
    """Return the convolution of input [N, C, L], or [C, L], with weight [O, C / groups, K].

    Args:
        input: the channels of each sample.
        weight: the kernels.
        bias: [O], added to the result.
        stride: distance of two positions of the kernel.
        padding: zeros before and after the input; "valid" for none, "same" for as many as give the
            result the size of the input.
        dilation: distance of two elements of the kernel.
        groups: each of so many groups of outputs sees one group of channels.

    Returns:
        [N, O, (L + 2 padding - dilation (K - 1) - 1) // stride + 1].

    Raises:
        RuntimeError: if shapes, dtypes or numbers do not fit.
    """
    return _conv(1, input, weight, bias, stride, padding, dilation, groups)


def conv2d(
    input: "Tensor",
    weight: "Tensor",
    bias: "Tensor | None" = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> "Tensor":
    """Return the convolution of input [N, C, H, W], or [C, H, W], with weight
    [O, C / groups, KH, KW]; see `conv1d`.
    """
    return _conv(2, input, weight, bias, stride, padding, dilation, groups)


def conv3d(
    input: "Tensor",
    weight: "Tensor",
    bias: "Tensor | None" = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> "Tensor":
    """Return the convolution of input [N, C, D, H, W], or [C, D, H, W], with weight
    [O, C / groups, KD, KH, KW]; see `conv1d`.
    """
    return _conv(3, input, weight, bias, stride, padding, dilation, groups)


@lower_precision
def _conv_transpose(
    ndim: int,
    input: "Tensor",
    weight: "Tensor",
    bias: "Tensor | None",
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: int,
    dilation: Any,
) -> "Tensor":
    where = f"conv_transpose{ndim}d"
    how = Convolving.of(where, ndim, stride, padding, dilation, True, output_padding, groups)
    return _convolve(where, ndim, input, weight, bias, how)


def conv_transpose1d(
    input: "Tensor",
    weight: "Tensor",
    bias: "Tensor | None" = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> "Tensor":
    """Return the transposed convolution of input [N, C, L], or [C, L], with weight
    [C, O / groups, K]: what `conv1d` with these arguments gives its input as gradient.

    Args:
        input: the channels of each sample.
        weight: the kernels.
        bias: [O], added to the result.
        stride: distance of the places in the result that two inputs spread to.
        padding: so many elements are cut off at both ends of the result.
        output_padding: so many elements are added at its end.
        groups: each of so many groups of channels spreads to one group of outputs.
        dilation: distance of two elements of the kernel.

    Returns:
        [N, O, (L - 1) stride - 2 padding + dilation (K - 1) + output_padding + 1].

    Raises:
        RuntimeError: if shapes, dtypes or numbers do not fit.
    """
    return _conv_transpose(
        1, input, weight, bias, stride, padding, output_padding, groups, dilation
    )


def conv_transpose2d(
    input: "Tensor",
    weight: "Tensor",
    bias: "Tensor | None" = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> "Tensor":
    """Return the transposed convolution of input [N, C, H, W], or [C, H, W], with weight
    [C, O / groups, KH, KW]; see `conv_transpose1d`.
    """
    return _conv_transpose(
        2, input, weight, bias, stride, padding, output_padding, groups, dilation
    )


def conv_transpose3d(
    input: "Tensor",
    weight: "Tensor",
    bias: "Tensor | None" = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> "Tensor":
    """Return the transposed convolution of input [N, C, D, H, W], or [C, D, H, W], with weight
    [C, O / groups, KD, KH, KW]; see `conv_transpose1d`.
    """
    return _conv_transpose(
        3, input, weight, bias, stride, padding, output_padding, groups, dilation
    )


def convolution(
    input: "Tensor",
    weight: "Tensor",
    bias: "Tensor | None",
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> "Tensor":
    """Return a convolution, or a transposed one, of as many dimensions as the weight has kernels'.

    Raises:
        RuntimeError: if shapes, dtypes or numbers do not fit.
    """
    ndim = weight._array.ndim - 2
    how = Convolving.of(
        "convolution", ndim, stride, padding, dilation, transposed, output_padding, groups
    )
    return _convolve("convolution", ndim, input, weight, bias, how)


def conv_tbc(input: "Tensor", weight: "Tensor", bias: "Tensor", pad: int = 0) -> "Tensor":
    """Return the convolution of input [L, N, C] with weight [K, C, O], plus bias [O], as
    [L + 2 pad - K + 1, N, O].
    """
    result = conv1d(input.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad)
    return result.permute(2, 0, 1)


def convolution_input(
    where: str,
    input_size: Sequence[int],
    weight: "Tensor",
    grad_output: "Tensor",
    *numbers: Any,
) -> "Tensor":
    """Return the gradient of the input of a convolution; see `offgrad.nn.grad`."""
    ndim, size = check_tensor(weight, where)._array.ndim - 2, tuple(input_size)
    stride, padding, dilation, groups = numbers
    how = Convolving.of(where, ndim, stride, padding, dilation, False, 0, groups)
    _check_result(where, how, size, weight._array.shape, grad_output)
    return Convolution.apply(
        grad_output, conj(weight), None, how=how._replace(transposed=True), size=size[2:]
    )


def convolution_weight(
    where: str,
    input: "Tensor",
    weight_size: Sequence[int],
    grad_output: "Tensor",
    *numbers: Any,
) -> "Tensor":
    """Return the gradient of the weight of a convolution; see `offgrad.nn.grad`."""
    ndim, size = check_tensor(input, where)._array.ndim - 2, tuple(weight_size)
    stride, padding, dilation, groups = numbers
    how = Convolving.of(where, ndim, stride, padding, dilation, False, 0, groups)
    _check_result(where, how, input._array.shape, size, grad_output)
    return ConvolutionWeight.apply(grad_output, conj(input), how=how, kernel=size[2:])


def _check_result(
    where: str,
    how: Convolving,
    size: tuple[int, ...],
    weight_size: tuple[int, ...],
    grad_output: "Tensor",
) -> None:
    """Raise RuntimeError unless the gradient has the shape of the convolution's result."""
    shape = check_tensor(grad_output, where)._array.shape
    fits = len(size) == len(weight_size) == len(shape) and size[1] == weight_size[1] * how.groups
    if fits:
        space = how.size(where, size[2:], weight_size[2:])
        fits = shape == (size[0], weight_size[0], *space)
    if not fits:
        raise RuntimeError(
            f"{where}: grad_output must have the shape of the result for an input of size "
            f"{list(size)} and a weight of size {list(weight_size)}, got {list(shape)}"
        )
