"""A profile as tables of text."""

from typing import Any

from offgrad._display import Grid, Part
from offgrad.memory import format_nbytes

_MAX_CONTENTS = 12
_MAX_MODULES = 12


def parts(figures: dict[str, Any]) -> list[Part]:
    """Return paragraphs and tables of the figures of `Profile.to_dict`."""
    shown: list[Part] = [_summary(figures), _phases(figures), _categories(figures)]
    if figures["peak"]["contents"]:
        shown += ["Alive at the peak, largest first", _contents(figures)]
    if figures["modules"]:
        shown += ["Modules; the most that each kept for backward first", _modules(figures)]
    shown += [*_sessions(figures), *_sampled(figures)]
    return shown


def _summary(figures: dict[str, Any]) -> str:
    peak, steps = figures["peak"], sum(each["count"] for each in figures["steps"] if each["ended"])
    where = next(
        (
            f", in {each['name']}" + (f" of step {each['step']}" if steps else "")
            for each in figures["phases"]
            if each["start"] <= peak["seconds"] <= each["end"]
            and each["peak_nbytes"] == peak["nbytes"]
        ),
        "",
    )
    counted = f"{steps} {'step' if steps == 1 else 'steps'} in"
    if not steps:
        counted = "No step marked (prof.step() ends one) in"
    elif not figures["steps"][-1]["ended"]:
        counted = f"{counted[:-3]}, and work after the last one, in"
    return (
        f"{counted} {figures['seconds']:.3f} s; peak of "
        f"{format_nbytes(peak['nbytes'])} at {peak['seconds']:.3f} s{where}"
    )


def _phases(figures: dict[str, Any]) -> Grid:
    rows = [
        (
            name,
            str(each["count"]),
            f"{each['seconds']:.3f} s",
            format_nbytes(each["peak_nbytes"]),
        )
        for name, each in figures["phase_totals"].items()
    ]
    return Grid(("phase", "times", "time", "peak"), rows)


def _categories(figures: dict[str, Any]) -> Grid:
    timeline = figures["timeline"]
    at_peak: dict[str, int] = {}
    for each in figures["peak"]["contents"]:
        at_peak[each["category"]] = at_peak.get(each["category"], 0) + each["nbytes"]
    rows = [
        (
            name,
            format_nbytes(at_peak.get(name, 0)),
            format_nbytes(max(values)),
            format_nbytes(values[-1]),
        )
        for name, values in timeline["categories"].items()
        if any(values)
    ]
    return Grid(("category", "at the peak", "at most", "at the end"), rows)


def _contents(figures: dict[str, Any]) -> Grid:
    contents = figures["peak"]["contents"]
    rows = [
        (
            each["category"],
            ".".join(filter(None, (each["op"], each["slot"]))),
            each["module"],
            _line(each["line"]),
            str(each["count"]),
            format_nbytes(each["nbytes"]),
        )
        for each in contents[:_MAX_CONTENTS]
    ]
    rest = contents[_MAX_CONTENTS:]
    if rest:
        count, nbytes = sum(each["count"] for each in rest), sum(each["nbytes"] for each in rest)
        rows.append((f"({len(rest)} more)", "", "", "", str(count), format_nbytes(nbytes)))
    return Grid(("category", "op and slot", "module", "line", "number", "memory"), rows, 4)


def _line(line: str) -> str:
    """Return file and number of a line."""
    path, _, rest = line.rpartition(":")
    return f"{path.replace(chr(92), '/').rpartition('/')[2]}:{rest.split()[0]}" if rest else ""


def _modules(figures: dict[str, Any]) -> Grid:
    modules = sorted(figures["modules"], key=lambda each: -each["saved_nbytes"])
    rows: list[tuple[str, ...]] = [
        (
            each["name"] or "(outermost)",
            each["type"],
            str(each["calls"]),
            f"{1000 * each['forward_seconds']:.1f}",
            f"{1000 * each['backward_seconds']:.1f}",
            format_nbytes(each["saved_nbytes"]),
            format_nbytes(each["forward_peak_nbytes"]),
            format_nbytes(each["backward_peak_nbytes"]),
        )
        for each in modules[:_MAX_MODULES]
    ]
    if len(modules) > _MAX_MODULES:
        rows.append((f"({len(modules) - _MAX_MODULES} more)", *[""] * 7))
    head = ("module", "type", "calls", "fwd ms", "bwd ms", "kept", "peak in fwd", "in bwd")
    return Grid(head, rows, 2)


def _sessions(figures: dict[str, Any]) -> list[str]:
    shown = []
    for key, what in (("ledger", "saved tensors"), ("pages", "pages")):
        ledger = figures[key]
        if ledger["saves"] or ledger["reads"] or ledger["writes"]:
            shown.append(
                f"Sessions, {what}: {ledger['saves']} packed, {ledger['unpacks']} unpacked, "
                f"{ledger['hits']} found in memory or read ahead; "
                f"{format_nbytes(ledger['written_nbytes'])} written, "
                f"{format_nbytes(ledger['read_nbytes'])} read; "
                f"{ledger['stall_seconds']:.3f} s waited"
            )
    return shown


def _sampled(figures: dict[str, Any]) -> list[str]:
    sampled = figures["sampled"]
    if not sampled["seconds"]:
        return []
    return [
        f"Process: at most {format_nbytes(max(sampled['rss_nbytes']))} resident, "
        f"{format_nbytes(sampled['read_nbytes'][-1])} read from drives, "
        f"{format_nbytes(sampled['written_nbytes'][-1])} written"
    ]
