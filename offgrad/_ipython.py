"""``%load_ext offgrad``: the cell magic ``%%offgrad_profile``."""

import ast
from contextlib import nullcontext
from typing import Any

import offgrad

_HELP = """Profile the tensor memory of a cell, and show it with the ledger of the policy.

Inside the cell `prof` is the profile: call prof.step() after each step of training. Afterwards
prof.report("report.html") writes a page, and prof.to_dict() gives all figures.
"""


def load_ipython_extension(shell: Any) -> None:
    """Register the magic with IPython's shell."""
    from IPython.core.magic_arguments import MagicArgumentParser

    parser = MagicArgumentParser("offgrad_profile", description=_HELP)
    parser.add_argument("--policy", metavar="POLICY", help='such as "disk:lz4" or budget:512MiB')
    parser.add_argument("--report", metavar="FILE", help="write an HTML report into a file")
    parser.add_argument("--name", default="prof", help="the variable of the profile")

    def offgrad_profile(line: str, cell: str) -> Any:
        return _profile(shell, cell, parser.parse_argstring(line))

    offgrad_profile.__doc__ = parser.format_help()
    shell.register_magic_function(offgrad_profile, "cell")


def _profile(shell: Any, cell: str, arguments: Any) -> Any:
    """Run a cell under a profile; return the value of its last expression."""
    from IPython.core.error import UsageError
    from IPython.display import display

    try:
        policy = arguments.policy and arguments.policy.strip("\"'")
        session = offgrad.offload(policy) if policy else None
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None
    run = _compiled(shell, cell)
    with offgrad.profiler.profile() as prof, session or nullcontext():
        shell.user_ns[arguments.name] = prof
        value = run()
    display(prof)
    if session is not None:
        display(session)
    if arguments.report:
        prof.report(arguments.report)
    return value


def _compiled(shell: Any, cell: str) -> Any:
    """Return a function that runs a cell in the user's namespace."""
    source = shell.transform_cell(cell)
    file = shell.compile.cache(source)  # lines of the cell appear in profiles and tracebacks
    tree = ast.parse(source, file)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    code = compile(tree, file, "exec")
    value = None if last is None else compile(ast.Expression(last.value), file, "eval")

    def run() -> Any:
        exec(code, shell.user_ns)
        return None if value is None else eval(value, shell.user_ns)

    return run
