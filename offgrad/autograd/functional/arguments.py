"""Checks of arguments and forms of results for the functions of `offgrad.autograd.functional`."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from offgrad.autograd.gradients import grad
from offgrad.autograd.tensor_base import TensorBase, describe

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

# Errors of strict=True; the number is the index of the output, input or result.
_V_NONE = {
    "output": "the user-provided function returns",
    "input": "the input to the user-provided function is",
}
OUTPUT_INDEPENDENT = "Output {} of the user-provided function does not require gradients"
INPUT_UNUSED = "The output of the user-provided function is independent of input {}"
OUTPUT_UNUSED = "Output {output} of the user-provided function is independent of input {{}}"
GRADIENT_INDEPENDENT = (
    "hessian: the jacobian of the user-provided function with respect to input {} is independent "
    "of the input: it is constant"
)
RESULT_CONSTANT = (
    "The jacobian of the user-provided function is independent of input {}, so that "
    "create_graph=True cannot make the result differentiable"
)


def make_func_inputs(
    inputs: Any, caller: str, create_graph: bool
) -> "tuple[tuple[Tensor, ...], bool]":
    """Return new tensors over the data of `inputs`, and whether `inputs` was a single tensor.

    All require grad. With `create_graph` they are views of the inputs that require grad; the others
    have no history, so that `func` cannot change that of `inputs`.
    """
    tensors, is_single = _as_tensors(inputs, "inputs", caller)
    return tuple(_func_input(each, create_graph, True) for each in tensors), is_single


def checked_vector(
    v: Any, like: "tuple[Tensor, ...]", kind: str, caller: str, create_graph: bool
) -> "tuple[Tensor, ...] | None":
    """Return `v` as a tuple, or None if it is None, after a check that it fits `like`.

    Args:
        v: a tensor, a tuple of tensors, or None.
        like: the tensors whose number and shapes `v` must have.
        kind: the kind of these tensors, "input" or "output", for messages.
        caller: the function's name, for messages.
        create_graph: whether gradients must flow to `v`.

    Raises:
        TypeError: for anything but tensors and tuples of them.
        RuntimeError: for another number or other shapes; for real in place of complex, and the
            reverse; for None unless `like` is one real element, whose default is 1.
    """
    if v is None:
        if len(like) != 1 or like[0].numel() != 1:
            shapes = ", ".join(describe(each) for each in like)
            raise RuntimeError(
                f"{caller}: The vector v can only be None if {_V_NONE[kind]} one tensor of one "
                f"element, got {shapes}; pass as v a tensor of its shape for each {kind}"
            )
        check_real(like[0], caller)
        return None
    tensors, _ = _as_tensors(v, "v", caller)
    if len(tensors) != len(like):
        if len(like) == 1:
            raise RuntimeError(
                f"{caller}(): The given v should contain a single Tensor, got {len(tensors)}"
            )
        raise RuntimeError(
            f"{caller}(): v has an invalid length: it needs {len(like)} tensors, one for each "
            f"{kind}, got {len(tensors)}"
        )
    for index, (each, expected) in enumerate(zip(tensors, like, strict=True)):
        if each.shape != expected.shape:
            raise RuntimeError(
                f"{caller}(): v has invalid size: should be torch.Size({list(expected.shape)}) but "
                f"got torch.Size({list(each.shape)}), in entry {index}: v has the shapes of the "
                f"{kind}s"
            )
        if each.is_complex() != expected.is_complex():
            raise RuntimeError(
                f"{caller}() needs v complex where the {kind}s are, and real elsewhere, but {kind} "
                f"{index} is a {describe(expected)}, and v there a {describe(each)}; convert it"
            )
    return tuple(_func_input(each, create_graph, False) for each in tensors)


def call_function(
    func: Callable[..., Any], func_inputs: "tuple[Tensor, ...]", caller: str, strict: bool
) -> "tuple[tuple[Tensor, ...], bool]":
    """Return the outputs of `func` as a tuple, and whether it returned a single tensor.

    Raises:
        TypeError: if it returns anything but tensors and tuples of them.
        RuntimeError: with `strict`, if an output does not require grad.
    """
    outputs, is_single = _as_tensors(
        func(*func_inputs), "outputs of the user-provided function", caller
    )
    if strict:
        check_recorded(outputs, OUTPUT_INDEPENDENT)
    return outputs, is_single


def call_scalar_function(
    func: Callable[..., Any], func_inputs: "tuple[Tensor, ...]", caller: str, strict: bool
) -> "Tensor":
    """Return the output of `func`, one real element.

    Raises:
        TypeError: as `call_function`.
        RuntimeError: as `call_function`; and if the output is a tuple, not one element, or complex.
    """
    outputs, is_single = call_function(func, func_inputs, caller, strict)
    if not is_single:
        raise RuntimeError(
            f"The function given to {caller} should return a single Tensor, got a tuple of "
            f"{len(outputs)}; return the tensor itself"
        )
    (output,) = outputs
    if output.numel() != 1:
        raise RuntimeError(
            f"The Tensor returned by the function given to {caller} should contain a single "
            f"element, got a {describe(output)}; reduce it, as by sum()"
        )
    check_real(output, caller)
    return output


def value_and_gradient(
    func: Callable[..., Any], func_inputs: "tuple[Tensor, ...]", caller: str, strict: bool
) -> "tuple[Tensor, tuple[Tensor | None, ...]]":
    """Return the output of `func`, one real element, and its recorded gradient."""
    output = call_scalar_function(func, func_inputs, caller, strict)
    grads = gradients((output,), func_inputs, None, create_graph=True)
    if strict:
        fill_missing(grads, func_inputs, strict, INPUT_UNUSED)
        check_recorded(grads, GRADIENT_INDEPENDENT)
    return output, grads


def check_real(output: "Tensor", caller: str) -> None:
    """Raise unless `output` is real, so that its gradient defaults to 1."""
    if output.is_complex():
        raise RuntimeError(
            f"{caller}() takes gradients of real numbers, got a {describe(output)}, whose real and "
            "imaginary parts have one each; pass these separately, or use vjp() with v"
        )


def check_recorded(grads: "Sequence[Tensor | None]", message: str) -> None:
    """Raise `message`, with the index, for the first gradient that is missing or a constant."""
    for index, each in enumerate(grads):
        if each is None or not each.requires_grad:
            raise RuntimeError(_strict_message(message, index))


def gradients(
    outputs: "Sequence[Tensor | None]",
    inputs: "Sequence[Tensor]",
    grad_outputs: "Sequence[Tensor] | None",
    create_graph: bool,
) -> "tuple[Tensor | None, ...]":
    """Return the gradients of those `outputs` that have a history, and keep the graph."""
    indices = [
        index for index, each in enumerate(outputs) if each is not None and each.requires_grad
    ]
    if not indices:
        return (None,) * len(inputs)
    found: tuple[Tensor | None, ...] = grad(
        [outputs[index] for index in indices],  # type: ignore[misc]
        inputs,
        None if grad_outputs is None else [grad_outputs[index] for index in indices],
        retain_graph=True,
        create_graph=create_graph,
        allow_unused=True,
    )
    return found


def fill_missing(
    grads: "Sequence[Tensor | None]", like: "Sequence[Tensor]", strict: bool, message: str
) -> "tuple[Tensor, ...]":
    """Return `grads` with zeros in the shapes of `like` in place of None.

    Raises:
        RuntimeError: with `strict`, if one is None: `message`, with its index.
    """
    if strict:
        for index, each in enumerate(grads):
            if each is None:
                raise RuntimeError(_strict_message(message, index))
    return tuple(
        tensor.new_zeros(tensor.shape) if each is None else each
        for each, tensor in zip(grads, like, strict=True)
    )


def format_results(tensors: "Sequence[Tensor]", is_single: bool, create_graph: bool) -> Any:
    """Return a tensor or a tuple, as the user passed them; detached without `create_graph`."""
    results = tuple(tensors) if create_graph else tuple(each.detach() for each in tensors)
    return results[0] if is_single else results


def _strict_message(message: str, index: int) -> str:
    return (
        f"{message.format(index)}, which strict mode forbids; leave strict out to get zeros or "
        "constants"
    )


def _func_input(tensor: "Tensor", create_graph: bool, requires_grad: bool) -> "Tensor":
    if create_graph and tensor.requires_grad:
        return tensor.view(tensor.shape)
    return tensor.detach().requires_grad_(requires_grad)


def _as_tensors(values: Any, kind: str, caller: str) -> "tuple[tuple[Tensor, ...], bool]":
    """Return one tensor or several as a tuple, and whether it was a single tensor."""
    is_single = not isinstance(values, tuple)
    tensors = (values,) if is_single else values
    for index, each in enumerate(tensors):
        if not isinstance(each, TensorBase):
            position = "" if is_single else f" at index {index}"
            raise TypeError(
                f"The {kind} given to {caller} must be either a Tensor or a tuple of Tensors, got "
                f"{type(each).__name__}{position}"
            )
    if not tensors and kind != "v":  # for v, the caller's message gives the expected number
        raise IndexError(f"{caller}() needs {kind} to be at least one tensor, got an empty tuple")
    return tensors, is_single
