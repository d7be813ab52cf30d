"""gradcheck and gradgradcheck: comparison of gradients with finite differences."""

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from offgrad import memory
from offgrad.autograd.gradients import grad as gradients
from offgrad.autograd.tensor_base import TensorBase, describe, is_differentiable, wrap

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

Array: TypeAlias = NDArray[Any]

# A Jacobian has a row for each element of the input and a column for each element of the output.
# A complex output counts as two real ones, its real and its imaginary part.


class GradcheckError(RuntimeError):
    """A gradient differs from its finite differences."""


def gradcheck(
    func: "Callable[..., Any]",
    inputs: "Tensor | Sequence[Any]",
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
) -> bool:
    """Return whether the gradients of `func` agree with central differences.

    Each differentiable output is checked separately, so that nodes with several outputs also run
    with missing gradients. Gradients of complex tensors follow PyTorch's convention: the gradient
    of a real L with respect to z = x + iy is dL/dx + i dL/dy.

    Args:
        func: takes the inputs, returns a tensor, or a sequence of them.
        inputs: a tensor, or a sequence of any objects, whose tensors that require grad are checked.
            These are changed in place by `eps`, and restored; use float64 or complex128.
        eps: the step of the differences.
        atol: absolute tolerance.
        rtol: tolerance relative to the numerical value.
        raise_exception: raise on a wrong gradient instead of returning False.
        nondet_tol: how much two runs of backward may differ.
        check_undefined_grad: accepted: each output is always checked separately.
        check_grad_dtypes: accepted: a gradient always has its tensor's dtype.
        check_batched_grad: accepted: batches are computed one by one.
        check_batched_forward_grad: accepted, as `check_batched_grad`.
        check_forward_ad: accepted: forward derivatives come from those of backward.
        check_backward_ad: accepted, and must be True unless `check_forward_ad` is.
        fast_mode: accepted: all entries are always compared.
        masked: accepted: no tensor is sparse.

    Raises:
        GradcheckError: naming output, input and both Jacobians.
        ValueError: if no input requires grad.
        RuntimeError: if elements of an input share memory.
        AssertionError: if neither `check_forward_ad` nor `check_backward_ad` is True.
    """
    if not (check_forward_ad or check_backward_ad):
        raise AssertionError(
            "Expected at least one of check_forward_ad or check_backward_ad to be True"
        )
    arguments = _as_tuple(inputs)
    try:
        _check(func, arguments, eps, atol, rtol, nondet_tol, constants=False)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def gradgradcheck(
    func: "Callable[..., Any]",
    inputs: "Tensor | Sequence[Any]",
    grad_outputs: "Tensor | Sequence[Tensor] | None" = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_fwd_over_rev: bool = False,
    check_rev_over_rev: bool = True,
    fast_mode: bool = False,
    masked: bool = False,
) -> bool:
    """Return whether the second derivatives of `func` agree with central differences.

    The gradients of `func` are differentiated with respect to the inputs and `grad_outputs`. A
    gradient that was not recorded counts as a constant; the check fails if it is not one.

    Args:
        func: as for `gradcheck`.
        inputs: as for `gradcheck`.
        grad_outputs: the gradient of each differentiable output; random by default.
        eps: the step of the differences.
        atol: absolute tolerance.
        rtol: tolerance relative to the numerical value.
        gen_non_contig_grad_outputs: make the random `grad_outputs` of every second element of
            larger tensors.
        raise_exception: raise on a wrong gradient instead of returning False.
        nondet_tol: how much two runs of backward may differ.
        check_undefined_grad: accepted, as in `gradcheck`.
        check_grad_dtypes: accepted, as in `gradcheck`.
        check_batched_grad: accepted, as in `gradcheck`.
        check_fwd_over_rev: accepted, as `check_forward_ad` in `gradcheck`.
        check_rev_over_rev: accepted: it is always checked.
        fast_mode: accepted, as in `gradcheck`.
        masked: accepted, as in `gradcheck`.

    Raises:
        GradcheckError: naming output, input and both Jacobians.
        ValueError: if no input requires grad.
        RuntimeError: if elements of an input share memory.
    """
    arguments = _as_tuple(inputs)
    if grad_outputs is None:
        generator = np.random.default_rng(0)
        output_grads = tuple(
            _random_like(each, generator, gen_non_contig_grad_outputs)
            for each in _differentiable(func(*arguments))
        )
    else:
        output_grads = _as_tuple(grad_outputs)

    def first_gradients(*args: Any) -> "tuple[Tensor, ...]":
        values, output_grads = args[: len(arguments)], args[len(arguments) :]
        found = gradients(
            _differentiable(func(*values)),
            [each for each in values if _requires_grad(each)],
            output_grads,
            create_graph=True,
            allow_unused=True,
        )
        return tuple(each for each in found if each is not None)

    try:
        _check(
            first_gradients,
            (*arguments, *output_grads),
            eps,
            atol,
            rtol,
            nondet_tol,
            constants=True,
        )
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def _check(
    func: Callable[..., Any],
    inputs: tuple[Any, ...],
    eps: float,
    atol: float,
    rtol: float,
    nondet_tol: float,
    constants: bool,
) -> None:
    """Compare the Jacobians of `func`; with `constants`, also of outputs without a history."""
    _check_inputs(inputs)

    def run() -> "tuple[Tensor, ...]":
        result = func(*inputs)
        return _floating(result) if constants else _differentiable(result) or _floating(result)

    outputs = run()
    indices = [index for index, each in enumerate(inputs) if _requires_grad(each)]
    targets = [inputs[index] for index in indices]
    _check_of_zero(outputs, targets)
    jacobians = [
        _analytical(output, targets, nondet_tol, output_nr)
        for output_nr, output in enumerate(outputs)
    ]
    for target_nr, (index, target) in enumerate(zip(indices, targets, strict=True)):
        for output_nr, numerical in enumerate(_numerical(run, target, eps, outputs)):
            analytical = jacobians[output_nr][target_nr]
            if not np.allclose(analytical, numerical, rtol, atol, equal_nan=True):
                part = _part(analytical, numerical, rtol, atol)
                raise GradcheckError(
                    f"{part}Jacobian mismatch for output {output_nr} with respect to input "
                    f"{index}: the gradient of output {output_nr}, a "
                    f"{describe(outputs[output_nr])}, with respect to input {index}, a "
                    f"{describe(target)}, must agree with finite differences; one row for each "
                    f"element of the input, numerical:\n{numerical}\nanalytical:\n{analytical}"
                )


def _part(analytical: Array, numerical: Array, rtol: float, atol: float) -> str:
    """Return what to say first of Jacobians that differ."""
    if numerical.any() and not analytical.any():
        return "Numerical gradient for function expected to be zero, as that of backward is. "
    if numerical.dtype.kind == "c" and not np.allclose(
        analytical.imag, numerical.imag, rtol, atol, equal_nan=True
    ):
        return "While considering the imaginary part of complex outputs only, "
    return ""


def _check_inputs(inputs: tuple[Any, ...]) -> None:
    checked = [(index, each._array) for index, each in enumerate(inputs) if _requires_grad(each)]
    if not checked:
        raise ValueError(
            "gradcheck expects at least one input tensor to require gradient, got none; pass "
            "requires_grad=True"
        )
    for index, array in checked:
        if array.dtype not in (np.float64, np.complex128):
            warnings.warn(
                "gradcheck needs float64 or complex128 for finite differences to be exact enough, "
                f"but input {index} is {array.dtype.name} and will likely fail",
                stacklevel=4,
            )
        if array.size and any(
            step == 0 and size > 1 for step, size in zip(array.strides, array.shape, strict=True)
        ):
            raise RuntimeError(
                f"input {index} has a dimension with stride 0, but gradcheck changes one element "
                "at a time, and these share memory; pass a clone()"
            )


def _check_of_zero(outputs: "tuple[Tensor, ...]", targets: "list[Tensor]") -> None:
    """Raise unless the gradients for an output gradient of zeros are zero."""
    for output_nr, output in enumerate(outputs):
        if not (output._requires_grad and output._array.size):
            continue
        zeros = wrap(memory.zeros(output._array.shape, output._array.dtype))
        found = gradients(output, targets, zeros, retain_graph=True, allow_unused=True)
        for target, each in zip(targets, found, strict=True):
            if each is not None and (each._array != 0).any():
                raise GradcheckError(
                    "backward not multiplied by grad_output: for zeros as that of output "
                    f"{output_nr}, a {describe(output)}, the gradient of a {describe(target)} must "
                    f"be zero, got\n{each._array}"
                )


def _analytical(
    output: "Tensor", targets: "list[Tensor]", nondet_tol: float, output_nr: int
) -> list[Array]:
    """Return the Jacobian of `output` with respect to each of `targets`, by backward."""
    size = output._array.size
    units: list[complex] = [1, 1j] if output._array.dtype.kind == "c" else [1]
    jacobians = [
        np.zeros((target._array.size, size * len(units)), target._array.dtype) for target in targets
    ]
    if not output._requires_grad:
        return jacobians
    for part, unit in enumerate(units):
        for element in range(size):
            grad_output = memory.zeros(output._array.shape, output._array.dtype)
            grad_output.reshape(-1)[element] = unit
            for repeated in (False, True):
                found = gradients(
                    output, targets, wrap(grad_output), retain_graph=True, allow_unused=True
                )
                for target, jacobian, each in zip(targets, jacobians, found, strict=True):
                    column = jacobian[:, part * size + element]
                    value = 0 if each is None else each._array.reshape(-1)
                    if repeated and not np.allclose(
                        column, value, rtol=0, atol=nondet_tol, equal_nan=True
                    ):
                        raise GradcheckError(
                            "Backward is not reentrant: two gradients of output "
                            f"{output_nr} with respect to a {describe(target)} differ by more than "
                            f"nondet_tol = {nondet_tol}:\n{column}\n{value}"
                        )
                    column[...] = value
    return jacobians


def _numerical(
    run: "Callable[[], tuple[Tensor, ...]]",
    target: "Tensor",
    eps: float,
    outputs: "tuple[Tensor, ...]",
) -> list[Array]:
    """Return the Jacobian of each output with respect to `target`, by central differences."""
    array = target._array
    units: list[complex] = [1, 1j] if array.dtype.kind == "c" else [1]
    rows: list[list[Array]] = [[] for _ in outputs]
    for index in np.ndindex(array.shape):
        original = array[index]
        differences: list[list[Array]] = []
        for unit in units:
            try:
                array[index] = original + unit * eps
                after = [_numbers(output) for output in run()]
                array[index] = original - unit * eps
                before = [_numbers(output) for output in run()]
            finally:
                array[index] = original
            differences.append([(a - b) / (2 * eps) for a, b in zip(after, before, strict=True)])
        for output_nr, row in enumerate(rows):
            parts = zip(units, differences, strict=True)
            row.append(sum(unit * each[output_nr] for unit, each in parts))  # type: ignore[arg-type]
    return [
        np.array(row).reshape(array.size, _numbers(output).size)
        for row, output in zip(rows, outputs, strict=True)
    ]


def _numbers(output: "Tensor") -> Array:
    """Return the elements of `output` as one vector: real parts, then imaginary parts."""
    flat = output._array.reshape(-1)
    if flat.dtype.kind == "c":
        return np.concatenate([flat.real, flat.imag])
    return flat.astype(np.float64)


def _as_tuple(values: Any) -> tuple[Any, ...]:
    return (values,) if isinstance(values, TensorBase) else tuple(values)


def _requires_grad(value: Any) -> bool:
    return isinstance(value, TensorBase) and value._requires_grad


def _differentiable(result: Any) -> "tuple[Tensor, ...]":
    return tuple(each for each in _as_tuple(result) if _requires_grad(each))


def _floating(result: Any) -> tuple[Any, ...]:
    return tuple(
        each
        for each in _as_tuple(result)
        if isinstance(each, TensorBase) and is_differentiable(each._array.dtype)
    )


def _random_like(
    tensor: "Tensor", generator: np.random.Generator, is_spread: bool = False
) -> "Tensor":
    shape = tensor._array.shape
    if is_spread:
        array = memory.zeros((*shape, 2), tensor._array.dtype)[..., 0]
    else:
        array = memory.zeros(shape, tensor._array.dtype)
    array[...] = generator.standard_normal(array.shape)
    if array.dtype.kind == "c":
        array.imag[...] = generator.standard_normal(array.shape)
    return wrap(array, requires_grad=True)
