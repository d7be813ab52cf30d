"""BatchedOptimizer, the base class of optimizers that update many parameters in one pass."""

from collections.abc import Sequence
from typing import Any

from offgrad._tensor.tensor import Tensor
from offgrad.optim.optimizer import Optimizer


class BatchedOptimizer(Optimizer):
    """An optimizer whose kernels take many parameters at once; a subclass defines `update_all`.

    The result is that of `update`, one parameter after the other. A subclass may override `update`
    instead.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "update" in cls.__dict__ and "update_group" not in cls.__dict__:
            cls.update_group = Optimizer.update_group  # type: ignore[method-assign]

    def update_group(self, params: Sequence[Tensor], group: dict[str, Any]) -> None:
        """Update parameters of one group, all of which have a gradient.

        One that needs a copy for the kernels comes by itself, so that no two copies exist at a
        time.
        """
        if len({*params}) < len(params):  # each time with the state of the time before
            super().update_group(params, group)
            return
        batch: list[Tensor] = []
        for param in params:
            grad: Any = param._grad
            if param._array.flags.c_contiguous and grad._array.flags.c_contiguous:
                batch.append(param)
                continue
            self._update_batch(batch, group)
            batch = []
            super().update_group([param], group)
        self._update_batch(batch, group)

    def _update_batch(self, batch: list[Tensor], group: dict[str, Any]) -> None:
        if batch:
            grads: list[Any] = [each._grad for each in batch]
            states = [self.state.setdefault(each, {}) for each in batch]
            self.update_all(batch, grads, states, group)

    def update(
        self, param: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        """Update one contiguous parameter in place, and its `state`."""
        self.update_all([param], [grad], [state], group)

    def update_all(
        self,
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        states: Sequence[dict[str, Any]],
        group: dict[str, Any],
    ) -> None:
        """Update contiguous parameters in place, and their states; for subclasses to define.

        Ctrl-C finds either all parameters and states as before, or all of them updated.
        """
        raise NotImplementedError
