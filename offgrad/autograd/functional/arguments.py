"""What the functions of `offgrad.autograd.functional` take and give back, checked and formed."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from offgrad.autograd.gradients import grad
from offgrad.autograd.tensor_base import TensorBase, describe

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

# What strict=True found, for the output or input of that number.
INDEPENDENT = "output {} of the function depends on no input"
UNUSED = "no output of the function depends on input {}"
FLAT = "the gradient of the function does not depend on input {}"
CONSTANT = "result {} is a constant, which create_graph=True cannot make differentiable"


def begin(inputs: Any, caller: str, create_graph: bool) -> "tuple[tuple[Tensor, ...], bool]":
    """Return tensors of the caller's own over the data of `inputs`, and whether it was one tensor.

    All require grad. Those whose gradients are to flow on to `inputs` are views of them; the others
    have no history, so that nothing `func` does leaves a trace there.
    """
    given, single = _as_tensors(inputs, "inputs", caller)
    return tuple(_own(each, create_graph, True) for each in given), single


def vector(
    v: Any, like: "tuple[Tensor, ...]", what: str, caller: str, create_graph: bool
) -> "tuple[Tensor, ...] | None":
    """Return `v` as a tuple, None if it is None, once it is known to fit `like`.

    Args:
        v: a tensor, a tuple of tensors, or None.
        like: what `v` is to be multiplied into the place of.
        what: what those are, for messages.
        caller: the function's name, for messages.
        create_graph: whether gradients are to flow on to `v`.

    Raises:
        TypeError: for anything but tensors and tuples of them.
        RuntimeError: for other numbers or shapes, real for complex and the reverse; for None unless
            `like` is one real element, so that 1 is meant.
    """
    if v is None:
        if len(like) != 1 or like[0].numel() != 1:
            shapes = ", ".join(describe(each) for each in like)
            raise RuntimeError(
                f"{caller}() needs v unless there is one {what} of one element, got {shapes}; pass "
                f"a tensor of its shape for each {what}"
            )
        check_real(like[0], caller)
        return None
    given, _ = _as_tensors(v, "v", caller)
    if len(given) != len(like):
        raise RuntimeError(
            f"{caller}() needs in v one tensor for each of {len(like)} {what}s, got {len(given)}"
        )
    for index, (each, place) in enumerate(zip(given, like, strict=True)):
        if each.shape != place.shape:
            raise RuntimeError(
                f"{caller}() needs in v tensors of the shapes of the {what}s, but {what} {index} "
                f"is a {describe(place)}, and v there a {describe(each)}"
            )
        if each.is_complex() != place.is_complex():
            raise RuntimeError(
                f"{caller}() needs v complex where the {what}s are, and real elsewhere, but {what} "
                f"{index} is a {describe(place)}, and v there a {describe(each)}; convert it"
            )
    return tuple(_own(each, create_graph, False) for each in given)


def call(
    func: Callable[..., Any], local: "tuple[Tensor, ...]", caller: str, strict: bool
) -> "tuple[tuple[Tensor, ...], bool]":
    """Return what `func` makes of `local` as a tuple, and whether it was one tensor.

    Raises:
        TypeError: if it is anything but tensors and tuples of them.
        RuntimeError: if `strict`, and one of them does not require grad.
    """
    outputs, single = _as_tensors(func(*local), "what the function returns", caller)
    if strict:
        check_connected(outputs, INDEPENDENT)
    return outputs, single


def call_for_one(
    func: Callable[..., Any], local: "tuple[Tensor, ...]", caller: str, strict: bool
) -> "Tensor":
    """Return the one element that `func` makes of `local`.

    Raises:
        TypeError: as `call`.
        RuntimeError: as `call`; and if it is a tuple, not one element, or complex.
    """
    outputs, single = call(func, local, caller, strict)
    if not single:
        raise RuntimeError(
            f"{caller}() needs a function that returns one tensor, got a tuple of {len(outputs)}; "
            "return the tensor itself"
        )
    (output,) = outputs
    if output.numel() != 1:
        raise RuntimeError(
            f"{caller}() needs a function that returns one element, got a {describe(output)}; "
            "reduce it, as by sum()"
        )
    check_real(output, caller)
    return output


def slope_of(
    func: Callable[..., Any], local: "tuple[Tensor, ...]", caller: str, strict: bool
) -> "tuple[Tensor, tuple[Tensor | None, ...]]":
    """Return the one element `func` gives, and its recorded gradient."""
    output = call_for_one(func, local, caller, strict)
    found = gradients((output,), local, None, create_graph=True)
    if strict:
        filled(found, local, strict, UNUSED)
        check_connected(found, FLAT)
    return output, found


def check_real(output: "Tensor", caller: str) -> None:
    """Raise unless `output` is real, so that gradient 1 is the one to begin with."""
    if output.is_complex():
        raise RuntimeError(
            f"{caller}() takes gradients of real numbers, got a {describe(output)}: it has two, of "
            "its real and its imaginary part; take these apart, or use vjp() with v"
        )


def check_connected(found: "Sequence[Tensor | None]", message: str) -> None:
    """Raise `message`, filled with the index, for the first that is missing or is a constant."""
    for index, each in enumerate(found):
        if each is None or not each.requires_grad:
            raise RuntimeError(_strict(message, index))


def gradients(
    outputs: "Sequence[Tensor | None]",
    inputs: "Sequence[Tensor]",
    starts: "Sequence[Tensor] | None",
    create_graph: bool,
) -> "tuple[Tensor | None, ...]":
    """Return the gradients of `outputs`, as far as they have a history, and keep the graph."""
    places = [
        index for index, each in enumerate(outputs) if each is not None and each.requires_grad
    ]
    if not places:
        return (None,) * len(inputs)
    return grad(
        [outputs[index] for index in places],  # type: ignore[misc]
        inputs,
        None if starts is None else [starts[index] for index in places],
        retain_graph=True,
        create_graph=create_graph,
        allow_unused=True,
    )


def filled(
    found: "Sequence[Tensor | None]", like: "Sequence[Tensor]", strict: bool, message: str
) -> "tuple[Tensor, ...]":
    """Return `found` with zeros in the shapes of `like` for what is missing.

    Raises:
        RuntimeError: if `strict`, and something is: `message`, filled with its index.
    """
    if strict:
        for index, each in enumerate(found):
            if each is None:
                raise RuntimeError(_strict(message, index))
    return tuple(
        place.new_zeros(place.shape) if each is None else each
        for each, place in zip(found, like, strict=True)
    )


def finish(tensors: "Sequence[Tensor]", single: bool, create_graph: bool) -> Any:
    """Return results in the form the user's arguments had, with a history if it was asked for."""
    results = tuple(tensors) if create_graph else tuple(each.detach() for each in tensors)
    return results[0] if single else results


def _strict(message: str, index: int) -> str:
    return f"strict=True: {message.format(index)}; leave strict out to get zeros or constants"


def _own(tensor: "Tensor", create_graph: bool, requires_grad: bool) -> "Tensor":
    if create_graph and tensor.requires_grad:
        return tensor.view(tensor.shape)
    return tensor.detach().requires_grad_(requires_grad)


def _as_tensors(values: Any, what: str, caller: str) -> "tuple[tuple[Tensor, ...], bool]":
    """Return one tensor or a tuple of them as a tuple, and whether it was one."""
    single = not isinstance(values, tuple)
    given = (values,) if single else values
    for index, each in enumerate(given):
        if not isinstance(each, TensorBase):
            place = "" if single else f" at index {index}"
            raise TypeError(
                f"{caller}() needs {what} to be a tensor or a tuple of tensors, got "
                f"{type(each).__name__}{place}"
            )
    if not given and what != "v":  # For v, the number of others is the better measure.
        raise IndexError(f"{caller}() needs {what} to be at least one tensor, got an empty tuple")
    return given, single
