"""Processes that fork or exit while graphs and sessions of every policy live."""

import os
from pathlib import Path

import pytest
from offgrad_storage import sweep

from tests.session.conftest import RunPython

START = """
    import gc
    import os
    import sys
    import threading
    import offgrad
    from offgrad.policies import Budget, Last, Offload
    from offgrad_storage import StoreError

    POLICIES = {
        "budget": Budget(150_000),
        "budget on zarr": Budget(70_000, "zarr"),
        "budget on pool": Budget(70_000, "pool"),
        "large budget": Budget("1GiB"),
        "last": Last(1, Offload("disk", min_nbytes=0)),
    }
    session = offgrad.offload(POLICIES[sys.argv[1]])
    x = offgrad.tensor([[k * 0.001 for k in range(128)]] * 128, requires_grad=True)

    def forward():
        y = (x * 1.5).tanh().sin()
        return (y.t() * y).exp().sigmoid().square().mean()

    def grad(loss, **options):
        return offgrad.autograd.grad(loss, x, **options)[0]

    expected = grad(forward())
"""

FORK = """
    start = (x * 1).detach()
    with session:
        loss, other = forward(), forward()
        last = (start * x).sum()
    sys.stdout.flush()
    child = os.fork()
    if not child:
        try:
            in_child()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        END(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child failed"
    for each in (loss, other):
        assert grad(each).equal(expected), "the parent's gradient"
    assert grad(last).equal(start), "the parent's gradient"
    with session:
        loss = forward()
    assert grad(loss).equal(expected), "the parent's next gradient"
"""

CHILDREN = {
    "drops": ("""
    def in_child():
        global loss, other
        del loss, other
        gc.collect()
    """, "sys.exit"),
    # The child cannot read the parent's files, only its memory.
    "uses": ("""
    def in_child():
        try:
            assert grad(loss).equal(expected), "the child's gradient"
            assert sys.argv[1] == "large budget"
        except StoreError as error:
            assert "process" in str(error), error
            assert sys.argv[1] != "large budget"
    """, "os._exit"),
    "trains": ("""
    def in_child():
        for each in (session, offgrad.offload(POLICIES[sys.argv[1]])):
            for _ in range(2):
                with each:
                    mine = forward()
                assert grad(mine).equal(expected), "the child's gradient"
        start.mul_(0)  # its own copy
        assert grad(last).equal((x * 1).detach()), "the child's gradient of the parent's save"
    """, "sys.exit"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    "child",
    [
        "drops",
        "uses",
        "trains",
    ],
)
@pytest.mark.parametrize(
    "policy", ["budget", "budget on zarr", "budget on pool", "large budget", "last"]
)
def test_fork_with_live_graphs(
    policy: str, child: str, tmp_path: Path, run_python: RunPython
) -> None:
    does, end = CHILDREN[child]
    result = run_python(f"{START}{does}{FORK.replace('END', end)}", policy)
    assert result.returncode == 0, result.stderr
    assert not result.stderr
    if end == "os._exit":
        sweep(tmp_path / "spill")  # os._exit runs no cleanup
    assert list((tmp_path / "spill").iterdir()) == []


IN_CHILD = """
    import multiprocessing

    def train():
        global loss
        with offgrad.offload("zarr,min=0"):
            loss = forward()
        assert grad(loss, retain_graph=True).equal(expected), "the child's gradient"

    child = multiprocessing.get_context("fork").Process(target=train)
    child.start()
    child.join()
    assert child.exitcode == 0
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_children_of_multiprocessing_leave_no_folder(tmp_path: Path, run_python: RunPython) -> None:
    result = run_python(START + IN_CHILD, "last")
    assert result.returncode == 0, result.stderr
    assert not result.stderr
    assert list((tmp_path / "spill").iterdir()) == []


ENDINGS = {
    "graph": "with session: loss = forward()",
    "graph gone back through": "with session: loss = forward()\n    grad(loss, retain_graph=True)",
    "graph in a cycle": (
        "with session: cycle = [forward()]\n    cycle.append(cycle)\n    del cycle"
    ),
    "graph and session in a cycle": (
        "with session: loss = forward()\n    session.own = loss\n    del session, loss"
    ),
    "graph of another thread": (
        "def run():\n"
        "        global loss\n"
        "        with session: loss = forward()\n"
        "    thread = threading.Thread(target=run); thread.start(); thread.join()"
    ),
    "graph held by a thread": (
        "held = threading.Event()\n"
        "    def run():\n"
        "        with session: loss = forward()\n"
        "        held.set(); threading.Event().wait()\n"
        "    threading.Thread(target=run, daemon=True).start(); held.wait()"
    ),
    "session entered": "session.__enter__(); loss = forward()",
    "exit inside the session": "with session: loss = forward(); sys.exit(0)",
    "exit inside backward": (
        "with session: y = x * 1; y.register_hook(lambda _: sys.exit(0)); loss = y.tanh().sum()\n"
        "    loss.backward()\n"
        "    os._exit(1)"
    ),
    "checkpoint": (
        "from offgrad.utils.checkpoint import checkpoint\n"
        "    with session: loss = checkpoint(lambda x: x.exp().sin(), x * 1, use_reentrant=False)"
    ),
    "saved tensor": "with session: saved = forward().grad_fn",
}


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("policy", ["budget on zarr", "last"])
def test_exit_with_live_graphs_and_sessions(
    policy: str, ending: str, tmp_path: Path, run_python: RunPython
) -> None:
    result = run_python(f"{START}    {ENDINGS[ending]}\n", policy)
    assert result.returncode == 0, result.stderr
    assert not result.stderr
    assert list((tmp_path / "spill").iterdir()) == []
