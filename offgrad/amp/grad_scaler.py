"""GradScaler: scales the loss, so that small gradients of 16 bits do not vanish."""

import warnings
from collections import defaultdict
from collections.abc import Iterable
from enum import Enum
from typing import Any

import numpy as np

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.autograd import grad_mode
from offgrad.autograd.tensor_base import metadata
from offgrad.optim.optimizer import Optimizer

__all__ = ["GradScaler", "OptState"]


class OptState(Enum):
    """What has happened to an optimizer since the last update."""

    READY = 0
    UNSCALED = 1
    STEPPED = 2


def _new_state() -> dict[str, Any]:
    return {"stage": OptState.READY, "found_inf": None}


class GradScaler:
    """Multiplies the loss by a scale, and skips steps whose gradients are not finite.

    ``scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()``. The scale shrinks
    after a skipped step, and grows after `growth_interval` others.

    Args:
        device: ``"cpu"``; for another one it warns and is disabled.
        init_scale: the first scale.
        growth_factor, backoff_factor: of the scale as it grows and shrinks.
        growth_interval: steps after which it grows.
        enabled: with False, all is as without a scaler.

    Raises:
        AssertionError: if the factors are not above and below 1.
    """

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        self._device = device
        self._enabled = enabled
        if enabled and device != "cpu":
            name = "CUDA" if device == "cuda" else device
            warnings.warn(
                f"GradScaler is enabled, but {name} is not available: there is only the CPU. "
                'Disabling. Use GradScaler("cpu").',
                UserWarning,
                stacklevel=2,
            )
            self._enabled = False
        if not self._enabled:
            return
        if not growth_factor > 1.0:
            raise AssertionError("The growth factor must be > 1.0.")
        if not backoff_factor < 1.0:
            raise AssertionError("The backoff factor must be < 1.0.")
        self._init_scale = init_scale
        self._scale: Tensor | None = None
        self._growth_factor = growth_factor
        self._backoff_factor = backoff_factor
        self._growth_interval = growth_interval
        self._init_growth_tracker = 0
        self._growth_tracker: Tensor | None = None
        self._per_optimizer_states: dict[int, dict[str, Any]] = defaultdict(_new_state)

    def scale(self, outputs: Any) -> Any:
        """Return a tensor, or tensors in iterables, times the scale.

        Raises:
            ValueError: for anything else.
        """
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return outputs * self._scale_tensor()
        if isinstance(outputs, Iterable):
            scaled = map(self.scale, outputs)
            return type(outputs)(scaled) if isinstance(outputs, (list, tuple)) else scaled
        raise ValueError("scale() takes a Tensor, or an iterable of them")

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients by the scale, and note whether they are finite.

        Raises:
            AssertionError: if nothing was scaled before.
            RuntimeError: if called twice, or after `step`, without an `update` in between.
            ValueError: for gradients of float16.
        """
        if not self._enabled:
            return
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.UNSCALED:
            raise RuntimeError(
                "unscale_() has already been called for this optimizer; call update() in between"
            )
        if state["stage"] is OptState.STEPPED:
            raise RuntimeError("unscale_() is being called after step().")
        inverse = 1.0 / self._known_scale("unscale_").double().item()
        state["found_inf"] = grad_mode.call(False, _unscale, optimizer, inverse)
        state["stage"] = OptState.UNSCALED

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Let an optimizer step, after `unscale_`, if its gradients are finite; return its result.

        Raises:
            RuntimeError: for a closure; if called twice without an `update` in between.
            AssertionError: if the optimizer has no gradients.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs:
            raise RuntimeError("step() of an enabled GradScaler takes no closure")
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.STEPPED:
            raise RuntimeError("step() has already been called; call update() in between")
        if state["stage"] is OptState.READY:
            self.unscale_(optimizer)
        if state["found_inf"] is None:
            raise AssertionError(
                "No inf checks for this optimizer: none of its parameters has a gradient"
            )
        result = None if state["found_inf"] else optimizer.step(*args, **kwargs)
        state["stage"] = OptState.STEPPED
        return result

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Shrink or grow the scale, after the steps of all optimizers; or set it.

        Raises:
            AssertionError: if no optimizer has made a step, or `new_scale` is no float.
        """
        if not self._enabled:
            return
        scale = self._known_scale("update")
        if new_scale is not None:
            if not isinstance(new_scale, (float, int)) and not (
                isinstance(new_scale, Tensor) and new_scale.numel() == 1
            ):
                raise AssertionError("new_scale must be a float, or a tensor of one element")
            scale.fill_(float(new_scale))
        else:
            found = [each["found_inf"] for each in self._per_optimizer_states.values()]
            found = [each for each in found if each is not None]
            if not found:
                raise AssertionError(
                    "No inf checks were recorded: call step() or unscale_() before update()"
                )
            self._adapt(scale, any(found))
        self._per_optimizer_states = defaultdict(_new_state)

    def _adapt(self, scale: Tensor, found_inf: bool) -> None:
        tracker = self._growth_tracker
        assert tracker is not None
        if found_inf:
            scale.mul_(self._backoff_factor)
            tracker.fill_(0)
            return
        successes = int(tracker) + 1
        if successes == self._growth_interval:
            grown = scale * self._growth_factor
            if np.isfinite(grown.item()):
                scale.copy_(grown)
            successes = 0
        tracker.fill_(successes)

    def _scale_tensor(self) -> Tensor:
        if self._scale is None:
            self._scale = ops.tensor(float(self._init_scale), dtype=np.float32)
            self._growth_tracker = ops.tensor(self._init_growth_tracker, dtype=np.int32)
        return self._scale

    def _known_scale(self, caller: str) -> Tensor:
        if self._scale is None:
            raise AssertionError(
                f"Attempted {caller} but _scale is None: call scaler.scale(loss).backward() before"
            )
        return self._scale

    def get_scale(self) -> float:
        """Return the scale; 1 if disabled."""
        if not self._enabled:
            return 1.0
        return float(self._init_scale if self._scale is None else self._scale)

    def get_growth_factor(self) -> float:
        """Return the factor by which the scale grows."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Set the factor by which the scale grows."""
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """Return the factor by which the scale shrinks."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set the factor by which the scale shrinks."""
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """Return the number of steps after which the scale grows."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Set the number of steps after which the scale grows."""
        self._growth_interval = new_interval

    def _get_growth_tracker(self) -> int:
        if not self._enabled:
            return 0
        tracker = self._growth_tracker
        return self._init_growth_tracker if tracker is None else int(tracker)

    def is_enabled(self) -> bool:
        """Return whether it scales."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """Return the scale, factors and counts; nothing if disabled."""
        if not self._enabled:
            return {}
        return {
            "scale": self.get_scale(),
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._get_growth_tracker(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of `state_dict`.

        Raises:
            RuntimeError: for the state of a disabled scaler.
        """
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError("the state is empty, as that of a GradScaler with enabled=False")
        self._init_scale = state_dict["scale"]
        self._growth_factor = state_dict["growth_factor"]
        self._backoff_factor = state_dict["backoff_factor"]
        self._growth_interval = state_dict["growth_interval"]
        self._init_growth_tracker = state_dict["_growth_tracker"]
        self._scale = self._growth_tracker = None


def _unscale(optimizer: Optimizer, inverse: float) -> bool | None:
    """Multiply gradients in place; return whether any is not finite, None if there are none."""
    grads = [
        param.grad
        for group in optimizer.param_groups
        for param in group["params"]
        if param.grad is not None
    ]
    for grad in grads:
        if metadata(grad).dtype == np.float16:
            raise ValueError("Attempting to unscale FP16 gradients.")
    for grad in grads:
        grad.mul_(inverse)
    is_finite = [bool(each.isfinite().all()) for each in grads]
    return not all(is_finite) if grads else None
