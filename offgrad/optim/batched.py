"""BatchedOptimizer, the base class of optimizers that update many parameters in one pass."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from offgrad_storage.interrupts import masked

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.autograd.tensor_base import metadata
from offgrad.memory import contiguous
from offgrad.memory.meta import shapes_only
from offgrad.optim.optimizer import Optimizer, as_real, writable
from offgrad.optim.options import number, numbers

Column: TypeAlias = Any
"""A list of an array for each parameter; None where there is none."""
Counts = dict[str, float]


class Batch(NamedTuple):
    """What a kernel updates, and what it needs for that.

    Attributes:
        columns: of parameters, of gradients, and of each of `buffers`.
        states: of the parameters, with the counts before the step.
        counts: what `next_counts` returned for each parameter.
        is_first: for each parameter, whether its state lacked something.
        options: of the group, as Python numbers.
    """

    columns: list[Column]
    states: list[dict[str, Any]]
    counts: list[Counts]
    is_first: list[bool]
    options: dict[str, Any]

    def steps(self) -> list[float]:
        """Return the number of the step, for each parameter."""
        return [each["step"] for each in self.counts]

    def arguments(self, *names: str, counts: Iterable[Any] = ()) -> list[Any]:
        """Return the columns, then `counts`, then options; the members of tuples one by one."""
        found: list[Any] = [*self.columns, *counts]
        for name in names:
            option = self.options[name]
            found += option if isinstance(option, (tuple, list)) else [option]
        return found


class BatchedOptimizer(Optimizer):
    """An optimizer whose kernels take many parameters at once.

    A subclass defines `buffers`, `first_state` and `run_kernel`, or else `update_all`. The result
    is that of `update`, one parameter after the other. A subclass may override `update` instead.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "update" in cls.__dict__ and "update_group" not in cls.__dict__:
            cls.update_group = Optimizer.update_group  # type: ignore[method-assign]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for values in self.state.values():  # of old versions
            if "step" in values and not isinstance(values["step"], Tensor):
                values["step"] = new_count(float(values["step"]))

    def update_group(self, params: Sequence[Tensor], group: dict[str, Any]) -> None:
        """Update parameters of one group, all of which have a gradient.

        One that needs a copy for the kernels comes by itself, so that no two copies exist at a
        time. Paged parameters come in batches that fit in memory, with gradients and states.
        """
        if len({*params}) < len(params):  # each time with the state of the time before
            super().update_group(params, group)
            return
        batch: list[Tensor] = []
        batch_nbytes = 0
        arrays_each = 2 + sum(each is not None for each in self.buffers(group))
        for param in params:
            spec, grad_spec = metadata(param), metadata(param._grad)  # type: ignore[arg-type]
            is_direct = spec.flags.c_contiguous and grad_spec.flags.c_contiguous
            nbytes = arrays_each * spec.nbytes
            fits = batch_nbytes + nbytes <= param._storage.max_batch_nbytes
            is_alike = not batch or param.is_meta is batch[0].is_meta
            if not (is_direct and fits and is_alike):
                self._update_batch(batch, group)
                batch, batch_nbytes = [], 0
            if is_direct:
                batch.append(param)
                batch_nbytes += nbytes
            else:
                super().update_group([param], group)
        self._update_batch(batch, group)

    def _update_batch(self, batch: list[Tensor], group: dict[str, Any]) -> None:
        if batch:
            grads: list[Any] = [each._grad for each in batch]
            states = [self.state_of(each, group) for each in batch]
            with masked:  # Ctrl-C comes while pages are read, or after the note
                self.update_all(batch, grads, states, group)
                self.note_updated(batch)

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
        """Update contiguous parameters in place, and their states.

        Ctrl-C finds either all parameters and states as before, or all of them updated.

        Raises:
            KeyError: if a state lacks a buffer that an option needs which was set later.
        """
        name = type(self).__name__
        new = [
            self.lacking_state(param, state, group)
            for param, state in zip(params, states, strict=True)
        ]
        states_after = [
            {**state, **first} if first else state for state, first in zip(states, new, strict=True)
        ]
        options = numbers(group)
        counts = [self.next_counts(each, options) for each in states_after]
        columns = [_column(params, name), [as_real(contiguous(each._array)) for each in grads]]
        for buffer in self.buffers(group):
            if buffer is None:
                columns.append([None] * len(params))
                continue
            if any(buffer not in each for each in states_after):
                raise KeyError(
                    f"{name} needs {buffer} in the state of each parameter, but the option was set "
                    "after the first step; make a new optimizer"
                )
            columns.append(_column([each[buffer] for each in states_after], name))
        targets = [
            (state[key], value)
            for state, count in zip(states_after, counts, strict=True)
            for key, value in count.items()
        ]
        for target, _ in targets:
            target._storage.write(name)
        # Kernels do nothing to meta tensors.
        with masked, shapes_only() if params[0].is_meta else nullcontext():
            self.run_kernel(Batch(columns, states_after, counts, [*map(bool, new)], options))
            for target, value in targets:
                target._array[...] = value
            for state, first in zip(states, new, strict=True):
                if first:
                    state.update(first)

    def lacking_state(
        self, param: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> dict[str, Any]:
        """Return what the state of a parameter lacks for this step."""
        return {} if state else self.first_state(param, group)

    def first_state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        """Return the state of a parameter before its first step."""
        first = {name: self.new_state(param) for name in self.buffers(group) if name}
        return {"step": new_count(), **first}

    def buffers(self, group: dict[str, Any]) -> tuple[str | None, ...]:
        """Return the names of the state's arrays that the kernel takes, None for an unused one."""
        return ()

    def next_counts(self, state: dict[str, Any], options: dict[str, Any]) -> Counts:
        """Return the numbers in a parameter's state after this step."""
        step = state["step"]
        return {"step": number(step) + 1}

    def run_kernel(self, batch: Batch) -> None:
        """Update the arrays of a batch in place; for subclasses to define."""
        raise NotImplementedError(
            f"{type(self).__name__} defines neither update() nor run_kernel()"
        )


def new_count(value: float = 0.0) -> Tensor:
    """Return a number of a parameter's state, a float tensor without dimensions."""
    is_double = ops.get_default_dtype() == np.float64
    tensor = ops.tensor(value, dtype=np.float64 if is_double else np.float32)
    tensor._storage.role = "optimizer state"
    return tensor


def _column(tensors: Sequence[Tensor], name: str) -> Column:
    return [as_real(each) for each in writable(tensors, name)]
