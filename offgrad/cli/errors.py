"""Errors of commands that the user sees as one line."""

import click


class BadValue(click.ClickException):
    """An invalid value from the user."""

    exit_code = 2
