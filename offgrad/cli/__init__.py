"""The command line ``offgrad``: a folder and one line here for each command.

Internal, but for the command itself.
"""

import contextlib
import errno
import importlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import NoReturn

import click

import offgrad
from offgrad.cli.errors import BadValue
from offgrad.cli.terminal import any_encoding, broken_pipe, discard_output

__all__ = ["main"]

# For the exit status shells add 128 to the signal's number.
_SIGNALS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
_PAUSE_SECONDS = 0.05  # until a dropped signal is sent again


class _Stopped(BaseException):
    def __init__(self, signum: int) -> None:
        self.signum = signum


class _Commands(click.Group):
    """Imports a command when it is needed first."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*_COMMANDS, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            near = get_close_matches(cmd_name, _COMMANDS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(_COMMANDS)}"
            raise BadValue(f"there is no command {cmd_name!r}; {hint}")
        module, _, name = _COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command


_COMMANDS = {
    "bench-storage": "offgrad.cli.bench_storage.command:bench_storage",
    "compare": "offgrad.cli.compare.command:compare",
    "doctor": "offgrad.cli.doctor.command:doctor",
    "profile": "offgrad.cli.profile.command:profile",
    "replay": "offgrad.cli.replay.command:replay",
    "run": "offgrad.cli.run.command:run",
    "tune": "offgrad.cli.tune.command:tune",
    "warmup": "offgrad.cli.warmup.command:warmup",
}


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(offgrad.__version__, prog_name="offgrad")
def _commands() -> None:
    """Train models whose saved tensors can live in RAM, on disk or in Zarr."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit.

    The exit status is 0 for success, 1 for failures and wrong results, 2 for bad values, 130 after
    Ctrl-C and 143 after SIGTERM. Options may also be set by environment variables, such as
    OFFGRAD_COMPARE_STEPS for --steps of compare.

    A command that runs a program of the user returns a function that does so. It is called outside
    of click and of the handlers of signals, so that the program's exceptions pass, as in Python.
    """
    outcome = _run(arguments)
    sys.exit(outcome() if callable(outcome) else outcome)


def _run(arguments: list[str] | None) -> int | Callable[[], int]:
    try:
        with _signals(), any_encoding():
            status = _commands.main(
                arguments,
                prog_name="offgrad",
                standalone_mode=False,
                auto_envvar_prefix="OFFGRAD",
            )
            if sys.stdout is not None:  # None where it was closed
                sys.stdout.flush()
        return status if isinstance(status, int) or callable(status) else 0
    except _Stopped as stopped:
        click.echo(f"offgrad: {_SIGNALS[signal.Signals(stopped.signum)]}", err=True)
        return 128 + stopped.signum
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 2
    except click.ClickException as error:
        message = " ".join(error.format_message().split())
        click.echo(f"offgrad: {message}", err=True)
        return error.exit_code
    except BrokenPipeError:  # the reader of our output has gone
        return broken_pipe()
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        discard_output()
        click.echo(f"offgrad: standard output cannot be written to: {error.strerror}", err=True)
        return 1


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Make the first Ctrl-C or SIGTERM raise; later ones must not interrupt the clean-up.

    Python prints and drops what is raised in a finalizer, or in a callback of C as when a compiled
    loop is loaded. The signal is sent again then.
    """
    previous_handlers = {each: signal.getsignal(each) for each in _SIGNALS}
    # A shell starts background jobs with Ctrl-C ignored.
    handled = [each for each, handler in previous_handlers.items() if handler != signal.SIG_IGN]
    previous_hook = sys.unraisablehook
    dropped_signals: list[int] = []  # those that are sent again

    def stop(signum: int, frame: object) -> NoReturn:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise _Stopped(signum)

    def send_again(dropped: "sys.UnraisableHookArgs") -> None:
        if not isinstance(dropped.exc_value, _Stopped):
            previous_hook(dropped)
            return
        for each in handled:
            signal.signal(each, stop)
        dropped_signals.append(dropped.exc_value.signum)
        again = threading.Timer(_PAUSE_SECONDS, deliver, [dropped.exc_value.signum])
        again.daemon = True
        again.start()

    def deliver(signum: int) -> None:
        if sys.unraisablehook is send_again:  # the block has not ended
            signal.raise_signal(signum)

    for each in handled:
        signal.signal(each, stop)
    sys.unraisablehook = send_again
    try:
        yield
    finally:
        sys.unraisablehook = previous_hook
        for each, handler in previous_handlers.items():
            signal.signal(each, handler)
    if dropped_signals:  # the block has ended before
        raise _Stopped(dropped_signals[-1])
