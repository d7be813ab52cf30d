"""`spawn`: one function in several processes, whose errors end all of them."""

import multiprocessing
import multiprocessing.connection
import signal
import tempfile
import traceback
from collections.abc import Callable
from typing import Any


class ProcessException(Exception):
    """Base class of the errors of processes.

    Attributes:
        error_index: the number of the process.
        error_pid: its process id.
    """

    def __init__(self, msg: str, error_index: int, pid: int) -> None:
        super().__init__(msg)
        self.msg, self.error_index, self.error_pid, self.pid = msg, error_index, pid, pid

    def __reduce__(self) -> Any:
        return type(self), (self.msg, self.error_index, self.pid)


class ProcessRaisedException(ProcessException):
    """A process has raised an exception; the message has its traceback."""


class ProcessExitedException(ProcessException):
    """A process has ended with an exit code other than 0, or by a signal.

    Attributes:
        exit_code: negative for a signal.
        signal_name: the name of the signal.
    """

    def __init__(
        self,
        msg: str,
        error_index: int,
        error_pid: int,
        exit_code: int,
        signal_name: str | None = None,
    ) -> None:
        super().__init__(msg, error_index, error_pid)
        self.exit_code, self.signal_name = exit_code, signal_name

    def __reduce__(self) -> Any:
        return type(self), (
            self.msg, self.error_index, self.pid, self.exit_code, self.signal_name
        )  # fmt: skip


def _run(function: Callable[..., Any], index: int, args: tuple[Any, ...], file: str) -> None:
    try:
        function(index, *args)
    except KeyboardInterrupt:
        pass  # the parent raises it
    except Exception:
        with open(file, "w", encoding="utf-8") as errors:
            errors.write(traceback.format_exc())
        raise SystemExit(1) from None


class ProcessContext:
    """The processes of one `spawn`."""

    def __init__(self, processes: list[Any], folder: Any) -> None:
        self.processes = processes
        self._folder = folder
        self._running = dict(enumerate(processes))

    def pids(self) -> list[int]:
        """Return the process ids."""
        return [int(each.pid) for each in self.processes]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait for a process to end; return whether all have.

        After an error the other processes are terminated.

        Raises:
            ProcessRaisedException: a process raised an exception.
            ProcessExitedException: a process ended in another way.
        """
        if not self._running:
            return True
        waiting = {each.sentinel: index for index, each in self._running.items()}
        for sentinel in multiprocessing.connection.wait(list(waiting), timeout):
            index = waiting[sentinel]
            process = self._running.pop(index)
            process.join()
            if process.exitcode != 0:
                self._end(grace_period)
                raise self._error(index, process)
        if not self._running:
            self._folder.cleanup()
        return not self._running

    def _end(self, grace_period: float | None) -> None:
        for each in self._running.values():
            each.terminate()
        for each in self._running.values():
            each.join(30 if grace_period is None else grace_period)
            if each.is_alive():
                each.kill()
                each.join()
        self._running.clear()

    def _error(self, index: int, process: Any) -> ProcessException:
        try:
            with open(f"{self._folder.name}/{index}", encoding="utf-8") as file:
                text = file.read()
        except FileNotFoundError:
            text = ""
        self._folder.cleanup()
        if text:
            message = f"\n\n-- Process {index} terminated with the following error:\n{text}"
            return ProcessRaisedException(message, index, process.pid)
        code = process.exitcode
        if code >= 0:
            message = f"process {index} terminated with exit code {code}"
            return ProcessExitedException(message, index, process.pid, code)
        name = signal.Signals(-code).name
        message = f"process {index} terminated with signal {name}"
        return ProcessExitedException(message, index, process.pid, code, name)


SpawnContext = ProcessContext


def start_processes(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """Call ``fn(i, *args)`` in `nprocs` processes, `i` counting them.

    Args:
        fn: the function.
        args: its further arguments.
        nprocs: the number of processes.
        join: whether to wait for all of them.
        daemon: whether they end with this process.
        start_method: "spawn", "fork" or "forkserver".

    Returns:
        None, or, without `join`, the context to join.

    Raises:
        ProcessRaisedException: a process raised an exception; the others were terminated.
        ProcessExitedException: a process ended in another way.
    """
    context = multiprocessing.get_context(start_method)
    folder = tempfile.TemporaryDirectory(prefix="offgrad-errors-")
    processes = []
    for index in range(nprocs):
        arguments = (fn, index, args, f"{folder.name}/{index}")
        process = context.Process(  # type: ignore[attr-defined]
            target=_run, args=arguments, daemon=daemon
        )
        process.start()
        processes.append(process)
    started = ProcessContext(processes, folder)
    if not join:
        return started
    while not started.join():
        pass
    return None


def spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """Call ``fn(i, *args)`` in `nprocs` new processes: see `start_processes`."""
    return start_processes(fn, args, nprocs, join, daemon, start_method)
