"""RAdam."""

from typing import Any

from offgrad import kernels
from offgrad._tensor.tensor import Tensor
from offgrad.optim.batched import Batch, BatchedOptimizer
from offgrad.optim.optimizer import ParamsT
from offgrad.optim.options import check_betas, check_common, check_options, check_tensor_lr


class RAdam(BatchedOptimizer):
    """Adam whose first steps are rectified for their variance (Liu et al., 2020).

    Keeps two buffers per parameter.

    Raises:
        ValueError: for betas outside [0, 1), or a negative `lr`, `eps` or `weight_decay`.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_tensor_lr(lr, foreach, capturable)
        check_options(lr=lr, eps=eps)
        check_betas(betas)
        check_options(weight_decay=weight_decay)
        check_common(foreach, differentiable)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "decoupled_weight_decay": decoupled_weight_decay,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    def buffers(self, group: dict[str, Any]) -> tuple[str | None, ...]:
        return "exp_avg", "exp_avg_sq"

    def run_kernel(self, batch: Batch) -> None:
        kernels.radam_steps(
            *batch.arguments(
                "lr",
                "betas",
                "eps",
                "weight_decay",
                "decoupled_weight_decay",
                "maximize",
                counts=[batch.steps()],
            )
        )
