"""The reports of `moor doctor` as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moorage.decide.installcheck.checks import Verdict
from moorage.decide.installcheck.facts import Facts
from moorage.decide.installcheck.results import Outcome
from moorage.decide.tools.doctor import HOLD_RULES, NodeReport
from moorage_kube.resources import Obj


def report_text(reports: Sequence[NodeReport]) -> Iterator[str]:
    """Yield a paragraph per node: the verdict, then each hold and how to remove it."""
    for report in reports:
        pods = f"{report.moving} pod{'' if report.moving == 1 else 's'} to move"
        verdict = "could go" if report.may_go else "stays"
        threshold = f"threshold {100 * report.threshold:.0f} %"
        yield f"{report.node}: {verdict}; {report.utilisation} requested, {threshold}; {pods}"
        for hold in report.holds:
            rule = HOLD_RULES[hold.rule]
            who = f"pod {hold.pod}" if hold.pod else "node"
            yield f"  {who}: {hold.rule}: {rule.means} ({hold.why})"
            yield f"    fix: {rule.fix.replace('NODE', report.node)}"


def report_json(reports: Sequence[NodeReport]) -> list[Obj]:
    """The reports as JSON."""
    return [
        {
            "node": report.node,
            "mayGo": report.may_go,
            "utilisation": {
                "resource": report.utilisation.resource,
                "share": round(report.utilisation.share, 4),
                "threshold": report.threshold,
            },
            "moving": report.moving,
            "holds": [
                {
                    "rule": hold.rule,
                    "pod": str(hold.pod) if hold.pod else None,
                    "why": hold.why,
                    "fix": HOLD_RULES[hold.rule].fix.replace("NODE", report.node),
                    "source": HOLD_RULES[hold.rule].source,
                }
                for hold in report.holds
            ],
        }
        for report in reports
    ]


def verdicts_text(facts: Facts, verdicts: Sequence[Verdict]) -> Iterator[str]:
    """One line per check, with reason and fix if the check failed; the last line has the counts."""
    if facts.installed:
        where = "a local cluster" if facts.local else "installed"
        yield f"Moorage {facts.settings.get('version') or '(version not known)'}: {where}"
    else:
        yield "Moorage is not installed: these checks are of the cluster"
    width = max(len(verdict.check.name) for verdict in verdicts)
    for verdict in verdicts:
        result, check = verdict.result, verdict.check
        yield f"{result.outcome:<8} {check.name:<{width}}  {result.message}"
        if result.outcome is Outcome.FOUND:
            continue
        required = "required" if verdict.required else "not required"
        yield f"{'':9}why: {check.why} ({required})"
        for fix in result.fix:
            yield f"{'':9}fix: {fix}"
    failed = sum(verdict.failed for verdict in verdicts)
    counts = {outcome: sum(verdict.result.outcome is outcome for verdict in verdicts) for outcome in Outcome}
    shown = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
    yield f"{len(verdicts)} checks: {shown}; {failed} required {'check fails' if failed == 1 else 'checks fail'}"


def verdicts_json(facts: Facts, verdicts: Sequence[Verdict]) -> Obj:
    """The verdicts as JSON."""
    return {
        "installed": facts.installed,
        "failed": sum(verdict.failed for verdict in verdicts),
        "checks": [
            {
                "name": verdict.check.name,
                "outcome": str(verdict.result.outcome),
                "required": verdict.required,
                "message": verdict.result.message,
                "why": verdict.check.why,
                "fix": list(verdict.result.fix),
            }
            for verdict in verdicts
        ],
    }
