"""Adamax."""

from typing import Any

from offgrad import kernels
from offgrad._tensor.tensor import Tensor
from offgrad.optim.batched import Batch, BatchedOptimizer
from offgrad.optim.optimizer import ParamsT
from offgrad.optim.options import check_betas, check_common, check_options, check_tensor_lr


class Adamax(BatchedOptimizer):
    """Adam with the maximum of gradients in place of their mean square (Kingma and Ba, 2015).

    Keeps two buffers per parameter.

    Raises:
        ValueError: for betas outside [0, 1), or a negative `lr`, `eps` or `weight_decay`.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
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
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        super().__init__(params, defaults)

    def buffers(self, group: dict[str, Any]) -> tuple[str | None, ...]:
        return "exp_avg", "exp_inf"

    def run_kernel(self, batch: Batch) -> None:
        kernels.adamax_steps(
            *batch.arguments(
                "lr", "betas", "eps", "weight_decay", "maximize", counts=[batch.steps()]
            )
        )
