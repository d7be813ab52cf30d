"""Conv2d and BatchNorm2d of what offgrad has, as PyTorch's code: for models of benchmarks alone.

They save for backward what PyTorch's save, the input and the weight, and a batch norm two figures
a channel. Their time is that of a plain composition, not of a fused kernel.
"""

from typing import Any

import numpy as np

import offgrad as torch
from offgrad import nn
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import wrap

_MOST_PATCHES = 1 << 20
"""Elements of the patches that are made at once, of as many samples as that takes."""


class _Convolve(torch.autograd.Function):
    """Products of the weight with the patches of each sample; the patches are made again."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, stride: int, padding: int) -> Any:
        """Return [B, O, H', W'] of x [B, C, H, W] and weight [O, C, K, K]."""
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.padding = stride, padding
        outputs, _, size, _ = weight.shape
        height, width = ((side + 2 * padding - size) // stride + 1 for side in x.shape[2:])
        rows = weight.reshape(outputs, -1)
        parts = [
            rows @ _patches(part, size, stride, padding)
            for part in _samples(x, weight, height * width)
        ]
        return torch.cat(parts).reshape(x.shape[0], outputs, height, width)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """Return the gradients of x, if it wants one, and of the weight."""
        x, weight = ctx.saved_tensors
        outputs, channels, size, _ = weight.shape
        stride, padding = ctx.stride, ctx.padding
        height, width = grad.shape[2:]
        columns = weight.reshape(outputs, -1).transpose(0, 1)
        grad_rows = torch.zeros(outputs, columns.shape[0])
        edges = [side + 2 * padding for side in x.shape[2:]]
        grad_parts = []
        begin = 0
        for part in _samples(x, weight, height * width):
            count = part.shape[0]
            upper = grad[begin : begin + count].reshape(count, outputs, height * width)
            begin += count
            patches = _patches(part, size, stride, padding)
            over = patches.transpose(1, 2).reshape(-1, columns.shape[0])
            grad_rows += upper.transpose(0, 1).reshape(outputs, -1) @ over
            if not ctx.needs_input_grad[0]:
                continue
            lower = (columns @ upper).reshape(count, channels, size, size, height, width)
            padded = torch.zeros(count, channels, *edges)
            for i in range(size):
                for j in range(size):
                    padded[
                        :, :, i : i + stride * height : stride, j : j + stride * width : stride
                    ] += lower[:, :, i, j]
            grad_parts.append(
                padded[:, :, padding : edges[0] - padding, padding : edges[1] - padding]
            )
        grad_x = torch.cat(grad_parts) if grad_parts else None
        return grad_x, grad_rows.reshape(weight.shape), None, None


def _samples(x: Any, weight: Any, positions: int) -> Any:
    """Return x [B, ...] in parts whose patches are few enough to stay in a cache."""
    return x.split(max(1, _MOST_PATCHES // (weight[0].numel() * positions)))


def _patches(x: Any, size: int, stride: int, padding: int) -> Any:
    """Return the patches of x [B, C, H, W] as [B, C K K, H' W']."""
    if padding:
        batch, channels, height, width = x.shape
        padded = torch.zeros(batch, channels, height + 2 * padding, width + 2 * padding)
        padded[:, :, padding : padding + height, padding : padding + width] = x
        x = padded
    windows = x.unfold(2, size, stride).unfold(3, size, stride)
    return windows.permute(0, 1, 4, 5, 2, 3).reshape(
        x.shape[0], -1, windows.shape[2] * windows.shape[3]
    )


class Conv2d(nn.Module):
    """A convolution with square kernels, without bias: [B, C, H, W] to [B, O, H', W']."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        bias: bool = False,
    ) -> None:
        super().__init__()
        if bias:
            raise NotImplementedError("convolutions of benchmarks have no bias")
        self.stride, self.padding = stride, padding
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, kernel_size, kernel_size))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)

    def forward(self, x: Any) -> Any:
        """Return the convolution."""
        return _Convolve.apply(x, self.weight, self.stride, self.padding)


class _Normalise(Op):
    """(x - mean) / sqrt(var + eps) * weight + bias of each channel, over batch and image.

    Keeps x, the weight, and each channel's mean and 1/sqrt(var + eps).
    """

    is_recomputable = True

    def forward(self, x: Array, weight: Array, bias: Array, eps: float) -> Array:
        """Return x [B, C, H, W] with normalised channels."""
        var, mean = (each._array for each in torch.var_mean(wrap(x), (0, 2, 3), correction=0))
        rstd = 1 / np.sqrt(var + x.dtype.type(eps))
        self.save(input=x, weight=weight, result1=mean, result2=rstd)
        scale = weight * rstd
        out = torch.memory.empty(x.shape, x.dtype)
        np.multiply(x, scale[:, None, None], out=out)
        out += (bias - mean * scale)[:, None, None]
        return out

    def backward(self, grad: Any) -> Any:
        """Return the gradients of x, weight and bias."""
        x, weight, mean, rstd = map(self.saved, ("input", "weight", "result1", "result2"))
        count = x.numel() // x.shape[1]
        total = grad.sum((0, 2, 3))
        grad_weight = ((grad * x).sum((0, 2, 3)) - mean * total) * rstd
        # grad - mean of grad - (x - mean) * rstd * mean of grad * normalised x
        slope = -grad_weight * rstd / count
        grad_x = x * _each(slope)
        grad_x += grad
        grad_x += _each(-total / count - mean * slope)
        grad_x *= _each(weight * rstd)
        return grad_x, grad_weight, total


def _each(channels: Any) -> Any:
    return channels.reshape(1, -1, 1, 1)


class BatchNorm2d(nn.Module):
    """Batch normalisation as in training; no running figures: [B, C, H, W] to the same."""

    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))

    def forward(self, x: Any) -> Any:
        """Return x with normalised channels."""
        return _Normalise.apply(x, self.weight, self.bias, eps=self.eps)
