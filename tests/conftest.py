"""Settings and memory are the same before and after every test."""

import gc
import os
import signal
import sys
import time
from collections.abc import Generator, Iterator

import hypothesis
import pytest

import offgrad
from offgrad import kernels, memory
from offgrad.autograd import grad_mode, saved_tensor

hypothesis.settings.register_profile("dev", deadline=None, max_examples=25)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=200, print_blob=True)
hypothesis.settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev")
)

_failed = pytest.StashKey[bool]()


def pytest_collection_finish() -> None:
    """Exempt modules and collected tests, most of all objects, from garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note which tests failed, xfail included: their tracebacks hold tensors."""
    report = yield
    if report.when == "call":
        item.stash[_failed] = report.failed or hasattr(report, "wasxfail")
    return report


@pytest.fixture(scope="module", autouse=True)
def _collections_scan_new_objects_only() -> None:
    """Exempt the objects of earlier modules, such as torch itself, from garbage collection.

    Hundreds of tests collect garbage, which would otherwise scan all of them each time.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Seed; afterwards settings, the exception being handled and tensor memory are as before."""
    offgrad.manual_seed(0)
    before = _settings()
    held = memory.allocated()
    yield
    if request.node.stash.get(_failed, False):
        grad_mode.state.set(True, False)  # else later tests would fail as well
        return
    assert _settings() == before, "a setting was not put back"
    if memory.allocated() != held:
        # Only a collection frees reference cycles, such as a caught exception's. Less memory may be
        # held than before: the traceback of an earlier, failed test has gone.
        gc.collect()
        gc.freeze()  # later collections need not scan the survivors
        # Threads of stores release their arrays a moment later.
        deadline = time.monotonic() + 20
        while memory.allocated() > held and time.monotonic() < deadline:
            time.sleep(0.002)
        assert memory.allocated() <= held, "tensors outlived the test"


@pytest.fixture
def sigint_raises() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also where the test run was started with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _settings() -> dict[str, object]:
    return {
        "grad mode": offgrad.is_grad_enabled(),
        "saved tensor hooks": saved_tensor.state.hooks,
        "saved tensor hooks disabled": saved_tensor.state.disabled,
        "default dtype": offgrad.get_default_dtype(),
        "kernel threads": kernels.get_num_threads(),
        "memory limit": memory.allocator.counter.limit,
        "memory observers": tuple(memory.allocator.counter.observers),
        # A tracer that raises in the wrong place leaves one, which later tests take for theirs.
        "exception being handled": sys.exc_info()[0],
        # Coverage's, which would see nothing of the tests after one that does not put it back.
        "tracer": sys.gettrace(),
    }
