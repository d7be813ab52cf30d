"""Adam for sparse gradients."""

from typing import Any

import numpy as np

from offgrad._tensor.tensor import Tensor
from offgrad.ops._core.sparse_data import is_sparse
from offgrad.optim.optimizer import Optimizer, ParamsT
from offgrad.optim.options import check_betas, check_options, numbers
from offgrad.optim.sparse_gradients import add_at, elements


class SparseAdam(Optimizer):
    """Adam (Kingma and Ba, 2015) on the rows alone that a sparse gradient has.

    Moments of other rows do not decay. Keeps two dense buffers per parameter.

    Raises:
        ValueError: for betas outside [0, 1), for an `lr` or `eps` that is not positive, and for
            sparse parameters.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        maximize: bool = False,
    ) -> None:
        check_options(lr=lr, eps=eps)
        for name, option, title in (("lr", lr, "learning rate"), ("eps", eps, "epsilon value")):
            if not option > 0:
                raise ValueError(f"Invalid {title}: {option}; {name} must be above 0")
        check_betas(betas)
        defaults = {"lr": lr, "betas": betas, "eps": eps, "maximize": maximize}
        super().__init__(params, defaults)
        found = [
            [number, at]
            for number, group in enumerate(self.param_groups)
            for at, each in enumerate(group["params"])
            if is_sparse(each)
        ]
        if found:
            raise ValueError(
                f"SparseAdam requires dense parameter tensors, got sparse ones at indices {found}"
            )

    def update_group(self, params: Any, group: dict[str, Any]) -> None:
        raise RuntimeError(
            "SparseAdam does not support dense gradients; use Adam for such parameters"
        )

    def update_sparse(self, param: Tensor, grad: Any, group: dict[str, Any]) -> None:
        """Update the rows of a sparse gradient, and their moments."""
        state, options = self.state[param], numbers(group)
        if not state:
            state["step"] = 0
            state["exp_avg"], state["exp_avg_sq"] = self.new_state(param), self.new_state(param)
        state["step"] += 1
        step, (beta1, beta2) = state["step"], options["betas"]
        index, values = elements(-grad if options["maximize"] else grad)
        first, second = state["exp_avg"], state["exp_avg_sq"]
        add_at(first, index, (values - first._array[index]) * (1 - beta1), "SparseAdam")
        add_at(second, index, (values**2 - second._array[index]) * (1 - beta2), "SparseAdam")
        rate = options["lr"] * np.sqrt(1 - beta2**step) / (1 - beta1**step)
        scale = np.sqrt(second._array[index]) + options["eps"]
        add_at(param, index, -float(rate) * first._array[index] / scale, "SparseAdam")
