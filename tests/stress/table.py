"""The table at the end of a stress run."""

from collections import Counter

from tests.stress.driver import Report


def table(report: Report) -> str:
    """Return attempts, events and failures by suite and case, as text."""
    lines = [f"{'suite':<10}{'case':<52}{'attempts':>10}{'failures':>10}"]
    failures = Counter((each.suite, each.case) for each in report.failures)
    for (suite, case), attempts in sorted(report.attempts.items()):
        lines.append(f"{suite:<10}{case:<52}{attempts:>10}{failures[suite, case]:>10}")
    lines.append("")
    for (suite, name), count in sorted(report.counts.items()):
        lines.append(f"{suite:<10}{name:<52}{count:>10}")
    lines.append("")
    lines.append(f"{sum(report.attempts.values())} attempts, {len(report.failures)} failures")
    for failure in report.failures:
        lines.append(f"  {failure.suite}, {failure.case}, {failure.number}: {failure.reason}")
    return "\n".join(lines)
