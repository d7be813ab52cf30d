"""Which calls of ``step()`` end a step of a program."""

import pytest

import offgrad
from offgrad.cli.saves import StepSaves
from offgrad.cli.steps import StepEnds


class Optimizer:
    """Any object."""


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ("aaa", "aaa"),
        ("abab", "aa"),
        ("abcabc", "aa"),
        ("aabaab", "aaaa"),
        ("babbab", "bbbb"),  # several of one model for each of the other
        ("aabbb", "aabb"),  # the second part of a program
        ("abbaa", "aba"),
    ],
)
def test_the_first_optimizer_or_one_that_takes_its_place(calls: str, expected: str) -> None:
    optimizers = {name: Optimizer() for name in "abc"}
    ends = StepEnds()
    assert "".join(each for each in calls if ends.ends(optimizers[each])) == expected


def test_an_optimizer_that_is_gone_is_replaced_at_once() -> None:
    ends, first, second = StepEnds(), Optimizer(), Optimizer()
    assert ends.ends(first)
    assert not ends.ends(second)
    assert ends.ends(first)
    del first
    assert ends.ends(second)


def test_a_step_of_two_models_holds_the_passes_of_both() -> None:
    parameters = [offgrad.zeros(64, 64, requires_grad=True) for _ in range(2)]
    optimizers = [offgrad.optim.SGD([each], lr=0.1) for each in parameters]
    with StepSaves() as saves:
        for _ in range(3):
            for parameter, optimizer in zip(parameters, optimizers, strict=True):
                parameter.sin().exp().sum().backward()
                optimizer.step()
    assert saves.recording is not None
    assert len(saves.recording.passes) == 2
    assert len(saves.recording.saves) == 4
