"""Adam and AdamW."""

from collections.abc import Iterable, Sequence
from typing import Any

from offgrad_storage.interrupts import masked

from offgrad import kernels
from offgrad._tensor.tensor import Tensor
from offgrad.memory import contiguous
from offgrad.optim.batched import BatchedOptimizer
from offgrad.optim.optimizer import check_options, writable


class AdamW(BatchedOptimizer):
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

    def update_all(
        self,
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        states: Sequence[dict[str, Any]],
        group: dict[str, Any],
    ) -> None:
        for param, state in zip(params, states, strict=True):
            if not state:
                state.update(self._first_state(param, group))
        name = type(self).__name__
        steps = [each["step"] + 1 for each in states]
        # The group's setting counts, not that of the first step.
        highest = [each.get("max_exp_avg_sq") if group["amsgrad"] else None for each in states]
        if group["amsgrad"] and any(each is None for each in highest):
            raise KeyError(
                "amsgrad needs max_exp_avg_sq in the state of each parameter, but it was set after "
                "the first step; make a new optimizer"
            )
        arrays = (
            writable(params, name),
            [contiguous(each._array) for each in grads],
            writable([each["exp_avg"] for each in states], name),
            writable([each["exp_avg_sq"] for each in states], name),
            [None if each is None else writable([each], name)[0] for each in highest],
        )
        with masked:
            kernels.adamw_steps(
                *arrays,
                steps,
                group["lr"],
                group["betas"][0],
                group["betas"][1],
                group["eps"],
                group["weight_decay"],
                group["maximize"],
                self._decoupled,
            )
            for state, step in zip(states, steps, strict=True):
                state["step"] = step

    def _first_state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        names = ["exp_avg", "exp_avg_sq"]
        if group["amsgrad"]:
            names.append("max_exp_avg_sq")
        return {"step": 0} | {name: self.new_state(param) for name in names}


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
