"""Processes that fork or exit while graphs and sessions of every policy live."""

import os
from pathlib import Path

import pytest
from offgrad_storage import sweep

from tests.policies.conftest import RunPython

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
        "budget on pool": Budget(0, "pool"),
        "large budget": Budget("1GiB"),
        "last": Last(1, Offload("disk", min_nbytes=0)),
        "last on zarr": Last(2, Offload("zarr", min_nbytes=0)),
        "disk": Offload("disk", min_nbytes=0),
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

BUDGETS = ["budget", "budget on zarr", "budget on pool", "large budget", "last", "last on zarr"]

FORK = (
    START
    + """
    with session:
        loss, other = forward(), forward()
    sys.stdout.flush()
    child = os.fork()
    if not child:
        code = 1
        try:
            {child}
            code = 0
        finally:
            {end}
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child failed"
    for each in (loss, other):
        assert grad(each).equal(expected), "the parent's gradient"
    with session:
        loss = forward()
    assert grad(loss).equal(expected), "the parent's next gradient"
"""
)

CHILDREN = {
    "drops": "del loss, other; gc.collect()",
    # What the parent has written is not the child's to read; what memory holds is.
    "uses": """
            try:
                assert grad(loss).equal(expected), "the child's gradient"
            except StoreError as error:
                assert "process" in str(error), error
                assert sys.argv[1] != "large budget"
            else:
                assert sys.argv[1] == "large budget"
    """,
    "trains": """
            for each in (session, offgrad.offload(POLICIES[sys.argv[1]])):
                for _ in range(2):
                    with each:
                        mine = forward()
                    assert grad(mine).equal(expected), "the child's gradient"
            with offgrad.no_grad():
                x.mul_(0)  # its own copy
    """,
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("end", ["os._exit(code)", "sys.exit(code)"])
@pytest.mark.parametrize("child", CHILDREN)
@pytest.mark.parametrize("policy", BUDGETS)
def test_forked_with_graphs(
    policy: str, child: str, end: str, tmp_path: Path, run_python: RunPython
) -> None:
    result = run_python(FORK.format(child=CHILDREN[child].strip(), end=end), policy)
    assert result.returncode == 0, result.stderr
    assert not result.stderr
    if end.startswith("os"):
        sweep(tmp_path / "spill")  # nothing runs then
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


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("policy", ["disk", "budget", "budget on zarr", "last", "last on zarr"])
def test_exit_with_something_alive(
    policy: str, ending: str, tmp_path: Path, run_python: RunPython
) -> None:
    result = run_python(f"{START}    {ENDINGS[ending]}\n", policy)
    assert result.returncode == 0, result.stderr
    assert not result.stderr
    assert list((tmp_path / "spill").iterdir()) == []
