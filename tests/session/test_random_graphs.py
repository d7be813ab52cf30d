"""Random graphs: every policy gives the bits of a run that keeps all saved tensors."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import offgrad
from tests.session.graphs import Bits, Offload, bits, normal

SIZE = 12
"""Tensors are [SIZE, SIZE], so that any op can follow any other."""

Step = tuple[str, int, int]

UNARY: dict[str, Callable[[Any], Any]] = {
    "tanh": lambda x: x.tanh(),
    "sin": lambda x: x.sin(),
    "sigmoid": lambda x: x.sigmoid(),
    "relu": lambda x: x.relu(),
    "square": lambda x: x.tanh().square(),
    "softmax": lambda x: x.softmax(-1),
    "transpose": lambda x: x.t(),
    "flip": lambda x: x.flip(1),
    "fold": lambda x: x.reshape(SIZE // 3, 3, SIZE).transpose(0, 1).reshape(SIZE, SIZE),
    "row": lambda x: x[2].expand(SIZE, SIZE),
    "column": lambda x: x[:, 3:4].expand(SIZE, SIZE),
    "slices": lambda x: offgrad.cat([x[::2, :], x[1::2, :]]),
    "halves": lambda x: offgrad.cat(x.split(SIZE // 2, dim=1)[::-1], dim=1),
    "where": lambda x: offgrad.where(x > 0, x, x * 0.5),
    "max": lambda x: x.amax(0).expand(SIZE, SIZE),
    "clone": lambda x: x.clone(),
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "mul": lambda a, b: a * b.tanh(),
    "add": lambda a, b: a + b,
    "matmul": lambda a, b: a.tanh() @ b.tanh(),
    "product": lambda a, b: (a * b).sigmoid(),
    "div": lambda a, b: a / (b.square() + 1),
    "maximum": lambda a, b: offgrad.maximum(a, b),
}
INPLACE: dict[str, Callable[[Any], Any]] = {
    "mul_": lambda x: x.mul_(0.5),
    "tanh_": lambda x: x.tanh_(),
    "add_": lambda x: x.add_(0.25),
    "silent": lambda x: x.detach().copy_(x.detach() * 0.5),
}

indices = st.integers(0, 30)
steps = st.lists(
    st.tuples(st.sampled_from((*UNARY, *BINARY, *INPLACE)), indices, indices),
    min_size=1,
    max_size=14,
)


def build(leaves: list[Any], program: list[Step]) -> Any:
    """Return a scalar of `leaves`: the sum of the last tensors that `program` makes."""
    made = [each * 1 for each in leaves]
    for name, first, second in program:
        a, b = made[first % len(made)], made[second % len(made)]
        if name in UNARY:
            made.append(UNARY[name](a))
        elif name in BINARY:
            made.append(BINARY[name](a, b))
        elif not a._is_view():
            # Earlier views have another history afterwards: drop them.
            INPLACE[name](a)
            made = [each for each in made if not (each._is_view() and each._base is a)]
    return sum(each.sum() for each in made[-3:])


def run(program: list[Step], offload: Offload, repeat: bool) -> Bits | None:
    """Return loss and gradients; None if a needed tensor was changed in place."""
    leaves = [normal(k, SIZE, SIZE) for k in range(3)]
    with offload():
        loss = build(leaves, program)
    try:
        if repeat:
            loss.backward(inputs=leaves[:1], retain_graph=True)
            grads = offgrad.autograd.grad(
                loss, leaves, retain_graph=True, create_graph=True, allow_unused=True
            )
            total = sum((each * each).sum() for each in grads if each is not None)
            if isinstance(total, offgrad.Tensor) and total.requires_grad:
                total.backward(retain_graph=True)
        loss.backward()
    except RuntimeError as error:
        if "in place" not in str(error):
            raise
        return None
    return bits(loss, *(each.grad for each in leaves))


def undisturbed(program: list[Step]) -> list[Step]:
    """Return the program without in-place steps."""
    return [each for each in program if each[0] not in INPLACE]


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=steps, repeat=st.booleans())
def test_gradients_equal_those_of_a_run_that_keeps(
    program: list[Step], repeat: bool, offload: Offload
) -> None:
    with np.errstate(all="ignore"):
        expected, found = run(program, nullcontext, repeat), run(program, offload, repeat)
        if expected is not None:
            assert found == expected
        # Otherwise the run without a session lost a value that this one may have stored.
        program = undisturbed(program)
        assert run(program, offload, repeat) == run(program, nullcontext, repeat) is not None


def by_copies(program: list[Step]) -> Any:
    """Return `program` as a function with copies instead of in-place changes."""

    def build_copied(leaves: list[Any]) -> Any:
        made = [each * 1 for each in leaves]
        for name, first, _ in program:
            index = first % len(made)
            if name in UNARY:
                made.append(UNARY[name](made[index]))
            else:
                made[index] = {
                    "mul_": lambda x: x * 0.5,
                    "tanh_": lambda x: x.tanh(),
                    "add_": lambda x: x + 0.25,
                }[name](made[index])
        return sum(each.sum() for each in made)

    return build_copied


KEEPS_NO_VIEW = ("tanh", "sin", "sigmoid", "relu", "softmax", "clone", "square")

copied_steps = st.lists(
    st.tuples(st.sampled_from((*KEEPS_NO_VIEW, "mul_", "tanh_", "add_")), indices, st.just(0)),
    min_size=1,
    max_size=14,
)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=copied_steps)
def test_in_place_changes_give_the_gradient_of_copies_or_an_error(
    program: list[Step], offload: Offload
) -> None:
    """The oracle changes nothing in place, so it never raises."""
    leaves, others = ([normal(k, SIZE, SIZE) for k in range(3)] for _ in range(2))
    by_copies(program)(others).backward()
    made = [each * 1 for each in leaves]
    with offload():
        for name, first, _ in program:
            one = made[first % len(made)]
            if name in UNARY:
                made.append(UNARY[name](one))
            else:
                INPLACE[name](one)
        loss = sum(each.sum() for each in made)
    try:
        loss.backward()
    except RuntimeError as error:
        text = str(error)
        assert "in place" in text
        return
    for mine, theirs in zip(leaves, others, strict=True):
        assert np.allclose(mine.grad.numpy(), theirs.grad.numpy(), rtol=1e-5, atol=1e-6)
