"""Options of optimizers: their checks, and their values as plain numbers."""

from typing import Any

from offgrad.autograd.tensor_base import TensorBase
from offgrad.memory.meta import MetaArray, meters

_TITLES = {
    "lr": "learning rate",
    "eps": "epsilon value",
}


def check_options(**options: Any) -> None:
    """Raise ValueError for a negative option or NaN, or a tensor `lr` of several elements."""
    for name, option in options.items():
        if name == "lr" and isinstance(option, TensorBase) and option._array.size != 1:
            raise ValueError("Tensor lr must be 1-element")
        if not number(option) >= 0:
            title = _TITLES.get(name, f"{name} value")
            raise ValueError(f"Invalid {title}: {option}; {name} must be 0 or more")


def check_betas(betas: Any) -> None:
    """Raise ValueError for betas outside [0, 1)."""
    if isinstance(betas[0], TensorBase) != isinstance(betas[1], TensorBase):
        raise ValueError("betas must be either both floats or both Tensors, got one of each")
    for index, beta in enumerate(betas):
        if not 0.0 <= number(beta) < 1.0:
            raise ValueError(
                f"Invalid beta parameter at index {index}: {beta}; betas are from 0 to below 1"
            )


def check_tensor_lr(lr: Any, foreach: bool | None, capturable: bool) -> None:
    """Raise ValueError for a tensor `lr` with `foreach` alone, as PyTorch does."""
    if isinstance(lr, TensorBase) and foreach and not capturable:
        raise ValueError(
            "lr as a Tensor is not supported for capturable=False and foreach=True; pass a number, "
            "or leave out foreach"
        )


def check_common(foreach: bool | None, differentiable: bool, fused: bool | None = None) -> None:
    """Check the options that choose between PyTorch's implementations; here is one.

    Raises:
        RuntimeError: for `fused` with `foreach` or `differentiable`, as PyTorch.
        NotImplementedError: for `differentiable`.
    """
    if fused and differentiable:
        raise RuntimeError("`fused` does not support `differentiable`")
    if fused and foreach:
        raise RuntimeError("`fused` and `foreach` exclude each other: got both")
    if differentiable:
        raise NotImplementedError(
            "differentiable=True is not supported: a step cannot be recorded; write it in tensor "
            "operations"
        )


def scalar(array: Any) -> Any:
    """Return the element of an array; 1 where only the memory of a step is counted."""
    return 1.0 if type(array) is MetaArray and meters else array.item()


def number(option: Any) -> Any:
    """Return an option with tensors of one element as Python numbers, also in a tuple."""
    if isinstance(option, TensorBase):
        return scalar(option._array)
    if isinstance(option, tuple):
        return tuple([number(each) for each in option])
    return option


def numbers(group: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a group as Python numbers, without its parameters."""
    return {name: number(option) for name, option in group.items() if name != "params"}
