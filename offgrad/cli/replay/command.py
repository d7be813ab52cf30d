"""``offgrad replay``: predict peak and time of policies from a recorded step."""

from pathlib import Path

import click
from offgrad_storage import StoreError
from rich import box
from rich.console import Console
from rich.table import Table

from offgrad._display import Name
from offgrad.cli.errors import BadValue
from offgrad.cli.folders import check_spill_directory
from offgrad.cli.terminal import print_table
from offgrad.memory import format_nbytes
from offgrad.policies import Policy, parse_policy
from offgrad.policies.rule_matches import check_ops, rule_matches
from offgrad.prediction import Machine, Recording, Replay
from offgrad.prediction import replay as replay_policy
from offgrad.prediction.known_machines import measured
from offgrad.prediction.machine import parse_rate

_DEFAULTS = ("keep", "pool", "disk", "recompute")


@click.command(
    short_help="Predict a recorded step under other policies.",
    context_settings={"max_content_width": 100},
)
@click.option(
    "--policy",
    "policies",
    metavar="POLICY",
    multiple=True,
    help="A policy, such as budget:256MiB; several times for several.  "
    f"[default: {', '.join(_DEFAULTS)}]",
)
@click.option(
    "--bandwidth", metavar="RATE", help="Of the drive, such as 1GB/s.  [default: measured]"
)
@click.option("--directory", metavar="FOLDER", help="Where stores would write, to be measured.")
@click.argument("recording", metavar="FILE", type=click.Path(path_type=Path))
def replay(
    recording: Path, policies: tuple[str, ...], bandwidth: str | None, directory: str | None
) -> int:
    """Predict what a recorded training step takes under policies, without training.

    FILE is written by offgrad profile --saves, by save() of a profile with saves=True, or by
    Recording.save. The policies decide on the recorded tensors as they would in
    training. The table has the peak of tensor memory, the time of a step, the part of it that waits
    for stores, and the bytes that go to the drive. The time that codecs take is not counted.

    The drive is measured once for each device, and remembered; --bandwidth is instead of that.

    \b
    Example:
      offgrad profile --saves run.offgrad train.py
      offgrad replay run.offgrad --policy budget:256MiB --policy disk --bandwidth 1GB/s

    Exit status: 0; 2 for bad values, as a file that is no recording.
    """
    loaded = load(recording)
    unmatched: list[str] = []
    for text in policies:
        try:
            policy = parse_policy(text)
            check_ops(policy)
        except (ValueError, ImportError) as error:
            raise BadValue(f"--policy: {error}") from None
        unmatched += _unmatched(policy, loaded)
    machine = machine_for(bandwidth, directory)
    results = [replay_policy(loaded, each, machine=machine) for each in policies or _DEFAULTS]
    names = [str(each) for each in policies or _DEFAULTS]
    console = Console(emoji=False)
    console.print(
        f"{recording}: {len(loaded.saves)} saved tensors, {format_nbytes(loaded.saved_nbytes)}; "
        f"the drive writes {_rate(machine.write_rate)} and reads {_rate(machine.read_rate)}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    print_table(console, table(names, results))
    notes = dict.fromkeys(note for each in results for note in each.notes)
    for line in (*notes, *unmatched):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return 0


def _unmatched(policy: Policy, recording: Recording) -> list[str]:
    """Return a line for each rule of a policy that matches no recorded tensor."""
    matches = rule_matches(policy)
    if matches is None:
        return []
    for each in recording.saves:
        matches.note(each.context())
    return matches.complaints()


def load(path: Path) -> Recording:
    """Return the recording in a file.

    Raises:
        BadValue: there is none.
    """
    try:
        return Recording.load(path)
    except OSError as error:
        raise BadValue(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise BadValue(str(error)) from None


def machine_for(bandwidth: str | None, directory: str | None) -> Machine:
    """Return the machine with a drive of that bandwidth, or with the drive of a folder.

    Raises:
        BadValue: the rate or the folder is none.
    """
    try:
        if bandwidth is not None:
            return Machine().with_bandwidth(parse_rate(bandwidth))
    except ValueError as error:
        raise BadValue(f"--bandwidth: {error}") from None
    try:
        return measured(check_spill_directory(directory))
    except (ValueError, OSError, StoreError) as error:
        raise BadValue(f"{' '.join(str(error).split())}; or give --bandwidth") from None


def table(names: list[str], results: list[Replay]) -> Table:
    """Return a table with a row for each policy."""
    found = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    found.add_column("policy")
    for name in ("peak", "step", "stall", "recompute", "written", "read"):
        found.add_column(name, justify="right", no_wrap=True)
    for name, each in zip(names, results, strict=True):
        found.add_row(
            Name(name),
            format_nbytes(each.peak_nbytes),
            f"{each.seconds:.3f} s",
            f"{each.stall_seconds:.3f} s",
            f"{each.recompute_seconds:.3f} s",
            format_nbytes(each.written_nbytes),
            format_nbytes(each.read_nbytes),
        )
    return found


def _rate(rate: float) -> str:
    return f"{float(f'{rate / 1e9:.2g}'):g} GB/s"
