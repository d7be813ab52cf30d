"""Instance normalisation."""

import warnings
from typing import Any, ClassVar

from offgrad._tensor.tensor import Tensor
from offgrad.nn import functional as F
from offgrad.nn.modules.batchnorm import _NormBase

__all__ = ["InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"]


class _InstanceNorm(_NormBase):
    """Base of the layers for different numbers of dimensions.

    They normalise each channel of each sample; a tensor without the dimension of samples is one.
    """

    _dims: ClassVar[tuple[int, int]]

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias
        )

    def _get_no_batch_dim(self) -> int:
        return self._dims[0]

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() not in self._dims:
            few, many = self._dims
            raise ValueError(f"expected {few}D or {many}D input (got {input.dim()}D input)")

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        channel_dim = input.dim() - self._get_no_batch_dim()
        if input.shape[channel_dim] != self.num_features:
            problem = (
                f"the input must have num_features={self.num_features} channels in dimension "
                f"{channel_dim}, got {input.shape[channel_dim]}."
            )
            if self.affine:
                raise ValueError(problem)
            warnings.warn(
                f"{problem} Leave out num_features, which is not used because affine=False",
                UserWarning,
                stacklevel=2,
            )
        if channel_dim == 0:
            return self._normalised(input.unsqueeze(0)).squeeze(0)
        return self._normalised(input)

    def _normalised(self, input: Tensor) -> Tensor:
        return F.instance_norm(
            input,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            0.0 if self.momentum is None else self.momentum,
            self.eps,
        )


class InstanceNorm1d(_InstanceNorm):
    """Normalise each channel of [N, C, L] or [C, L] (Ulyanov, Vedaldi and Lempitsky, 2016)."""

    _dims = 2, 3


class InstanceNorm2d(_InstanceNorm):
    """Normalise each channel of [N, C, H, W] or [C, H, W]."""

    _dims = 3, 4


class InstanceNorm3d(_InstanceNorm):
    """Normalise each channel of [N, C, D, H, W] or [C, D, H, W]."""

    _dims = 4, 5
