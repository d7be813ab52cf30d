"""``python -m offgrad`` is ``offgrad``."""

from offgrad.cli import main

main()
