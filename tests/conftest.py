"""What every test starts from, and must leave behind as it found it."""

import gc
import os
import time
from collections.abc import Generator, Iterator

import hypothesis
import pytest

import offgrad
from offgrad import kernels, memory
from offgrad.autograd import saved_tensor

hypothesis.settings.register_profile("dev", deadline=None, max_examples=25)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=200, print_blob=True)
hypothesis.settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev")
)

_failed = pytest.StashKey[bool]()


def pytest_collection_finish() -> None:
    """Spare collections of garbage the modules and the tests themselves: most of all objects."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember which tests failed: their tracebacks hold what they held."""
    report = yield
    if report.when == "call":
        item.stash[_failed] = report.failed
    return report


@pytest.fixture(autouse=True)
def _nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Seed; afterwards grad mode, hooks, default dtype, threads and tensor memory are as before."""
    offgrad.manual_seed(0)
    before = _settings()
    held = memory.allocated()
    yield
    if request.node.stash.get(_failed, False):
        return
    assert _settings() == before, "a setting was not put back"
    if memory.allocated() != held:
        # Cycles, such as a caught exception's, are garbage only after a collection. Less may be
        # held than before: what a test that failed left to its traceback.
        gc.collect()
        gc.freeze()  # what survives need not be scanned again
        # And threads that wrote or read for it let go of theirs a moment later.
        deadline = time.monotonic() + 10
        while memory.allocated() > held and time.monotonic() < deadline:
            time.sleep(0.002)
        assert memory.allocated() <= held, "tensors outlived the test"


def _settings() -> dict[str, object]:
    return {
        "grad mode": offgrad.is_grad_enabled(),
        "saved tensor hooks": saved_tensor.state.hooks,
        "saved tensor hooks disabled": saved_tensor.state.disabled,
        "default dtype": offgrad.get_default_dtype(),
        "kernel threads": kernels.get_num_threads(),
        "memory limit": memory.allocator.counter.limit,
        "memory observers": memory.allocator.counter.observers,
    }
