"""``torch.utils.collect_env``: what offgrad runs on, for reports: `offgrad.show_config`."""

import platform as _platform

from offgrad._config import show_config as _show_config
from offgrad._missing import missing as _missing
from offgrad._version import __version__ as _version

__all__ = ["get_pretty_env_info", "main"]


def get_pretty_env_info() -> str:
    """Return the versions and settings as text."""
    lines = [
        f"offgrad {_version}",
        f"Python {_platform.python_version()} on {_platform.platform()}",
    ]
    for part, values in (_show_config("dicts") or {}).items():
        lines += [f"{part}: {name} {value}" for name, value in values.items()]
    return "\n".join(lines)


def main() -> None:
    """Print the versions and settings."""
    print(get_pretty_env_info())


__getattr__ = _missing("offgrad.utils.collect_env")

if __name__ == "__main__":
    main()
