"""Conv2d and BatchNorm2d composed from offgrad's operations, for the models of benchmarks only.

They save the same tensors for backward as PyTorch's layers: input and weight, and in a batch norm
two numbers per channel. They are as slow as plain compositions, not as fast as fused kernels.
"""

from typing import Any

import numpy as np

import offgrad as torch
from offgrad import nn
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import wrap

_MAX_PATCHES = 1 << 20
"""Upper bound of the elements of the patches in memory at once, over as many samples as fit."""


class _Convolve(torch.autograd.Function):
    """Products of the weight with the patches of each sample; backward recomputes the patches."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, stride: int, padding: int) -> Any:
        """Return [B, O, H', W'] for x [B, C, H, W] and weight [O, C, K, K]."""
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
        """Return the gradients of x, if it requires one, and of the weight."""
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
    """Split x [B, ...] into parts whose patches fit into a cache."""
    return x.split(max(1, _MAX_PATCHES // (weight[0].numel() * positions)))


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
            raise NotImplementedError(
                "convolutions of the benchmarks have no bias: pass bias=False"
            )
        self.stride, self.padding = stride, padding
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, kernel_size, kernel_size))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)

    def forward(self, x: Any) -> Any:
        """Return the convolution of x [B, C, H, W]."""
        return _Convolve.apply(x, self.weight, self.stride, self.padding)


class _Normalize(Op):
    """(x - mean) / sqrt(var + eps) * weight + bias of each channel, over batch and image.

    Keeps x, the weight, and each channel's mean and 1/sqrt(var + eps).
    """

    is_recomputable = True

    def forward(self, x: Array, weight: Array, bias: Array, eps: float) -> Array:
        """Return x [B, C, H, W] with normalized channels."""
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
        # grad - mean of grad - (x - mean) * rstd * mean of grad * normalized x
        slope = -grad_weight * rstd / count
        grad_x = x * _per_channel(slope)
        grad_x += grad
        grad_x += _per_channel(-total / count - mean * slope)
        grad_x *= _per_channel(weight * rstd)
        return grad_x, grad_weight, total


def _per_channel(channels: Any) -> Any:
    return channels.reshape(1, -1, 1, 1)


class BatchNorm2d(nn.Module):
    """Batch normalization in training mode, without running averages: [B, C, H, W] to the same."""

    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))

    def forward(self, x: Any) -> Any:
        """Return x with normalized channels."""
        return _Normalize.apply(x, self.weight, self.bias, eps=self.eps)
