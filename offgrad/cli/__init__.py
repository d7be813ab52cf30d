"""The command line ``offgrad``: a folder and one line here for each command.

Internal, but for the command itself.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import NoReturn

import click

import offgrad
from offgrad.cli.compare.command import compare as _compare
from offgrad.cli.warmup.command import warmup as _warmup

__all__ = ["main"]

# For the exit status shells add 128 to the signal's number.
_SIGNALS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class _Stopped(BaseException):
    def __init__(self, signum: int) -> None:
        self.signum = signum


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(offgrad.__version__, prog_name="offgrad")
def _commands() -> None:
    """Train models whose saved tensors can live in RAM, on disk or in Zarr."""


_commands.add_command(_compare)
_commands.add_command(_warmup)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit.

    The exit status is 0 for success, 1 for failures and wrong results, 2 for bad values, 130 after
    Ctrl-C and 143 after SIGTERM. Options may also be set by environment variables, such as
    OFFGRAD_COMPARE_STEPS for --steps of compare.
    """
    sys.exit(_run(arguments))


def _run(arguments: list[str] | None) -> int:
    try:
        with _signals():
            status = _commands.main(
                arguments,
                prog_name="offgrad",
                standalone_mode=False,
                auto_envvar_prefix="OFFGRAD",
            )
            sys.stdout.flush()
        return status if isinstance(status, int) else 0
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
    except BrokenPipeError:
        # The reader of our output has gone; Python's flush at exit must not report that, too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE if hasattr(signal, "SIGPIPE") else 1


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Make the first Ctrl-C or SIGTERM raise; later ones must not interrupt the clean-up."""
    previous_handlers = {each: signal.getsignal(each) for each in _SIGNALS}

    def stop(signum: int, frame: object) -> NoReturn:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise _Stopped(signum)

    for each, handler in previous_handlers.items():
        # A shell starts background jobs with Ctrl-C ignored.
        if handler != signal.SIG_IGN:
            signal.signal(each, stop)
    try:
        yield
    finally:
        for each, handler in previous_handlers.items():
            signal.signal(each, handler)
