"""An optimizer on other parameters and state, for a while."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from offgrad._tensor.tensor import Tensor
from offgrad.optim.optimizer import Optimizer


@contextmanager
def swap_in_optimizer_params_and_state(
    optimizer: Optimizer,
    swapin_parameters: dict[str, Tensor],
    swapin_optim_state: dict[str, Any],
) -> Iterator[None]:
    """Run a block with other parameters and state in an optimizer, then put its own back.

    Args:
        optimizer: the optimizer, which has state.
        swapin_parameters: tensors in the order of its parameters, under any names.
        swapin_optim_state: state and groups as `state_dict` returns them. Steps change its tensors.

    Raises:
        ValueError: if there are not as many parameters and groups as the optimizer has.
    """
    groups, state = optimizer.param_groups, optimizer.state
    tensors, given = [*swapin_parameters.values()], swapin_optim_state["param_groups"]
    sizes = [len(group["params"]) for group in groups]
    if sum(sizes) != len(tensors) or sizes != [len(group["params"]) for group in given]:
        raise ValueError(
            f"the optimizer has groups of {sizes} parameters, got {len(tensors)} parameters and "
            f"groups of {[len(group['params']) for group in given]}"
        )
    numbers = [number for group in given for number in group["params"]]
    by_number = dict(zip(numbers, tensors, strict=True))
    swapped: defaultdict[Any, Any] = defaultdict(dict)
    for number, values in swapin_optim_state["state"].items():
        swapped[by_number[number]] = dict(values)
    optimizer.param_groups = [
        {**group, "params": [by_number[number] for number in group["params"]]} for group in given
    ]
    optimizer.state = swapped
    try:
        yield
    finally:
        optimizer.param_groups, optimizer.state = groups, state
