"""Forks while other threads train in a session: the child trains in it, and in a new one."""

import os
from pathlib import Path

import pytest
from offgrad_storage import sweep

from tests.session.conftest import RunPython

FORKS = int(os.environ.get("OFFGRAD_FORKS", "20"))
"""Forks under each policy; a long run makes hundreds."""

TRAIN = """
    import faulthandler
    import os
    import random
    import sys
    import threading
    import time
    import traceback
    import offgrad
    from offgrad.policies import Budget, Last, Offload, Recompute

    faulthandler.enable()
    sys.setswitchinterval(1e-5)
    POLICIES = {
        "disk": Offload("disk", min_nbytes=0),
        "zarr": Offload("zarr", min_nbytes=0),
        "budget": Budget(150_000),
        "budget in a pool": Budget(70_000, "pool"),
        "last": Last(1, Offload("disk", min_nbytes=0)),
        "recompute": [Recompute(64, min_nbytes=0), Budget(150_000)],
    }
    policy = POLICIES[sys.argv[1]]
    forks, limit = int(sys.argv[2]), 60.0

    def step(session):
        x = offgrad.tensor([[k * 0.001 for k in range(128)]] * 128, requires_grad=True)
        start = (x * 1).detach()
        with session:
            y = (x * 1.5).tanh().sin()
            loss = (y.t() * y).exp().sigmoid().mean() + (start * x).mean()
            start.mul_(0)
        loss.backward()
        return x.grad

    expected = step(offgrad.offload(Offload("pool", min_nbytes=0)))
    session = offgrad.offload(policy)
    steps, stopping, errors = [0, 0], threading.Event(), []

    def train(number):
        try:
            while not stopping.is_set():
                assert step(session).equal(expected)
                steps[number] += 1
        except BaseException:
            errors.append(traceback.format_exc())

    def in_child():
        for each in (session, offgrad.offload(policy)):
            for _ in range(2):
                assert step(each).equal(expected), "the child's gradient"
        assert session.lock.owner is None
        assert not session._passes.live()

    threads = [threading.Thread(target=train, args=(n,), daemon=True) for n in range(2)]
    for each in threads:
        each.start()
    while not all(steps):
        assert not errors, errors
        time.sleep(0.001)
    for number in range(forks):
        time.sleep(random.random() * 0.01)
        child = os.fork()
        if not child:
            try:
                in_child()
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        deadline = time.monotonic() + limit
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            if time.monotonic() > deadline:
                os.kill(child, 6)
                raise SystemExit(f"child {number} hangs")
            time.sleep(0.001)
        assert not status, f"child {number} failed: {status}"
        assert not errors, errors
    stopping.set()
    for each in threads:
        each.join(limit)
        assert not each.is_alive(), "a thread hangs"
    assert not errors, errors
    assert session.lock.owner is None
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    "policy", ["disk", "zarr", "budget", "budget in a pool", "last", "recompute"]
)
def test_a_child_trains_in_the_session_of_other_threads(
    policy: str, tmp_path: Path, run_python: RunPython
) -> None:
    result = run_python(TRAIN, policy, FORKS)
    assert result.returncode == 0, result.stderr
    assert not result.stderr
    sweep(tmp_path / "spill")  # os._exit runs no cleanup
    assert list((tmp_path / "spill").iterdir()) == []
