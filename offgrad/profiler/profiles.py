"""profile: what is in tensor memory, and why, around any number of steps."""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from importlib import import_module
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from numbers import Real
from threading import TIMEOUT_MAX
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from offgrad_storage.interrupts import masked

from offgrad._display import as_html, as_rich, as_text
from offgrad.memory import format_nbytes
from offgrad.profiler.averages import Averages, averages
from offgrad.profiler.categories import CATEGORIES
from offgrad.profiler.contents import contents
from offgrad.profiler.html.page import report
from offgrad.profiler.ledgers import Ledgers
from offgrad.profiler.machine import describe_machine
from offgrad.profiler.modules import module_rows
from offgrad.profiler.recording import Recording
from offgrad.profiler.sampler import FIGURES, Sampler
from offgrad.profiler.schedules import Schedule, Window
from offgrad.profiler.text import parts
from offgrad.profiler.trace import trace
from offgrad.session.ledger import Ledger, PageLedger
from offgrad.session.session import observers as session_observers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import RenderableType

VERSION = 1
"""Of the format of `Profile.to_dict`."""

_MAX_POINTS = 4_000


class Profile:
    """A recording of `profile`. It can be read inside the block, too."""

    def __init__(
        self,
        interval: float | None,
        saves: bool = False,
        schedule: Schedule | None = None,
        on_trace_ready: Callable[["Profile"], Any] | None = None,
    ) -> None:
        self._recording = Recording(detailed=True)
        self._window = Window(schedule, self._recording.began)
        self._on_trace_ready = on_trace_ready
        # Of a layer above this one, for those who want it.
        self._saves = import_module("offgrad.prediction").SaveRecorder() if saves else None
        self._sampler = None if interval is None else Sampler(interval)
        self._ledgers = Ledgers()
        self._ledger, self._pages = Ledger(), PageLedger()

    def step(self) -> None:
        """Mark the end of a training step; does nothing after the block."""
        if self._recording.ended is not None:
            return
        self._recording.tape.step()
        if self._saves is not None:
            self._saves.step()
        self._recording.read_some()
        self._ledgers.look()
        now = self._recording.now
        if self._window.step(now):
            self._show_trace()
        self._window.begin(now)

    def _show_trace(self) -> None:
        if self._on_trace_ready is not None:
            self._on_trace_ready(self)

    def _open(self) -> None:
        self._ledgers.begin()
        session_observers.append(self._ledgers.on_session)
        self._recording.open()
        if self._saves is not None:
            self._saves.start()
        if self._sampler is not None:
            self._sampler.start()

    def _close(self) -> None:
        """End; it does no harm to call it twice."""
        with masked:
            with suppress(ValueError):
                session_observers.remove(self._ledgers.on_session)
            if self._saves is not None:
                self._saves.step()
                self._saves.stop()
            self._recording.close()
            if self._sampler is not None:
                self._sampler.stop()
            self._ledger, self._pages = self._ledgers.sessions(), self._ledgers.pages()

    # Figures

    def key_averages(self, *_: Any, **__: Any) -> Averages:
        """Return the times of operations, forward and backward, summed up by name.

        With a schedule they are those of the last steps that counted. Of long recordings they are
        the latest 20,000 operations. Arguments, by which PyTorch groups further, are accepted.
        """
        account = self._recording.read()
        return averages(account.spans.copy(), self._window.began, self._window.ended)

    @property
    def peak_nbytes(self) -> int:
        """The maximum of the bytes allocated."""
        return self._recording.read().peak_nbytes

    @property
    def ledger(self) -> Ledger:
        """What all sessions did for saved tensors."""
        return self._ledgers.sessions() if self._recording.ended is None else self._ledger

    @property
    def pages(self) -> PageLedger:
        """What all model offloads did for parameters, gradients and optimizer state."""
        if self._recording.ended is None:
            self._ledgers.look()
            return self._ledgers.pages()
        return self._pages

    def to_dict(self, max_points: int | None = _MAX_POINTS) -> dict[str, Any]:
        """Return the whole profile as numbers, text, lists and dicts, ready for JSON.

        Seconds count from the begin of the recording.

        Args:
            max_points: downsample the timeline to about this number of points, extremes included;
                None for all that there are.
        """
        account, began, now = self._recording.read(), self._recording.began, self._recording.now
        sampler = self._sampler
        return {
            "version": VERSION,
            "machine": describe_machine(),
            "seconds": now - began,
            "steps": account.steps.steps(now),
            "phases": list(account.steps.phases(now, account.total)),
            "phase_totals": account.steps.totals(now),
            "timeline": _timeline(account.table(now, max_points)),
            "sampled": {key: [] for key in FIGURES} if sampler is None else sampler.figures(began),
            "peak": {
                "seconds": account.peak_seconds - began,
                "nbytes": account.peak_nbytes,
                "contents": contents(account.at_peak),
            },
            "modules": module_rows(account.modules, self.ledger),
            "spans": [
                {
                    "name": name,
                    "kind": kind,
                    "thread": thread,
                    "start": max(0.0, start - began),
                    "end": end - began,
                    "nbytes": nbytes,
                }
                for name, kind, thread, start, end, nbytes in account.spans.copy()
            ],
            "ledger": self.ledger.as_dict(),
            "pages": self.pages.as_dict(),
        }

    # Outputs

    def to_json(self, indent: int | None = None) -> str:
        """Return `to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=indent)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `to_dict` into a file as JSON, with the step that saved most if ``saves=True``.

        ``offgrad replay`` and ``offgrad tune`` read such a file.
        """
        content = self.to_dict()
        if self._saves is not None and self._saves.has_recording:
            content["saves"] = self._saves.recording.to_dict()
        _write(path, json.dumps(content))

    def to_trace(self) -> dict[str, Any]:
        """Return a trace in the JSON format that Perfetto (https://ui.perfetto.dev) opens.

        It has a track for each thread, I/O threads included, with spans of modules and operations,
        and counters of memory. Of long recordings it has the latest spans.
        """
        return trace(self.to_dict())

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write `to_trace` into a file."""
        _write(path, json.dumps(self.to_trace()))

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write `to_trace` into a file: PyTorch's name of `save_trace`."""
        self.save_trace(path)

    def table(self) -> "RenderableType":
        """Return the figures as tables for a rich console."""
        return as_rich(parts(self.to_dict()))

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        title: str = "Tensor memory by category",
        axes: "Axes | None" = None,
    ) -> "Axes":
        """Draw memory by category over time; return the Matplotlib axes.

        Args:
            path: a PNG, SVG or PDF file to save the figure in.
            title: of the axes.
            axes: to draw on; None for those of a new figure.
        """
        # Here, because Matplotlib is slow to import.
        from offgrad.profiler.plot import plot

        return plot(self.to_dict(), path, title=title, axes=axes)

    def report(self, path: str | os.PathLike[str], *, title: str = "Memory profile") -> None:
        """Write an HTML report; `offgrad.profiler.report` puts several profiles side by side."""
        report(path, self, title=title)

    def __str__(self) -> str:
        return as_text(self.table())

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "a Profile is neither copied nor pickled: it may be recording; pass on what "
            "prof.to_dict() returns, or the file that prof.save(path) writes"
        )

    def __repr__(self) -> str:
        account = self._recording.read()
        peak = format_nbytes(account.peak_nbytes)
        return f"<Profile: peak of {peak} in {self._seconds:.3f} s>"

    def _repr_html_(self) -> str:
        return as_html(parts(self.to_dict()))

    @property
    def _seconds(self) -> float:
        return self._recording.now - self._recording.began


def _timeline(table: Any) -> dict[str, Any]:
    table_nbytes = table[:, 1:].astype(np.int64)
    return {
        "seconds": table[:, 0].tolist(),
        "nbytes": table_nbytes.sum(axis=1).tolist(),
        "categories": {
            name: table_nbytes[:, index].tolist() for index, name in enumerate(CATEGORIES)
        },
    }


def _write(path: str | os.PathLike[str], text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


_ACCEPTED = {
    *("acc_events", "custom_trace_id_callback", "execution_trace_observer"),
    *("experimental_config", "post_processing_timeout_s", "profile_memory", "record_shapes"),
    *("use_cuda", "with_flops", "with_modules", "with_stack"),
}
"""Options of PyTorch's profiler that change nothing here."""


class profile:
    """Record tensor memory, time and the work of sessions inside the block.

    ::

        with offgrad.profiler.profile() as prof:
            for x, y in batches:
                train(x, y)
                prof.step()
        print(prof)
        prof.plot("memory.png")

    The block may have any number of steps: of older ones, and of many changes of memory, sums and
    extremes are kept. All threads are recorded. Profiles may be nested.

    As a decorator it records each call of a function, whose latest `Profile` is its attribute
    ``profile``.

    Args:
        interval: between looks at resident memory, page cache and disk I/O, in seconds; None for
            none.
        saves: whether to record for replays what steps save, too. Sessions do not apply their
            policies then: what is saved stays in memory (see `offgrad.prediction.SaveRecorder`).
        schedule: which steps `key_averages` counts, see `schedule`; by default all.
        on_trace_ready: called with the `Profile` after the last step of each cycle of the schedule,
            or at the end of the block.
        activities: accepted; there is only the CPU.
        **options: of PyTorch's profiler, such as ``record_shapes``: accepted.
    """

    def __init__(
        self,
        *,
        interval: float | None = 0.05,
        saves: bool = False,
        schedule: Schedule | None = None,
        on_trace_ready: Callable[[Profile], Any] | None = None,
        activities: Any = None,
        **options: Any,
    ) -> None:
        unknown = options.keys() - _ACCEPTED
        if unknown:
            raise TypeError(f"profile has no option {', '.join(sorted(unknown))}")
        if interval is not None and not (
            isinstance(interval, Real) and 0 < interval <= TIMEOUT_MAX
        ):
            raise ValueError(
                f"interval must be a number of seconds above 0, or None, got {interval!r}"
            )
        self._interval, self._saves = interval, saves
        self._schedule, self._on_trace_ready = schedule, on_trace_ready
        self._profiles: list[Profile] = []

    def __enter__(self) -> Profile:
        prof = Profile(self._interval, self._saves, self._schedule, self._on_trace_ready)
        try:
            with masked:
                prof._open()
                self._profiles.append(prof)
            return prof
        except BaseException:
            with masked:
                prof._close()
                if self._profiles[-1:] == [prof]:
                    self._profiles.pop()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        prof = self._profiles[-1]
        try:
            prof._close()
        except KeyboardInterrupt:  # perhaps before it began
            prof._close()
            raise
        finally:
            self._profiles.pop()
            self._last = prof
        if error is None and prof._window.end():
            prof._show_trace()

    def start(self) -> None:
        """Begin to record, without a block; `stop` ends it."""
        self.__enter__()

    def stop(self) -> None:
        """End the recording that `start` began.

        Raises:
            RuntimeError: if there is none.
        """
        if not self._profiles:
            raise RuntimeError("stop() ends what start() begins, and nothing is being recorded")
        self.__exit__(None, None, None)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the latest `Profile`, for programs that use `start`."""
        found = self.__dict__.get("_profiles") or [self.__dict__.get("_last")]
        if name.startswith("_") or found[-1] is None:
            raise AttributeError(f"profile has no attribute {name!r} before it has begun")
        return getattr(found[-1], name)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function`, recorded at each call."""
        if any(
            pauses(function)
            for pauses in (isgeneratorfunction, iscoroutinefunction, isasyncgenfunction)
        ):
            raise TypeError(
                f"a profile decorates functions that run to their end, got {function.__name__}, "
                "which pauses; use `with` inside it"
            )

        @wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            again = profile(
                interval=self._interval,
                saves=self._saves,
                schedule=self._schedule,
                on_trace_ready=self._on_trace_ready,
            )
            with again as recorded.profile:  # type: ignore[attr-defined]
                return function(*args, **kwargs)

        return recorded
