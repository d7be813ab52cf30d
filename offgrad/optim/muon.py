"""Muon."""

from typing import Any

from offgrad_storage.interrupts import masked

from offgrad import kernels
from offgrad._tensor.tensor import Tensor
from offgrad.memory import contiguous
from offgrad.optim.optimizer import Optimizer, ParamsT, writable
from offgrad.optim.options import numbers

_MAX_STEPS = 100


class Muon(Optimizer):
    """Momentum whose matrices are made nearly orthogonal (Jordan et al., 2024); for matrices only.

    Keeps one buffer per parameter.

    Args:
        params: matrices; leave embeddings, the last layer and vectors to another optimizer.
        lr, weight_decay, momentum, nesterov: as of `SGD`, but weight decay is decoupled.
        ns_coefficients, ns_steps: polynomial and number of the Newton-Schulz iterations.
        eps: least norm by which a matrix is divided.
        adjust_lr_fn: how the rate depends on the shape: ``"original"`` (the default) keeps the
            step's size per row, ``"match_rms_adamw"`` has that of AdamW.

    Raises:
        ValueError: for a negative option, another `adjust_lr_fn`, or a parameter that is no matrix.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:
        if isinstance(lr, Tensor) and lr.numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
        names = {"Learning rate": lr, "momentum": momentum, "weight decay": weight_decay}
        for name, value in names.items():
            if not value >= 0:
                raise ValueError(f"{name} should be >= 0 but is: {value}")
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise ValueError(
                f"Adjust learning rate function {adjust_lr_fn} is not supported: adjust_lr_fn must "
                "be 'original', 'match_rms_adamw' or None"
            )
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_coefficients": ns_coefficients,
            "eps": eps,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
        }
        super().__init__(params, defaults)
        for group in self.param_groups:
            for param in group["params"]:
                if param.ndim != 2:
                    raise ValueError(
                        f"Muon only supports 2D parameters, got one of shape {list(param.shape)}; "
                        "leave it to another optimizer"
                    )

    def update(
        self, param: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        if param.is_complex():
            raise RuntimeError("Muon does not support complex parameters")
        options = numbers(group)
        if options["ns_steps"] >= _MAX_STEPS:
            raise ValueError(f"ns_steps must be below {_MAX_STEPS}: more gain nothing")
        after = state or {"momentum_buffer": self.new_state(param)}
        arrays = writable([param, after["momentum_buffer"]], "Muon")
        names = "weight_decay", "momentum", "nesterov", "ns_coefficients", "eps", "ns_steps"
        with masked:
            kernels.muon_step(
                arrays[0],
                contiguous(grad._array),
                arrays[1],
                options["lr"],
                options["lr"] * _shape_factor(options["adjust_lr_fn"], param.shape),
                *map(options.__getitem__, names),
            )
            state.update(after)


def _shape_factor(name: str | None, shape: tuple[int, ...]) -> float:
    rows, columns = shape
    if name == "match_rms_adamw":
        return float(0.2 * max(rows, columns) ** 0.5)
    return float(max(1, rows / columns) ** 0.5)
