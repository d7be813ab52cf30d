"""What a comparison has done before a signal, kept in its folder until it is complete."""

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

from offgrad.cli.compare.output import write_output
from offgrad.cli.compare.results import Run

FOLDER = "unfinished"


class Kept:
    """Runs of groups by the settings that they were made with.

    Args:
        output: the folder of results.
        settings: all that the figures depend on; JSON.
    """

    def __init__(self, output: Path, settings: Any) -> None:
        text = json.dumps(settings, sort_keys=True)
        self._key = hashlib.sha256(text.encode()).hexdigest()[:16]
        self._folder = output / FOLDER

    def load(self, group: int) -> list[list[Run]]:
        """Return the parts of a group, one for each time that it was stopped, and perhaps a last
        one; none if there are none with these settings.
        """
        try:
            parts = json.loads(self._path(group).read_bytes())
            return [[Run.from_kept(each) for each in part] for part in parts]
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return []

    def save(self, group: int, parts: list[list[Run]]) -> None:
        """Keep the parts of a group."""
        text = json.dumps([[run.as_kept() for run in part] for part in parts])
        write_output(self._folder, {self._path(group).name: lambda path: path.write_text(text)})

    def clear(self) -> None:
        """Remove all kept groups, of any settings."""
        for path in self._folder.glob("*.json"):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def _path(self, group: int) -> Path:
        return self._folder / f"{self._key}-{group}.json"
