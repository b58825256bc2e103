"""The reports of `moor doctor nodes`, as people and programs read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moorage.apimachinery.resources import Obj
from moorage.decide.tools.doctor import HOLD_RULES, NodeReport


def report_text(reports: Sequence[NodeReport]) -> Iterator[str]:
    """A paragraph per node: the verdict, then each hold with what to do."""
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
    """The reports for programs."""
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
