"""Traces one saved tensor through the files of the project.

    python -m benchmarks.trace_save [--calls]

GELU of a 4 MiB array runs inside ``offload("disk")`` with a fresh store. On the thread that
computes, each call of a function of the project is recorded, from the moment the operation saves
until the array is in the store's write queue. A hop is a call in another file than the call before;
a return is a hop to a file that was left before. The figures are the files, hops and returns.
"""

import sys
import tempfile
import threading
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import click
from offgrad_storage.executor.executor import Executor

import offgrad
from offgrad.autograd.op import Op
from offgrad.nn import functional as F

ROOT = Path(__file__).parents[1]


class Call(NamedTuple):
    """One call of a function of the project."""

    file: str
    function: str


def trace() -> list[Call]:
    """Return the calls from an operation's save to the write queue, in order."""
    calls: list[Call] = []
    main = threading.get_ident()
    # The first call of the way, and the first after it: the array is in the queue then.
    first, last = Op._save_all.__code__, Executor._wake_for_write.__code__
    state = "before"

    def record(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal state
        if event != "call" or threading.get_ident() != main or state == "after":
            return
        code = frame.f_code
        if state == "before" and code is first:
            state = "on the way"
        elif state == "on the way" and code is last:
            state = "after"
        path = Path(code.co_filename)
        if state == "on the way" and path.is_relative_to(ROOT):
            calls.append(Call(str(path.relative_to(ROOT)), code.co_qualname))

    x = offgrad.randn(1024, 1024)
    w = offgrad.randn(1024, 1024, requires_grad=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        offgrad.offload("disk", directory=folder) as session,
    ):
        h = x @ w
        sys.setprofile(record)
        try:
            y = F.gelu(h)
        finally:
            sys.setprofile(None)
        del h
        y.sum().backward()
        assert session.ledger.writes
    assert state == "after", "the array never arrived in the write queue"
    return calls


class Figures(NamedTuple):
    """How far the way is."""

    files: int
    hops: int
    returns: int


def figures(calls: list[Call]) -> Figures:
    """Count the files of `calls`, and the hops and returns between them."""
    seen = {calls[0].file}
    hops = returns = 0
    for previous, call in pairwise(calls):
        if call.file != previous.file:
            hops += 1
            returns += call.file in seen
            seen.add(call.file)
    return Figures(len(seen), hops, returns)


@click.command()
@click.option("--calls", is_flag=True, help="Print each call.")
def main(calls: bool) -> None:
    """Print the way of one saved tensor from its operation to the write queue."""
    way = trace()
    file = ""
    for call in way:
        if call.file != file:
            file = call.file
            click.echo(file)
        if calls:
            click.echo(f"    {call.function}")
    found = figures(way)
    click.echo(f"\n{found.files} files, {found.hops} hops, {found.returns} returns")


if __name__ == "__main__":
    main()
