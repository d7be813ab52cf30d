"""Averaged stochastic gradient descent."""

from typing import Any

from offgrad import kernels
from offgrad._tensor.tensor import Tensor
from offgrad.optim.batched import Batch, BatchedOptimizer, Counts, new_count
from offgrad.optim.optimizer import ParamsT
from offgrad.optim.options import check_common, check_options, check_tensor_lr, number


class ASGD(BatchedOptimizer):
    """Gradient descent that keeps the mean of the parameters (Polyak and Juditsky, 1992).

    Keeps one buffer per parameter, the mean ``"ax"`` of its values after step `t0`.

    Raises:
        ValueError: for a negative `lr` or `weight_decay`.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        check_tensor_lr(lr, foreach, capturable)
        check_options(lr=lr, weight_decay=weight_decay)
        check_common(foreach, differentiable)
        defaults = {
            "lr": lr,
            "lambd": lambd,
            "alpha": alpha,
            "t0": t0,
            "weight_decay": weight_decay,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        super().__init__(params, defaults)

    def buffers(self, group: dict[str, Any]) -> tuple[str | None, ...]:
        return ("ax",)

    def lacking_state(
        self, param: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> dict[str, Any]:
        if state:
            return {}
        return {
            "step": new_count(),
            "eta": new_count(number(group["lr"])),
            "mu": new_count(1.0),
            "ax": self.new_state(param),
        }

    def next_counts(self, state: dict[str, Any], options: dict[str, Any]) -> Counts:
        step = number(state["step"]) + 1
        lr, decay = options["lr"], options["lambd"] * options["lr"] * step
        return {
            "step": step,
            "eta": lr / (1 + decay) ** options["alpha"],
            "mu": 1 / max(1, step - options["t0"]),
        }

    def run_kernel(self, batch: Batch) -> None:
        rates = [(number(each["eta"]), number(each["mu"])) for each in batch.states]
        kernels.asgd_steps(*batch.arguments("lambd", "weight_decay", "maximize", counts=[rates]))
