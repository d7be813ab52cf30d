"""A training step whose tensors are large enough for the memory pool, and its policies."""

from typing import Any

import pytest

from offgrad.policies import (
    Budget,
    Keep,
    Last,
    Offload,
    Policy,
)
from tests.session.footprint import Footprint, footprint
from tests.session.graphs import Bits, bits, normal

POLICIES: dict[str, Policy] = {
    "keep": Keep(),
    "disk": Offload("disk", min_nbytes=0),
    "zarr": Offload("zarr", min_nbytes=0),
    "pool": Offload("pool", min_nbytes=0),
    "budget": Budget(150_000),  # two of the tensors below, of 64 KiB each
    "budget 0": Budget(0, "zarr"),
    "last": Last(1, Offload("disk", min_nbytes=0)),
}

every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)

SAVES = 7


def forward(x: Any) -> Any:
    """Return a scalar; the graph makes seven saves of five tensors of 64 KiB."""
    y = (x * 1.5).tanh().sin()
    return (y.t() * y).exp().sigmoid().square().mean()


def expected() -> Bits:
    x = normal(1, 128, 128)
    loss = forward(x)
    loss.backward()
    return bits(loss, x.grad)


def step(session: Any) -> Bits:
    x = normal(1, 128, 128)
    with session:
        loss = forward(x)
    loss.backward()
    return bits(loss, x.grad)


def left(before: Footprint, folder: str) -> dict[str, int]:
    """Return the growth since `before`; for Python objects, above the noise of one run."""
    return footprint(folder).more_than(before, objects=500, blocks=5000)
