"""Random graphs under random budgets: the bits of a run that keeps all, within the bound."""

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import offgrad
from offgrad import memory
from offgrad.policies import Budget, Last, Offload
from tests.session.backends import MemoryBackend, memory_store
from tests.session.bound import KIB64, Peaks, Program, as_bytes, check_bound, measure
from tests.session.graphs import normal
from tests.session.helpers import wait_until

Step = tuple[str, int, int]

UNARY: dict[str, Callable[[Any], Any]] = {
    "tanh": lambda x: x.tanh(),
    "sin": lambda x: x.sin(),
    "sin_of_transpose": lambda x: x.t().sin(),
    "exp_of_view": lambda x: (x.reshape(-1, 64) * 0.1).exp().reshape(x.shape),
    "halves": lambda x: offgrad.cat([x[:64].sin(), x[64:].tanh()]),
    "columns": lambda x: offgrad.cat([x[:, ::2].sin(), x[:, 1::2]], 1),
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "mul": lambda a, b: a * b,
    "add": lambda a, b: a + b,
    "tanh_mul": lambda a, b: a.tanh() * b.sin(),
}

indices = st.integers(0, 30)
steps = st.lists(
    st.tuples(st.sampled_from((*UNARY, *BINARY)), indices, indices), min_size=4, max_size=12
)


def tree(leaves: list[Any], program: list[Step]) -> Program:
    """Return a program that combines the last few tensors it made and drops older ones."""

    def run(peaks: Peaks) -> Any:
        made = [each * 1 for each in leaves]
        for name, first, second in program:
            a, b = made[first % len(made)], made[second % len(made)]
            made.append(UNARY[name](a) if name in UNARY else BINARY[name](a, b))
            made[-1].register_hook(peaks.next)
            del a, b, made[:-3]
            peaks.next()
        return sum(each.sum() for each in made)

    return run


@settings(max_examples=15, deadline=None)
@given(
    program=steps,
    nbytes=st.integers(0, 4 * KIB64) | st.integers(0, 14).map(lambda count: count * KIB64),
    window=st.sampled_from(["1", "128KiB", "1GiB"]),
    delay=st.sampled_from([0.0, 0.0005]),
    backwards=st.integers(1, 2),
)
def test_each_op_takes_at_most_its_own_need_plus_the_budget(
    program: list[Step], nbytes: int, window: str, delay: float, backwards: int
) -> None:
    leaves = [normal(k, 128, 128) for k in range(2)]
    with memory_store(MemoryBackend(delay), threads=2) as store:
        base = memory.allocated()
        session = offgrad.offload(Budget(nbytes, store), prefetch_nbytes=window)
        check_bound(tree(leaves, program), leaves, session, nbytes, backwards)
        wait_until(lambda: not store.stats().live_handles, "handles are alive")
        wait_until(lambda: memory.allocated() <= base, "memory is held")


@settings(max_examples=10, deadline=None)
@given(program=steps, count=st.integers(0, 12), backwards=st.integers(1, 2))
def test_last_keeps_its_tensors_and_gives_the_same_bits(
    program: list[Step], count: int, backwards: int
) -> None:
    leaves = [normal(k, 128, 128) for k in range(2)]
    run = tree(leaves, program)
    with memory_store(MemoryBackend()) as store:
        session = offgrad.offload(Last(count, Offload(store, min_nbytes=0)))
        assert (
            measure(run, leaves, session, backwards)[1]
            == (measure(run, leaves, as_bytes(), backwards)[1])
        )
        wait_until(lambda: not store.stats().live_handles, "handles are alive")
