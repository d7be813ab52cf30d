"""The limit: refused before allocation, with the largest holders; everything works afterwards."""

import threading
from contextlib import suppress

import numpy as np
import pytest

import offgrad
from offgrad import (
    OutOfMemoryError,
    Tensor,
    memory,
    nn,
)

MIB = 2**20


def mebibytes(n: float) -> Tensor:
    return offgrad.zeros(int(n * MIB / 4))


def test_refused_before_anything_is_allocated() -> None:
    before = memory.allocated()
    with memory.limit(before + 2 * MIB):
        x = mebibytes(1)
        memory.reset_peak()
        with pytest.raises(OutOfMemoryError):
            mebibytes(1.5)
        assert memory.allocated() == before + x.nbytes
        assert memory.max_allocated() == before + x.nbytes
        y = mebibytes(1)
        with pytest.raises(OutOfMemoryError):
            offgrad.zeros(1)
        assert y.nbytes == MIB
    mebibytes(4)


def test_limit_is_exact() -> None:
    before = memory.allocated()
    for size in (100, 100_000):
        with memory.limit(before + 4 * size):
            offgrad.zeros(size)
        with memory.limit(before + 4 * size - 1), pytest.raises(MemoryError):
            offgrad.zeros(size)


def test_error_names_the_request_and_the_holders() -> None:
    model = nn.Linear(512, 512)
    x = offgrad.ones(512, 512)
    with memory.limit(memory.allocated() + 3 * MIB):
        y = model(x).exp()
        with pytest.raises(OutOfMemoryError) as caught:
            [y.exp() for _ in range(9)]
    text = str(caught.value)
    for part in ("1.0 MiB", "saved for backward", "ExpBackward0", "parameters", "offload"):
        assert part in text, text


def test_sizes_as_text_and_invalid_sizes() -> None:
    assert memory.parse_nbytes("512MiB") == memory.parse_nbytes("512M") == 512 * MIB
    assert memory.parse_nbytes("1.5 KB") == 1500
    assert memory.parse_nbytes("2gib") == 2 * 2**30
    assert memory.parse_nbytes("7") == memory.parse_nbytes(7) == 7
    for wrong in ("much", "12 parsecs", "-1", "", 0, -5, "0"):
        with pytest.raises(ValueError, match="size"):
            memory.parse_nbytes(wrong)
        with pytest.raises(ValueError, match="size"), memory.limit(wrong):
            pass
    for odd in (True, False, 1.5, None):
        with pytest.raises(TypeError, match=f"a size is an int or text.*{type(odd).__name__}"):
            memory.parse_nbytes(odd)  # type: ignore[arg-type]
    assert [memory.format_nbytes(n) for n in (0, 1023, 1536, 200 * MIB)] == [
        "0 B", "1023 B", "1.5 KiB", "200.0 MiB"
    ]  # fmt: skip


def test_the_smallest_of_nested_limits_applies() -> None:
    before = memory.allocated()
    with memory.limit(before + MIB):
        with memory.limit(before + 8 * MIB), pytest.raises(OutOfMemoryError):
            mebibytes(2)
        with memory.limit(before + MIB // 2), pytest.raises(OutOfMemoryError):
            mebibytes(0.75)
        mebibytes(0.75)
        with pytest.raises(OutOfMemoryError):
            mebibytes(2)
    mebibytes(2)


def test_limit_ends_after_an_error() -> None:
    with pytest.raises(KeyError), memory.limit(memory.allocated() + 1):
        raise KeyError
    mebibytes(1)


def test_a_limit_below_the_allocated_bytes_refuses_every_allocation() -> None:
    x = mebibytes(1)
    with memory.limit(1):
        with pytest.raises(OutOfMemoryError):
            offgrad.zeros(1)
        assert x[:5].numel() == 5
        del x
        with pytest.raises(OutOfMemoryError):
            offgrad.zeros(1)


def test_everything_works_after_forward_ran_out_of_memory() -> None:
    model = nn.Sequential(*[nn.Linear(128, 128) for _ in range(8)])
    x = offgrad.ones(512, 128)
    before = memory.allocated()

    def step() -> list[bytes]:
        model.zero_grad()
        model(x).sum().backward()
        return [p.grad.numpy().tobytes() for p in model.parameters()]  # type: ignore[union-attr]

    expected = step()
    model.zero_grad()
    for room in range(1, 9):
        with memory.limit(before + room * MIB // 4), suppress(OutOfMemoryError):
            step()
        assert offgrad.is_grad_enabled()
        model.zero_grad()
        assert memory.allocated() == before
    assert step() == expected


def test_everything_works_after_backward_ran_out_of_memory() -> None:
    x = offgrad.ones(400, 400, requires_grad=True)
    y = x.exp().sin().sum()
    held = memory.allocated()
    with memory.limit(held + x.nbytes // 2), pytest.raises(OutOfMemoryError):
        y.backward(retain_graph=True)
    assert offgrad.is_grad_enabled()
    assert memory.allocated() == held
    y.backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), np.cos(np.e) * np.e, rtol=1e-5)


def test_in_place_operation_that_ran_out_of_memory_changed_nothing() -> None:
    x = offgrad.ones(400, 400)
    with memory.limit(memory.allocated() + 100), pytest.raises(OutOfMemoryError):
        x.mul_(offgrad.ones(1) * 3)
    assert x._version == 0
    assert x.sum().item() == 160_000


def test_limit_applies_to_every_thread() -> None:
    seen: list[str] = []

    def work() -> None:
        try:
            mebibytes(2)
        except OutOfMemoryError as error:
            seen.append(str(error))

    with memory.limit(memory.allocated() + MIB):
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(seen) == 3


def test_threads_together_stay_below_the_limit() -> None:
    start = memory.allocated()
    bound = start + 2 * MIB
    memory.reset_peak()

    def work() -> None:
        for _ in range(100):
            with suppress(OutOfMemoryError):
                mebibytes(0.6)

    with memory.limit(bound):
        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert memory.max_allocated() <= bound
    assert memory.allocated() == start


def test_what_is_no_size_is_refused_before_the_block() -> None:
    for text, message in (
        ("12 potatoes", r"such as '512MiB' \(B, KiB, .*\); got '12 potatoes'"),
        ("-3MiB", "got '-3MiB'"),
        ("0MiB", "a size must be positive, got '0MiB'"),
    ):
        with pytest.raises(ValueError, match=message):
            memory.limit(text)
    with pytest.raises(TypeError, match="got NoneType"):
        memory.limit(None)  # type: ignore[arg-type]


def test_a_limit_decorates_a_function() -> None:
    @memory.limit(memory.allocated() + MIB)
    def twice() -> None:
        mebibytes(2)

    for _ in range(2):
        with pytest.raises(OutOfMemoryError):
            twice()
    mebibytes(2)


def test_absurd_size() -> None:
    with pytest.raises(MemoryError):
        offgrad.empty(2**58)
    assert issubclass(OutOfMemoryError, MemoryError)
    mebibytes(1)


def test_copies_to_make_contiguous_count_against_the_limit() -> None:
    x = offgrad.ones(600, 600)
    with memory.limit(memory.allocated() + 1000), pytest.raises(OutOfMemoryError):
        x.T.contiguous()
