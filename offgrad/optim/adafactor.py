"""Adafactor."""

from typing import Any

import ml_dtypes
from offgrad_storage.interrupts import masked

from offgrad import kernels, ops
from offgrad._tensor.tensor import Tensor
from offgrad.memory import contiguous
from offgrad.optim.batched import new_count
from offgrad.optim.optimizer import Optimizer, ParamsT, writable
from offgrad.optim.options import numbers, scalar


class Adafactor(Optimizer):
    """Steps scaled by squared gradients of which it keeps means per row and column only.

    (Shazeer and Stern, 2018.) The state of a matrix takes the memory of one row and one column.

    Raises:
        ValueError: for a negative `lr`, `eps` or `weight_decay`, a positive `beta2_decay`, or `d`
            below 1.
        RuntimeError: by a step, for complex parameters.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        if isinstance(lr, Tensor) and lr.numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
        for name, value, is_allowed in (
            ("Learning rate should be >= 0", lr, lr >= 0),
            ("beta2_decay should be <= 0", beta2_decay, beta2_decay <= 0),
            ("epsilon1 should be >= 0", eps[0], eps[0] is None or eps[0] >= 0),
            ("epsilon2 should be >= 0", eps[1], eps[1] >= 0),
            ("Clipping threshold d should be >= 1", d, d >= 1),
            ("weight_decay should be >= 0", weight_decay, weight_decay >= 0),
        ):
            if not is_allowed:
                raise ValueError(f"{name} but is: {value}")
        defaults = {
            "lr": lr,
            "beta2_decay": beta2_decay,
            "eps": eps,
            "d": d,
            "weight_decay": weight_decay,
            "foreach": foreach,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for values in self.state.values():  # of old versions
            if "step" in values and not isinstance(values["step"], Tensor):
                values["step"] = new_count(float(values["step"]))

    def update(
        self, param: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        if param.is_complex():
            raise RuntimeError("Adafactor does not support complex parameters")
        options = numbers(group)
        eps1, eps2 = options["eps"]
        if eps1 is None:
            eps1 = float(ml_dtypes.finfo(param._array.dtype).eps)  # type: ignore[no-untyped-call]
        after = state or self._first_state(param)
        kept = {key: writable([each], "Adafactor")[0] for key, each in after.items()}
        array = writable([param], "Adafactor")[0]
        step = scalar(kept["step"]) + 1
        with masked:
            kernels.adafactor_step(
                array,
                contiguous(grad._array),
                kept.get("row_var"),
                kept.get("col_var"),
                kept.get("variance"),
                step,
                options["lr"],
                options["beta2_decay"],
                eps1,
                eps2,
                options["d"],
                options["weight_decay"],
                options["maximize"],
            )
            kept["step"][...] = step
            state.update(after)

    def _first_state(self, param: Tensor) -> dict[str, Any]:
        if param.ndim < 2:
            return {"step": new_count(), "variance": self.new_state(param)}
        rows, columns = param.shape[:-1], param.shape[-1]
        shapes = {"row_var": (*rows, 1), "col_var": (*rows[:-1], 1, columns)}
        state = {"step": new_count()}
        for name, shape in shapes.items():
            state[name] = ops.zeros(shape, dtype=param._array.dtype)
            state[name]._storage.role = "optimizer state"
        return state
