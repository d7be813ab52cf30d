"""Fixtures shared with other folders, and a check of the state after each test."""

from collections.abc import Iterator

import pytest

from offgrad.autograd import saved_tensor
from offgrad.ops._random import replay as draws
from tests.parity.conftest import _torch_as_it_was, lib, lib_name
from tests.session.conftest import eager_switching, named_stores

__all__ = ["_torch_as_it_was", "eager_switching", "lib", "lib_name", "named_stores"]


@pytest.fixture(autouse=True)
def _no_checkpoint_runs() -> Iterator[None]:
    """After each test no checkpoint is running and no random draws are replayed."""
    yield
    assert not saved_tensor.state.checkpointed
    assert not draws.is_replaying()
