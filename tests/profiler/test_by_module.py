"""Modules in memory profiles and in the message of OutOfMemoryError."""

import pytest

import offgrad
from offgrad import memory, nn
from offgrad.nn.hooks.registry import HookMethods
from offgrad.profiler import profile_memory

ROWS, WIDTH = 128, 256
NBYTES = ROWS * WIDTH * 4


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sequential(nn.Tanh(), nn.Sigmoid()))


def test_saved_bytes_by_module() -> None:
    model, x = net(), offgrad.randn(ROWS, WIDTH)
    with profile_memory() as profile:
        loss = model(x).exp().sum()
        assert profile.saved_by_module == {}
        loss.backward()
    # The weight stays in memory anyway, so it does not count.
    assert profile.saved_by_module == dict.fromkeys(("0", "1.0", "1.1", ""), NBYTES)
    assert profile.as_dict()["saved_by_module"] == profile.saved_by_module
    assert "saved by 1.0" in str(profile)
    assert "saved outside of inner modules" in str(profile)


def test_memory_saved_twice_counts_once_for_the_first() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Tanh(), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: offgrad.Tensor) -> offgrad.Tensor:
            y: offgrad.Tensor = self.second(self.first(x))
            return y

    x = offgrad.randn(ROWS, WIDTH, requires_grad=True)
    with profile_memory() as profile:
        Twice()(x).sum().backward()
    assert profile.saved_by_module == {"first": NBYTES}


def test_the_pass_with_the_largest_sum_counts() -> None:
    model = net()
    with profile_memory() as profile:
        for rows in (128, 512, 256):
            model(offgrad.randn(rows, WIDTH)).sum().backward()
    assert profile.saved_by_module["1.0"] == 512 * WIDTH * 4


def test_stored_tensors_do_not_count() -> None:
    with profile_memory() as profile, offgrad.offload("disk"):
        net()(offgrad.randn(ROWS, WIDTH)).sum().backward()
    assert profile.saved_by_module == {}


def test_calls_are_not_tracked_afterwards() -> None:
    with pytest.raises(ValueError, match="stop"), profile_memory():
        raise ValueError("stop")
    assert HookMethods._call_hooks is None


def test_out_of_memory_names_the_module() -> None:
    model, x = net(), offgrad.randn(ROWS, WIDTH)
    limit = memory.allocated() + 2 * NBYTES + 1000
    with (
        profile_memory(),
        memory.limit(limit),
        pytest.raises(offgrad.OutOfMemoryError, match=r"TanhBackward0.result in 1\.0"),
    ):
        model(x).exp()
