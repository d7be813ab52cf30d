"""Writes the page: a template, a style sheet and scripts of this folder, and the data.

The page is safe whatever modules are called: scripts read names from a block of JSON in which
``<`` is escaped, and put them into text nodes. Its Content-Security-Policy admits this style sheet
and this script alone, by their hashes, and no network.
"""

import base64
import json
import os
from collections.abc import Mapping
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from offgrad.profiler.html.data import bounded

_SCRIPTS = ("basics", "timeline", "spans", "tables", "main")


def report(path: str | os.PathLike[str], profiles: Any, *, title: str = "Memory profile") -> None:
    """Write a report of one profile, or of several side by side, as one HTML file.

    Args:
        path: of the file; an existing one is replaced.
        profiles: a profile, or a mapping of profiles by name, such as the policy of each run.
            A profile is a `Profile`, what its ``to_dict`` or `MemoryProfile.as_dict` returned, or
            a file that ``Profile.save`` wrote.
        title: of the page.

    Raises:
        TypeError: something is no profile.
        ValueError: there is none, or a file is not JSON.
        OSError: a file cannot be read or written.
    """
    text = page(profiles, title=title)
    Path(path).write_text(text, encoding="utf-8", errors="backslashreplace")


def page(profiles: Any, *, title: str = "Memory profile") -> str:
    """Return the text of `report`."""
    named = profiles if _is_mapping_of_profiles(profiles) else {"": profiles}
    if not named:
        raise ValueError("a report needs at least one profile, got an empty mapping")
    data = {
        "profiles": [
            {"name": str(name), "profile": bounded(_as_dict(each))} for name, each in named.items()
        ]
    }
    style = _read("style.css")
    script = '"use strict";\n(() => {\n' + "\n".join(_read(f"{each}.js") for each in _SCRIPTS)
    script += "})();\n"
    return Template(_read("page.html")).substitute(
        title=escape(title),
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        data=_json(data),
    )


def _is_mapping_of_profiles(profiles: Any) -> bool:
    return isinstance(profiles, Mapping) and "timeline" not in profiles


def _as_dict(profile: Any) -> Mapping[str, Any]:
    found = profile
    if isinstance(profile, (str, os.PathLike)):
        content = Path(profile).read_bytes()
        try:
            found = json.loads(content)
        except ValueError as error:
            path = os.fspath(profile)
            raise ValueError(f"a saved profile is JSON, but {path} is not: {error}") from None
    for name in ("to_dict", "as_dict"):
        if hasattr(found, name):
            found = getattr(found, name)()
    if not isinstance(found, Mapping) or "timeline" not in found:
        raise TypeError(
            "report takes a profile, or a mapping of profiles by name, as in "
            f'{{"keep": first, "disk": second}}; got {_described(profile)}'
        )
    return found


def _described(profile: Any) -> str:
    is_file = isinstance(profile, (str, os.PathLike))
    return f"the file {os.fspath(profile)}" if is_file else type(profile).__name__


def _read(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(sha256(text.encode()).digest()).decode()


def _json(data: Any) -> str:
    """Return JSON that a browser takes for no markup."""
    text = json.dumps(data, separators=(",", ":"), default=str, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
