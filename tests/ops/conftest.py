"""A fixture: both backends of the kernels."""

from collections.abc import Iterator

import pytest

from offgrad import kernels


@pytest.fixture(params=["numba", "numpy"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run kernels on this backend."""
    before = kernels.backend()
    kernels.set_backend(request.param)
    yield str(request.param)
    kernels.set_backend(before)
