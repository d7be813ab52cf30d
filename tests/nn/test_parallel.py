"""DataParallel on the CPU, and what is refused; prefixes of state dicts."""

from typing import Any

import pytest

import offgrad
from offgrad import nn
from tests.nn.programs import same_on_torch

SETUP = """
d = nn.DataParallel(nn.Sequential(nn.Linear(2, 2)))
consume = nn.modules.utils.consume_prefix_in_state_dict_if_present
state = d.state_dict()
plain = {"module.a": 1, "b": 2, "module.c": 3}
"""

PROGRAM = """
d
list(d.state_dict()), d.device_ids, type(d.module).__name__
d(torch.ones(1, 2)).shape == (1, 2)
nn.DataParallel(nn.Linear(2, 2), device_ids=[0], output_device=0, dim=0)
nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
consume(state, "module."), list(state), dict(state._metadata)
consume(plain, "module."), plain
list(nn.modules.module._global_forward_hooks_always_called)
"""


def test_data_parallel() -> None:
    same_on_torch(SETUP, PROGRAM)


def test_the_rest_is_refused_or_plain() -> None:
    layer: Any = nn.Linear(2, 2)
    x = offgrad.ones(1, 2)
    assert nn.parallel.data_parallel(layer, x).equal(layer(x))
    assert nn.parallel.data_parallel(layer, (), module_kwargs={"input": x}).equal(layer(x))
    for name in ("scatter", "gather", "replicate", "parallel_apply"):
        with pytest.raises(RuntimeError, match=f"offgrad.nn.parallel.{name}"):
            getattr(nn.parallel, name)(layer, [0])
    with pytest.raises(ValueError, match="use the module itself"):
        nn.parallel.DistributedDataParallel(layer)
