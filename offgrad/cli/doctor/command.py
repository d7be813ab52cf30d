"""``offgrad doctor``: what this machine offers, what is wrong, and the remedy."""

import json
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

import offgrad
from offgrad.cli.doctor.checks import FINE, NOTE, WRONG, Finding, findings
from offgrad.cli.errors import BadValue
from offgrad.cli.folders import check_spill_directory
from offgrad.cli.machine import describe_machine

_STYLES = {FINE: "green", NOTE: "yellow", WRONG: "bold red"}


@click.command(
    short_help="Say what this machine offers, what is wrong, the remedy.",
    context_settings={"show_default": True, "max_content_width": 100},
)
@click.option(
    "--directory", metavar="FOLDER", help="Spill folder to look at.  [default: the one in use]"
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def doctor(directory: str | None, as_json: bool) -> int:
    """Say what this machine offers, what is wrong with it, and the remedy.

    It looks at versions, the processor, BLAS and the kernels it has chosen, threads, compiled
    kernels and their cache, memory and the limits on it, huge pages, and the spill folder: its
    drive, file system, free space and O_DIRECT. It changes nothing.

    \b
    Examples:
      offgrad doctor
      offgrad doctor --directory /mnt/nvme
      offgrad doctor --json > doctor.json

    Exit status: 0 if nothing is wrong; 1 if something is; 2 for bad values.
    """
    if directory is not None:
        try:
            check_spill_directory(directory)
        except ValueError as error:
            raise BadValue(str(error)) from None
    console = Console(emoji=False)
    found = []
    for finding in findings(directory):
        found.append(finding)
        if not as_json:
            _print(console, finding)
    wrong = [each for each in found if each.state == WRONG]
    if as_json:
        click.echo(json.dumps(_as_json(found, directory), indent=1))
    else:
        notes = sum(each.state == NOTE for each in found)
        many = "thing is" if len(wrong) == 1 else "things are"
        could = f"; {notes} could be better" if notes else ""
        verdict = f"{len(wrong) or 'No'} {many} wrong" if wrong else "Nothing is wrong"
        console.print(f"\n{verdict}{could}.", highlight=False)
    return int(bool(wrong))


def _print(console: Console, finding: Finding) -> None:
    lines = Table.grid(padding=(0, 2, 0, 0))
    lines.add_column(width=5)
    lines.add_column(width=12)
    lines.add_column(overflow="fold")
    style = _STYLES[finding.state]
    lines.add_row(Text(finding.state, style), finding.topic, Text(finding.text))
    if finding.remedy is not None:
        arrow = "→" if console.encoding.startswith("utf") else "->"
        lines.add_row("", "", Text(f"{arrow} {finding.remedy}", style))
    console.print(lines)


def _as_json(found: list[Finding], directory: str | None) -> dict[str, Any]:
    try:
        machine = describe_machine(directory)
    except (OSError, ValueError):
        machine = None  # a finding says why
    return {
        "offgrad": offgrad.__version__,
        "healthy": not any(each.state == WRONG for each in found),
        "findings": [each._asdict() for each in found],
        "machine": machine,
    }
