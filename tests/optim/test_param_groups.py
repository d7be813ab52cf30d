"""Groups added one by one: the work for each does not grow, and no parameter is in two groups."""

import copy
import pickle
from typing import Any

import pytest

import offgrad
from offgrad.optim import SGD

FEW, MANY = 50, 400


class _CountedParams(list[Any]):
    """The parameters of a group, and how often they were read."""

    reads = 0

    def __iter__(self) -> Any:
        _CountedParams.reads += 1
        return super().__iter__()


def _reads(count: int) -> int:
    """Return how often the groups so far are read while `count` groups are added."""
    optimizer = SGD([offgrad.ones(1)], lr=0.1)
    _CountedParams.reads = 0
    for _ in range(count):
        optimizer.add_param_group({"params": offgrad.ones(1)})
        group = optimizer.param_groups[-1]
        group["params"] = _CountedParams(group["params"])
    return _CountedParams.reads


def test_adding_a_group_reads_no_other() -> None:
    assert _reads(MANY) == _reads(FEW) == 0


def test_a_parameter_belongs_to_one_group() -> None:
    first, second, third = (offgrad.ones(1) for _ in range(3))
    optimizer = SGD([first], lr=0.1)
    optimizer.add_param_group({"params": [second]})
    for params in (first, [second], [third, first]):
        with pytest.raises(ValueError, match="twice"):
            optimizer.add_param_group({"params": params})
    assert len(optimizer.param_groups) == 2
    optimizer.add_param_group({"params": third})  # the refused group left nothing behind


def test_a_parameter_twice_in_a_group() -> None:
    param = offgrad.ones(1)
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optimizer = SGD([param, param], lr=0.25)
    param.grad = offgrad.ones(1)
    optimizer.step()
    assert param.item() == 0.5


def test_groups_that_the_program_changed() -> None:
    first, second, third = (offgrad.ones(1) for _ in range(3))
    optimizer = SGD([first, second], lr=0.1)
    optimizer.param_groups[0]["params"].pop()
    optimizer.add_param_group({"params": second})
    optimizer.param_groups.append({**optimizer.param_groups[0], "params": [third]})
    with pytest.raises(ValueError, match="twice"):
        optimizer.add_param_group({"params": third})
    optimizer.param_groups.clear()
    optimizer.add_param_group({"params": [first, second, third]})


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_copy_knows_its_own_parameters(copied: Any) -> None:
    param = offgrad.ones(1)
    optimizer = copied(SGD([param], lr=0.1))
    with pytest.raises(ValueError, match="twice"):
        optimizer.add_param_group({"params": optimizer.param_groups[0]["params"]})
    optimizer.add_param_group({"params": param})
