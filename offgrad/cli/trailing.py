"""Options of offgrad that follow the script's arguments."""

from typing import Any

import click

_COMMAND_LINE = click.core.ParameterSource.COMMANDLINE


def given(options: dict[str, Any]) -> set[str]:
    """Return the names of those options that stand before the script."""
    context = click.get_current_context()
    return {name for name in options if context.get_parameter_source(name) is _COMMAND_LINE}


def parsed(
    arguments: tuple[str, ...], index: int, options: dict[str, Any], argument: str
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the arguments before an index, and the options with those from there on.

    Args:
        arguments: that follow the script.
        index: of the first option of offgrad among them.
        options: that stand before the script, defaults included.
        argument: the name of the parameter that is the script.

    Raises:
        click.UsageError: what follows the index are no options.
    """
    context = click.get_current_context()
    parser = context.command.make_parser(context)
    trailing, rest, order = parser.parse_args(list(arguments[index:]))
    stray = [trailing[argument], *rest] if isinstance(trailing.get(argument), str) else rest
    if stray:
        raise click.UsageError(f"{stray[0]!r} is neither an option nor the value of one")
    found = {each.name: trailing[each.name] for each in order if isinstance(each, click.Option)}
    for each in context.command.params:
        if each.name in found:
            found[each.name] = each.type_cast_value(context, found[each.name])
    return arguments[:index], options | found


def first(arguments: tuple[str, ...], option: str) -> int | None:
    """Return where an option stands among arguments; None where it does not."""
    found = (i for i, each in enumerate(arguments) if each.partition("=")[0] == option)
    return next(found, None)
