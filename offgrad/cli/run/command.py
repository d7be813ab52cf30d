"""``offgrad run``: train a script under a policy, without a change to it."""

import atexit
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import click

from offgrad import kernels, memory
from offgrad.cli import trailing
from offgrad.cli.errors import BadValue
from offgrad.cli.folders import use_spill_directory
from offgrad.cli.run.figures import Meter
from offgrad.cli.run.live import LiveLine, can_be_live, show
from offgrad.cli.script import Script
from offgrad.memory import format_nbytes
from offgrad.policies import parse_policy
from offgrad.policies.rule_matches import check_ops
from offgrad.session import ModelOffload, OffloadSession, offload, offload_model
from offgrad.session.paging.page_policies import PagePolicies
from offgrad.session.scope import share_hooks


class _Settings(NamedTuple):
    """The options, checked."""

    policy: str | None
    model_policy: str | None
    memory_limit: int | None
    quiet: bool

    def __str__(self) -> str:
        text = self.policy or "no policy"
        if self.model_policy is not None:
            text += f", model {self.model_policy}"
        if self.memory_limit is not None:
            text += f", limit {format_nbytes(self.memory_limit)}"
        return text


@click.command(
    short_help="Train a script under a policy.",
    context_settings={"max_content_width": 100, "allow_interspersed_args": False},
)
@click.option(
    "--policy",
    metavar="POLICY",
    help="Where tensors saved for backward go, such as disk; see offgrad compare --help.",
)
@click.option(
    "--offload-model",
    "model_policy",
    metavar="POLICY",
    help="Where parameters, gradients and optimizer state of the script's models go.",
)
@click.option("--memory-limit", metavar="SIZE", help="Maximum memory for tensors, such as 512MiB.")
@click.option("--directory", metavar="FOLDER", help="Where stores write their files.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing beside the script's output.")
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is a module, as in python -m.")
@click.argument("script", metavar="SCRIPT")
@click.argument("arguments", metavar="[ARGUMENTS]...", nargs=-1, type=click.UNPROCESSED)
def run(script: str, arguments: tuple[str, ...], **options: Any) -> Callable[[], int]:
    """Train any script that uses offgrad under a policy.

    The options of offgrad stand before the script, and what follows the script is the script's own.
    Or they stand last, beginning with --policy.

    The policy applies to all threads, and to processes that the script forks; sessions of the
    script's own, inside it, come first. On a terminal the last row shows memory and I/O. At the end
    one line on standard error sums up the process: the peak of its tensor memory and of all its
    memory, the bytes that stores wrote and read, and the time for which computing waited for them.

    \b
    Examples:
      offgrad run --policy disk train.py --epochs 3
      offgrad run train.py --epochs 3 --policy disk --memory-limit 512MiB
      offgrad run --policy budget:256MiB --directory /mnt/nvme -m package.train
      offgrad run --offload-model disk --memory-limit 1GiB train.py

    Exit status: that of the script; 2 for bad values.
    """
    arguments, options = _with_trailing_options(arguments, options)
    program = Script(script, arguments, options.pop("is_module"))
    settings = _settings(**options)

    def start() -> int:
        try:
            _train(program, settings)
        except BadValue as error:
            show(f"offgrad: {error.format_message()}")
            return error.exit_code
        return 0

    return start


def _with_trailing_options(
    arguments: tuple[str, ...], options: dict[str, Any]
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Take options that follow the script's arguments, if none precedes the script."""
    index = trailing.first(arguments, "--policy")
    if index is None or trailing.given(options) - {"is_module"}:
        return arguments, options
    try:
        rest, found = trailing.parsed(arguments, index, options, "script")
        _check_policy("--policy", found["policy"])
    except click.NoSuchOption as error:
        raise _not_ours(
            f"{error.option_name} follows --policy, but is no option of offgrad run; options of "
            "the script stand before it"
        ) from None
    except (BadValue, click.UsageError) as error:
        raise _not_ours(error.format_message().rstrip(".")) from None
    return rest, found


def _not_ours(message: str) -> BadValue:
    return BadValue(
        f"{message}; if --policy is an option of the script itself, put one of offgrad before the "
        "script: offgrad run --policy keep SCRIPT --policy ..."
    )


def _check_policy(option: str, policy: str | None) -> None:
    try:
        if policy is not None:
            check_ops(parse_policy(policy))
    except (ValueError, ImportError) as error:
        raise BadValue(f"{option}: {error}") from None


def _settings(
    policy: str | None,
    model_policy: str | None,
    memory_limit: str | None,
    directory: str | None,
    quiet: bool,
) -> _Settings:
    """Return the options, checked; the folder is in use from now on."""
    _check_policy("--policy", policy)
    _check_policy("--offload-model", model_policy)
    if model_policy is not None:
        try:
            PagePolicies(model_policy, None, None)
        except ValueError as error:
            raise BadValue(f"--offload-model: {error}") from None
    try:
        limit = None if memory_limit is None else memory.parse_nbytes(memory_limit)
    except ValueError as error:
        raise BadValue(f"--memory-limit: {error}") from None
    try:
        kernels.get_num_threads()
        if "OFFGRAD_KERNELS" in os.environ:  # else the script's first kernel imports Numba
            kernels.backend()
        use_spill_directory(directory)
    except ValueError as error:
        raise BadValue(str(error)) from None
    return _Settings(policy, model_policy, limit, quiet)


def _train(program: Script, settings: _Settings) -> None:
    """Run the program. The rest is done when the process exits, after the program's own exits."""
    with ExitStack() as stack:
        # Neither the limit nor the pages end before the program's threads and exits.
        lasting = ExitStack()
        if settings.memory_limit is not None:
            lasting.enter_context(memory.limit(settings.memory_limit))
        pages = session = None
        if settings.model_policy is not None:
            pages = stack.enter_context(offload_model(settings.model_policy))
        if settings.policy is not None:
            session = offload(settings.policy)
            session.__enter__()
            stack.push(partial(_end, session, settings))
            share_hooks()
        report = _Report(settings, session, pages, lasting)
        atexit.register(report.finish)
        try:
            program.run()
        except BadValue:
            atexit.unregister(report.finish)
            report.stop()
            raise
        except Exception as error:
            report.has_failed = True
            report.remedy = _remedy(program, settings, error)
            raise


def _end(session: OffloadSession, settings: _Settings, *error: Any) -> None:
    """End the session; what it warns of is no line of the script, so it is printed without one."""
    with warnings.catch_warnings(record=True) as caught:
        session.__exit__(*error)
    for each in caught if not settings.quiet else ():
        show(f"offgrad run: {each.message}")


def _remedy(program: Script, settings: _Settings, error: Exception) -> str:
    """Return what to do about an error of the limit, and empty text about another one."""
    limit = settings.memory_limit
    if limit is None or not isinstance(error, memory.OutOfMemoryError):
        return ""
    if f"limited to {format_nbytes(limit)}:" not in str(error):
        return ""  # by the script itself, or by the system
    ways = []
    if settings.policy is None:
        ways.append("--policy disk, which moves the tensors saved for backward")
    if settings.model_policy is None:
        ways.append("--offload-model disk, which moves parameters, gradients and optimizer state")
    return (
        f"out of memory: {program.name} needs more for tensors than --memory-limit "
        f"{format_nbytes(limit)}; try {', '.join([*ways, 'a smaller batch, or a higher limit'])}"
    )


class _Report:
    """The live line, and the line at the end.

    Registered before the program starts, so its end comes after what the program registers, when
    its threads have ended and an error has been printed.

    Attributes:
        has_failed: whether an error ended the program.
        remedy: for it, in one line; empty if there is none.
    """

    def __init__(
        self,
        settings: _Settings,
        session: OffloadSession | None,
        pages: ModelOffload | None,
        lasting: ExitStack,
    ) -> None:
        self._settings, self._session, self._pages = settings, session, pages
        self._lasting = lasting
        self._pid = os.getpid()
        self._meter = Meter()
        self._before = self._meter.read()
        self.has_failed, self.remedy = False, ""
        self._live: LiveLine | None = None
        if not settings.quiet and can_be_live(sys.stderr):
            self._live = LiveLine(sys.stderr, self._line)
            self._live.start()

    def _line(self) -> str:
        now, before = self._meter.read(), self._before
        self._before = now
        return f" {self._settings}: {now.line(before)}"

    def stop(self) -> None:
        """Give the terminal back."""
        if self._live is not None:
            self._live.stop()

    def finish(self) -> None:
        """Give the terminal back and print the figures; in a forked child nothing."""
        if os.getpid() != self._pid:
            return
        self.stop()
        figures = self._meter.read()
        unused = ""
        if self.has_failed:
            pass  # it may never have come to train
        elif self._session is not None and not self._session.ledger.saves:
            unused = "; the policy got no tensor: " + (
                "these are the bytes of the script's own sessions, which come first"
                if figures.traffic.written_nbytes
                else "the script does not train with offgrad, or in sessions of its own, which "
                "come first"
            )
        elif self._pages is not None and not self._pages.ledger.saves:
            unused = (
                "; no parameter was paged: those below 64 KiB stay in memory, and the script has "
                "to make its model with offgrad"
            )
        if not self._settings.quiet:
            show(f"offgrad run: {self._settings}: {figures.summary()}{unused}")
            if self.remedy:  # last: a traceback of many lines is above
                show(f"offgrad run: {self.remedy}")
        self._lasting.close()
