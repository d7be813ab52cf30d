"""NAdam."""

from typing import Any

from offgrad import kernels
from offgrad._tensor.tensor import Tensor
from offgrad.optim.batched import Batch, BatchedOptimizer, Counts, new_count
from offgrad.optim.optimizer import ParamsT
from offgrad.optim.options import (
    check_betas,
    check_common,
    check_options,
    check_tensor_lr,
    number,
    scalar,
)


class NAdam(BatchedOptimizer):
    """Adam with Nesterov momentum (Dozat, 2016).

    Keeps two buffers per parameter.

    Raises:
        ValueError: for betas outside [0, 1), or a negative `lr`, `eps`, `weight_decay` or
            `momentum_decay`.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3,
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
        check_options(weight_decay=weight_decay, momentum_decay=momentum_decay)
        check_common(foreach, differentiable)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum_decay": momentum_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    def buffers(self, group: dict[str, Any]) -> tuple[str | None, ...]:
        return "exp_avg", "exp_avg_sq"

    def first_state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        counts = {"step": new_count(), "mu_product": new_count(1.0)}
        return {**counts, "exp_avg": self.new_state(param), "exp_avg_sq": self.new_state(param)}

    def next_counts(self, state: dict[str, Any], options: dict[str, Any]) -> Counts:
        step = number(state["step"]) + 1
        mu = kernels.nadam_momentum(step, options["betas"][0], options["momentum_decay"])
        product = state["mu_product"]._array * mu
        return {"step": step, "mu_product": scalar(product)}

    def run_kernel(self, batch: Batch) -> None:
        products = [each["mu_product"] for each in batch.counts]
        kernels.nadam_steps(
            *batch.arguments(
                "lr",
                "betas",
                "eps",
                "weight_decay",
                "momentum_decay",
                "decoupled_weight_decay",
                "maximize",
                counts=[batch.steps(), products],
            )
        )
