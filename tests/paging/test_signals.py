"""Ctrl-C while several threads train paged models."""

import signal
import threading
from typing import Any

import offgrad
from offgrad import optim
from tests.paging.models import WIDTH, assert_same, mlp, paging, result_of
from tests.paging.test_lasting import step

PAGE = WIDTH * WIDTH * 4
STEPS = 6


def trained(model: Any) -> Any:
    """Return the optimizer after some steps."""
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(STEPS):
        step(model, optimizer)
    return optimizer


def test_ctrl_c_in_one_thread_disturbs_no_other() -> None:
    offgrad.manual_seed(3)
    plain = mlp(3)
    expected = result_of([], plain, trained(plain))
    with paging("disk", window=4 * PAGE):
        models = []
        for _ in range(3):
            offgrad.manual_seed(3)
            models.append(mlp(3))
    optimizers: list[Any] = [None] * 3
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            optimizers[number] = trained(models[number])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    interrupted = done = 0
    optimizers[2] = optim.AdamW(models[2].parameters(), lr=1e-2)
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for each in threads:
            each.start()
        while any(each.is_alive() for each in threads) or done < 2:
            timer = threading.Timer(0.004, signal.raise_signal, (signal.SIGINT,))
            try:
                timer.start()
                models[2](offgrad.ones(1, WIDTH)).sum().backward()
                done += 1
                timer.join()
                signal.sigtimedwait([], 0.001)
            except KeyboardInterrupt:
                interrupted += 1
    finally:
        signal.signal(signal.SIGINT, before)
    for each in threads:
        each.join()
    assert not failures
    assert interrupted
    for number in range(2):
        assert_same(result_of([], models[number], optimizers[number]), expected)
    models[2].zero_grad()
    trained_after = result_of([], models[2], trained(models[2]))
    assert_same(trained_after, expected)
