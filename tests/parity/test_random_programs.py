"""Random programs: the same as in torch, the same as in NumPy, the same under every policy."""

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import offgrad
from tests.parity.programs import (
    INPLACE,
    SEVERAL,
    SHAPE,
    VALUES,
    VIEWS,
    Run,
    Step,
    by_complex_steps,
)

PLAIN = ("leaf", *VIEWS, *VALUES, *INPLACE, *INPLACE, "constant")
"""Where autograd sees every change. Changes in place count twice: they are what this is about."""

HIDDEN = (
    "detach",
    *SEVERAL,
    *(f"no_grad {name}" for name in ("sin", "add", "mul_", "add_ tensor", "copy_", "assign")),
)
WATCHED = ("hook", "retain_grad")


def programs(*names: str) -> st.SearchStrategy[list[Step]]:
    numbers = st.integers(0, 12)
    return st.lists(st.tuples(st.sampled_from(names), numbers, numbers), min_size=1, max_size=20)


def same(mine: Any, theirs: Any) -> bool:
    """Return whether two results are equal, gradients to ten digits."""
    if isinstance(mine, str) or isinstance(theirs, str):
        return bool(mine == theirs)
    return len(mine) == len(theirs) and all(
        np.allclose(a, b, rtol=1e-10, atol=1e-12) for a, b in zip(mine, theirs, strict=True)
    )


@settings(derandomize=True)
@given(program=programs(*PLAIN, *HIDDEN, *WATCHED, "backward"), hooks=st.booleans())
def test_the_same_as_torch(program: list[Step], hooks: bool) -> None:
    """At every step the same outcome, values and flags; at the end the same gradients.

    Where torch has lost a saved value to a change in place, offgrad may still have it: then the
    gradient is that of torch with hooks that copy what is saved. Under such hooks none is lost.
    """
    torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
    mine, plain, copied = Run(offgrad), Run(torch), Run(torch)
    accumulates = True
    for count, step in enumerate(program):
        if not copied.small():
            break
        where = f"step {count}, {step}"
        with copying(torch):
            right = copied.step(step)
        allowed = right if hooks else plain.step(step)
        with copying(offgrad) if hooks else nullcontext():
            found = mine.step(step)
        assert found == right or (found == allowed and step[0] == "backward"), (
            f"{where}: {found}, but in torch {allowed}"
        )
        accumulates &= found == right
        assert mine.state() == copied.state() == (copied if hooks else plain).state(), where
        assert same(mine.values(), copied.values()), where
    for create_graph in (False, True):
        right_ones = copied.gradients(create_graph)
        allowed_ones = right_ones if hooks else plain.gradients(create_graph)
        found_ones = mine.gradients(create_graph)
        for index, gradient in enumerate(found_ones):
            assert same(gradient, right_ones[index]) or (
                isinstance(gradient, str) and gradient == allowed_ones[index]
            ), (
                f"order {1 + create_graph} of tensor {index}: {gradient}, "
                f"right is {right_ones[index]}"
            )
    outcomes, gradients = mine.accumulated()
    right_outcomes, right_gradients = copied.accumulated()
    if accumulates and outcomes == right_outcomes:
        assert same(gradients, right_gradients)


def copying(lib: Any) -> Any:
    """Return a context that copies saved tensors."""
    return lib.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t)


@settings(derandomize=True)
@given(program=programs(*PLAIN))
def test_gradients_are_those_of_numpy_by_complex_steps(program: list[Step]) -> None:
    run = Run(offgrad)
    outcomes = run.run(program)
    done = [step for step, outcome in zip(program, outcomes, strict=False) if outcome == "done"]
    expected = by_complex_steps(done)
    assert len(expected) == len(run.entries)
    for index, (found, exact) in enumerate(zip(run.gradients(), expected, strict=True)):
        if isinstance(found, str):
            # There is no history to differentiate, or a saved tensor is lost.
            assert found == "RuntimeError"
            if run.entries[index].tensor.requires_grad:
                continue
            found = [0.0] * len(exact)
        for mine, theirs in zip(found, exact, strict=True):
            assert np.allclose(np.broadcast_to(mine, SHAPE), theirs, rtol=1e-9, atol=1e-9), index


def outcome(program: list[Step], where: str) -> tuple[list[bytes], list[Any]]:
    """Return the bits of all values, and of the gradients, first and second, of each tensor."""
    run = Run(offgrad)
    with offgrad.offload(where):
        run.run(program)
    gradients = [*run.gradients(), *run.gradients(create_graph=True), run.accumulated()[1]]
    return (
        [each.tobytes() for each in run.values()],
        [each if isinstance(each, str) else [one.tobytes() for one in each] for each in gradients],
    )


@settings(derandomize=True)
@given(program=programs(*PLAIN, *HIDDEN, "hook"))
def test_policies_give_the_same_bits(program: list[Step]) -> None:
    """Where keeping loses a value, a store may have it: then all stores agree."""
    values, kept = outcome(program, "keep")
    for where in ("pool", "disk"):
        stored_values, stored = outcome(program, where)
        assert stored_values == values
        lost = False
        for index, (mine, theirs) in enumerate(zip(stored[:-1], kept[:-1], strict=True)):
            if theirs == "RuntimeError":
                lost = True
                continue
            assert mine == theirs, f"{where}, result {index}"
        if not lost:
            assert stored[-1] == kept[-1], where


@pytest.mark.parametrize(
    "program",
    [
        [("mul_ tensor", 3, 0), ("head", 3, 1), ("select", 1, 0), ("add_ tensor", 5, 6)],
        [("transpose", 3, 0), ("select", 5, 1), ("pow_", 6, 0), ("mul_", 3, 0), ("sin", 5, 0)],
        [("diagonal", 2, 0), ("copy_", 2, 0), ("add_", 5, 0), ("tanh", 5, 0), ("pairs", 2, 0)],
        [("expand", 4, 0), ("select", 5, 1), ("column", 6, 0), ("mul_", 6, 0)],
    ],
)
def test_some_programs_are_refused_nothing(program: list[Step]) -> None:
    """The other tests would pass if everything were refused."""
    run = Run(offgrad)
    assert run.run(program) == ["done"] * len(program)
    expected = by_complex_steps(program)
    for index, entry in enumerate(run.entries):
        if not entry.tensor.requires_grad:
            continue
        found = run.gradients()[index]
        assert not isinstance(found, str)
        for mine, theirs in zip(found, expected[index], strict=True):
            assert np.allclose(np.broadcast_to(mine, SHAPE), theirs)
