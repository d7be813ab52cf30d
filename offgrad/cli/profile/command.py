"""``offgrad profile``: record what a script keeps in memory, without a change to it."""

import atexit
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from offgrad.cli.errors import BadValue
from offgrad.cli.folders import use_spill_directory
from offgrad.cli.run.live import show
from offgrad.cli.saves import StepSaves
from offgrad.cli.script import Script
from offgrad.cli.steps import StepEnds
from offgrad.optim.hooks import register_optimizer_step_post_hook
from offgrad.prediction import Recording
from offgrad.prediction.recording import GZIP_MAGIC
from offgrad.profiler import Profile
from offgrad.profiler import profile as record


@click.command(
    short_help="Record what a script keeps in memory, and why.",
    context_settings={"max_content_width": 100, "allow_interspersed_args": False},
)
@click.option(
    "-o",
    "--output",
    metavar="FOLDER",
    default="offgrad-profile",
    show_default=True,
    help="Where the profile is written; made if it does not exist.",
)
@click.option(
    "--saves",
    metavar="FILE",
    help="Record what a step saves, too, for offgrad replay and tune. All figures are then those "
    "of the policy keep.",
)
@click.option("--directory", metavar="FOLDER", help="Where stores write their files.")
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is a module, as in python -m.")
@click.argument("script", metavar="SCRIPT")
@click.argument("arguments", metavar="[ARGUMENTS]...", nargs=-1, type=click.UNPROCESSED)
def profile(
    output: str,
    saves: str | None,
    directory: str | None,
    is_module: bool,
    script: str,
    arguments: tuple[str, ...],
) -> Callable[[], int]:
    """Record what any script that uses offgrad keeps in memory, and why.

    The options of offgrad stand before the script, and what follows the script is the script's own.
    A call of step() of the first optimizer ends a step of the profile. When the script has ended,
    also by an error, Ctrl-C or SIGTERM, tables on standard error say what was alive at the peak, by
    which line, and what each module did. The folder gets

    \b
      profile.json  all figures, as of Profile.to_dict; with --saves, for offgrad replay and tune
      trace.json    threads, operations and I/O over time: open it in https://ui.perfetto.dev
      memory.png    memory over time, by category
      report.html   all of it on one page

    --saves writes the step that saved most for backward into one more file, and changes what is
    measured: all that is saved stays in memory. Sessions of the script do not apply their policies,
    and nothing is recomputed. For the figures of the script as it is, profile it without --saves.

    \b
    Examples:
      offgrad profile train.py --epochs 1
      offgrad profile --saves run.offgrad train.py --epochs 1
      offgrad profile -o small -m package.train --batch 8

    Exit status: that of the script; 1 if a file was not written; 2 for bad values.
    """
    program = Script(script, arguments, is_module)
    try:
        use_spill_directory(directory)
    except ValueError as error:
        raise BadValue(str(error)) from None
    file = None if saves is None else _writable(saves)
    folder = _made(output)

    def start() -> int:
        try:
            _record(program, folder, file)
        except BadValue as error:
            show(f"offgrad: {error.format_message()}")
            return error.exit_code
        return 0

    return start


def _made(output: str) -> Path:
    """Return the folder of the results, absolute, since the script may change its own."""
    if not output:
        raise BadValue("--output needs the name of a folder, got none")
    try:
        folder = Path(output).absolute()
        if folder.is_file():
            raise BadValue(f"--output {output} cannot be written to: it is no folder")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        reason = f"{error.strerror or error}: {error.filename or output}"
        raise BadValue(f"--output {output} cannot be written to: {reason}") from None


def _writable(saves: str) -> Path:
    """Return the file of the saves, absolute; what is in it stays until the script has ended."""
    path = Path(saves).absolute()
    try:
        existed = path.exists()
        with path.open("a+b") as file:
            file.seek(0)
            start = file.read(len(GZIP_MAGIC))
        if not existed:
            path.unlink()
        if start and start != GZIP_MAGIC:
            raise BadValue(f"--saves {saves}: the file exists and is no recording; name another")
        return path
    except OSError as error:
        raise BadValue(f"--saves {saves} cannot be written: {error.strerror or error}") from None


def _record(program: Script, folder: Path, saves: Path | None) -> None:
    """Run the program. The profile ends when the process exits, after the program's own exits."""
    ending = _Ending(folder, saves)
    atexit.register(ending.finish)
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, ending.terminate)
    try:
        program.run()
    except BadValue:
        atexit.unregister(ending.finish)
        ending.close()
        raise
    except BaseException as error:
        ending.has_failed = not (isinstance(error, SystemExit) and error.code in (None, 0))
        ending.is_interrupted = isinstance(error, KeyboardInterrupt)
        raise


class _Ending:
    """Records from its making to `finish`.

    Attributes:
        has_failed: whether an error, a signal or `sys.exit` with a status but 0 ended the program.
        is_interrupted: whether that was Ctrl-C.
    """

    def __init__(self, folder: Path, file: Path | None) -> None:
        self.has_failed = self.is_interrupted = self._is_terminated = False
        self._folder, self._file = folder, file
        # A shell starts background jobs with Ctrl-C ignored.
        signals = (signal.SIGINT, signal.SIGTERM)
        self._handled = [each for each in signals if signal.getsignal(each) != signal.SIG_IGN]
        self._pid = os.getpid()
        self._recording = record()
        self._profile = self._recording.__enter__()
        prof = self._profile
        steps = StepEnds()

        def after_update(optimizer: object, *_: object) -> None:
            if steps.ends(optimizer):
                prof.step()

        self._handle = register_optimizer_step_post_hook(after_update)
        self._saves = None if file is None else StepSaves().__enter__()

    def terminate(self, signum: int, frame: object) -> None:
        """End the program, so that `finish` comes; a second signal ends the process at once."""
        signal.signal(signum, signal.SIG_DFL)
        if os.getpid() != self._pid:  # forked by the program
            os.kill(os.getpid(), signum)
        self._is_terminated = True
        raise SystemExit(128 + signum)

    def close(self) -> None:
        """End the recording."""
        if self._saves is not None:
            self._saves.__exit__(None, None, None)
        self._handle.remove()
        self._recording.__exit__(None, None, None)

    def finish(self) -> None:
        """End it, write the results and print the tables; in a forked child nothing.

        A signal that comes meanwhile takes effect once they are written, a second one at once.
        """
        if os.getpid() != self._pid:
            return
        for each in self._handled:
            signal.signal(each, self._note)
        failures = []
        try:
            self.close()
            failures = self._report()
        except Exception as error:
            if not (self.is_interrupted or self._is_terminated):
                raise
            # The signal may have come while a module was imported, which does not work now.
            show(f"offgrad profile: not all was written: {error}")
        for each in self._handled:
            signal.signal(each, signal.SIG_DFL)
        if not (self._is_terminated or self.is_interrupted or failures):
            return
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.flush()
        if self._is_terminated:
            os.kill(os.getpid(), signal.SIGTERM)
        elif self.is_interrupted:
            os.kill(os.getpid(), signal.SIGINT)
        elif not self.has_failed:
            os._exit(1)  # the last callback at exit cannot change the status otherwise

    def _note(self, signum: int, frame: object) -> None:
        for each in self._handled:
            signal.signal(each, signal.SIG_DFL)
        self.is_interrupted |= signum == signal.SIGINT
        self._is_terminated |= signum == signal.SIGTERM
        show("offgrad profile: ends once the results are written; a second signal ends it at once")

    def _report(self) -> list[str]:
        """Write the results and print the tables; return a line for each file that failed."""
        if not self._profile.peak_nbytes:
            show(
                "offgrad profile: nothing to write: the script made no tensor; does it train with "
                "offgrad?"
            )
            with suppress(OSError):  # not empty: of an earlier run
                self._folder.rmdir()
            return []
        show(str(self._profile))
        written, failures = write(self._profile, self._folder)
        if written:
            show(f"offgrad profile: wrote {', '.join(written)} to {self._folder}")
        if self._saves is not None and self._file is not None:
            recording = self._saves.recording
            if recording is None:
                show(f"offgrad profile: {self._file.name}: nothing was saved for backward")
            else:
                failures += self._write_saves(recording, self._file)
        for each in failures:
            show(f"offgrad profile: {each}")
        return failures

    def _write_saves(self, recording: Recording, file: Path) -> list[str]:
        """Write the recording; return a line if that fails."""
        try:
            recording.save(file)
        except OSError as error:
            return [f"{file.name}: {error.strerror or error}"]
        show(
            f"offgrad profile: wrote a step for offgrad replay to {file}; with --saves all figures "
            "are those of the policy keep"
        )
        return []


def write(prof: Profile, folder: Path) -> tuple[list[str], list[str]]:
    """Write all outputs; return the names of the files, and a line for each that failed.

    A file that fails stays as an earlier run has left it.
    """
    outputs: dict[str, Callable[[Path], Any]] = {
        "profile.json": prof.save,
        "trace.json": prof.save_trace,
        "memory.png": lambda path: prof.plot(path),
        "report.html": prof.report,
    }
    written, failures = [], []
    try:
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder) as unfinished:
            for name, output in outputs.items():
                path = Path(unfinished, name)
                try:
                    output(path)
                    path.replace(folder / name)
                    written.append(name)
                except OSError as error:  # a full drive
                    failures.append(f"{name}: {error.strerror or error}")
    except OSError as error:
        failures.append(f"{folder}: {error.strerror or error}")
    return written, failures
