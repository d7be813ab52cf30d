"""AdamW."""

from offgrad._tensor.tensor import Tensor
from offgrad.optim.adam import Adam
from offgrad.optim.optimizer import ParamsT


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019), in one fused kernel.

    Keeps two buffers per parameter, three with `amsgrad`.

    Raises:
        ValueError: for betas outside [0, 1), or a negative `lr`, `eps` or `weight_decay`.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=True,
        )
