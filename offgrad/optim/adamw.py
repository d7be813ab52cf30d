"""Adam and AdamW."""

from collections.abc import Iterable
from typing import Any

from offgrad import kernels
from offgrad._tensor.tensor import Tensor
from offgrad.memory import contiguous
from offgrad.optim.optimizer import Optimizer, check_options, writable


class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019), in one fused kernel.

    Keeps two buffers per parameter, three with `amsgrad`.

    Raises:
        ValueError: for betas outside [0, 1), or a negative `lr`, `eps` or `weight_decay`.
    """

    _decoupled = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        check_options(lr=lr, eps=eps, weight_decay=weight_decay)
        for beta in betas:
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"betas must be from 0 to below 1, got {betas}")
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "amsgrad": amsgrad,
                "maximize": maximize,
            },
        )

    def update(
        self, param: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        if not state:
            state["step"] = 0
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = self.new_state(param)
            if group["amsgrad"]:
                state["max_exp_avg_sq"] = self.new_state(param)
        state["step"] += 1
        name = type(self).__name__
        max_exp_avg_sq = state.get("max_exp_avg_sq")
        kernels.adamw_step(
            writable(param, name),
            contiguous(grad._array).reshape(-1),
            writable(state["exp_avg"], name),
            writable(state["exp_avg_sq"], name),
            group["lr"],
            group["betas"][0],
            group["betas"][1],
            group["eps"],
            group["weight_decay"],
            state["step"],
            group["maximize"],
            None if max_exp_avg_sq is None else writable(max_exp_avg_sq, name),
            self._decoupled,
        )


class Adam(AdamW):
    """Adam (Kingma and Ba, 2015), with weight decay added to the gradient, as in PyTorch."""

    _decoupled = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)
