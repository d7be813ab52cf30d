"""Programs that compose checkpoints, sessions and hooks around and inside each other."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import offgrad
from offgrad import nn
from offgrad.autograd.graph import saved_tensors_hooks
from offgrad.nn import functional as F
from offgrad.utils.checkpoint import checkpoint, checkpoint_sequential

Open = Callable[[], AbstractContextManager[Any]]
"""Opens a session, or a context that does nothing."""

ckpt = partial(checkpoint, use_reentrant=False)


class Block(nn.Module):
    """Matrix products, views, random numbers and saved outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(40, 40), nn.Linear(40, 40)

    def forward(self, x: Any) -> Any:
        y = F.dropout(F.gelu(self.one(x)), 0.2)
        return x + (self.two(y).tanh() * y.t().sin()).sigmoid()


def pair() -> AbstractContextManager[Any]:
    """Return hooks that keep a transposed copy."""
    return saved_tensors_hooks(
        lambda tensor: tensor.numpy().T.copy(),
        lambda array: offgrad.from_numpy(array.T.copy()),
    )


Composition = Callable[[nn.Sequential, Any, Open], Any]


def without_checkpoints(blocks: nn.Sequential, x: Any, open_session: Open) -> Any:
    return blocks(x)


def checkpoint_in_session(blocks: nn.Sequential, x: Any, open_session: Open) -> Any:
    with open_session():
        for block in blocks:
            x = ckpt(block, x)
        return x


def session_in_checkpoint(blocks: nn.Sequential, x: Any, open_session: Open) -> Any:
    def run(block: nn.Module, x: Any) -> Any:
        with open_session():
            return block(x)

    for block in blocks:
        x = ckpt(run, block, x)
    return x


def session_in_checkpoint_in_session(blocks: nn.Sequential, x: Any, open_session: Open) -> Any:
    with open_session():
        return session_in_checkpoint(blocks, x, open_session)


def part_in_session_in_checkpoint(blocks: nn.Sequential, x: Any, open_session: Open) -> Any:
    """Tensors saved in the session are stored, the others recomputed."""

    def run(x: Any) -> Any:
        x = blocks[0](x)
        with open_session():
            x = blocks[1](x)
        return blocks[2](x)

    return ckpt(run, x)


def nested(blocks: nn.Sequential, x: Any, open_session: Open) -> Any:
    def run(x: Any, *blocks: nn.Module) -> Any:
        x = blocks[0](x)
        return ckpt(run, x, *blocks[1:]) if blocks[1:] else x

    with open_session():
        return ckpt(run, x, *blocks)


def nested_with_sessions(blocks: nn.Sequential, x: Any, open_session: Open) -> Any:
    def run(x: Any, *blocks: nn.Module) -> Any:
        x = blocks[0](x)
        with open_session():
            return ckpt(run, x, *blocks[1:]) if blocks[1:] else x

    return ckpt(run, x, *blocks)


def sequential(blocks: nn.Sequential, x: Any, open_session: Open) -> Any:
    with open_session():
        return checkpoint_sequential(blocks, 3, x, use_reentrant=False)


def sequential_of_two(blocks: nn.Sequential, x: Any, open_session: Open) -> Any:
    with open_session():
        return checkpoint_sequential(blocks, 2, x, use_reentrant=False)


def pair_around(blocks: nn.Sequential, x: Any, open_session: Open) -> Any:
    with pair():
        x = ckpt(blocks[0], x)
        with open_session():
            x = ckpt(blocks[1], x)
        return session_in_checkpoint(nn.Sequential(blocks[2]), x, open_session)


def pair_between(blocks: nn.Sequential, x: Any, open_session: Open) -> Any:
    with open_session():
        x = blocks[0](x)
        with pair():
            x = ckpt(blocks[1], x)
        return blocks[2](x)


def pair_inside(blocks: nn.Sequential, x: Any, open_session: Open) -> Any:
    def run(block: nn.Module, x: Any) -> Any:
        with open_session(), pair():
            y = block(x) * 1
        with pair(), open_session():
            return y * y.sin()

    def plain(block: nn.Module, x: Any) -> Any:
        y = block(x) * 1
        return y * y.sin()

    if open_session is nullcontext:
        return plain(blocks[2], plain(blocks[1], plain(blocks[0], x)))
    with open_session():
        x = ckpt(run, blocks[0], x)
        with pair():
            return ckpt(run, blocks[2], ckpt(run, blocks[1], x))


def in_a_module_of_a_session(blocks: nn.Sequential, x: Any, open_session: Open) -> Any:
    """A module whose parts are checkpoints, and a session for this module only."""
    if open_session is nullcontext:
        return blocks(x)
    session: Any = open_session()
    wrapped = nn.Sequential(Checkpointed(blocks[0]), blocks[1], Checkpointed(blocks[2]))
    policy = session.policy
    with offgrad.offload(
        {"0": policy, "2.part": policy, "**": "keep"},
        model=wrapped,
        directory=session._stores._directory,
    ):
        return wrapped(x)


class Checkpointed(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Any) -> Any:
        return ckpt(self.part, x)


COMPOSITIONS: list[Composition] = [
    checkpoint_in_session, session_in_checkpoint, session_in_checkpoint_in_session,
    part_in_session_in_checkpoint, nested, nested_with_sessions, sequential, sequential_of_two,
    pair_around, pair_between, pair_inside, in_a_module_of_a_session,
]  # fmt: skip
