from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from offgrad.kernels import single_threaded_blas
from offgrad.kernels._blas import _blas_libraries


@pytest.fixture
def two_blas_threads() -> object:
    from threadpoolctl import threadpool_limits

    with threadpool_limits(2, user_api="blas"):
        yield


def _counts() -> set[int]:
    return {library.get_num_threads() for library in _blas_libraries()}


@pytest.mark.usefixtures("two_blas_threads")
def test_one_thread_inside_and_the_old_number_after() -> None:
    before = _counts()
    with single_threaded_blas():
        assert _counts() == {1}
        with single_threaded_blas():
            assert _counts() == {1}
        assert _counts() == {1}
    assert _counts() == before
    with pytest.raises(LookupError), single_threaded_blas():
        raise LookupError
    assert _counts() == before


@pytest.mark.usefixtures("two_blas_threads")
def test_the_last_of_several_threads_restores() -> None:
    before = _counts()
    all_in = threading.Barrier(3, timeout=30)

    def use(_: int) -> set[int]:
        with single_threaded_blas():
            all_in.wait()
            counts = _counts()
            np.ones((64, 64)) @ np.ones((64, 64))
            return counts

    with ThreadPoolExecutor(3) as threads:
        for _ in range(10):
            assert list(threads.map(use, range(3))) == [{1}] * 3
            assert _counts() == before
