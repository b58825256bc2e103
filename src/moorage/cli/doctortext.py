"""The reports of `moor doctor nodes`, as people and programs read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moorage.apimachinery.resources import Obj
from moorage.decide.tools.doctor import HOLD_RULES, NodeReport


def report_text(reports: Sequence[NodeReport]) -> Iterator[str]:
    """A paragraph per node: the verdict, then each hold with what to do."""
    for one in reports:
        pods = f"{one.moving} pod{'' if one.moving == 1 else 's'} to move"
        verdict = "could go" if one.may_go else "stays"
        yield f"{one.node}: {verdict}; {one.utilisation} requested, threshold {100 * one.threshold:.0f} %; {pods}"
        for hold in one.holds:
            rule = HOLD_RULES[hold.rule]
            who = f"pod {hold.pod}" if hold.pod else "node"
            yield f"  {who}: {hold.rule}: {rule.means} ({hold.why})"
            yield f"    fix: {rule.fix.replace('NODE', one.node)}"


def report_json(reports: Sequence[NodeReport]) -> list[Obj]:
    """The reports for programs."""
    return [
        {
            "node": one.node,
            "mayGo": one.may_go,
            "utilisation": {
                "resource": one.utilisation.resource,
                "share": round(one.utilisation.share, 4),
                "threshold": one.threshold,
            },
            "moving": one.moving,
            "holds": [
                {
                    "rule": hold.rule,
                    "pod": str(hold.pod) if hold.pod else None,
                    "why": hold.why,
                    "fix": HOLD_RULES[hold.rule].fix.replace("NODE", one.node),
                    "source": HOLD_RULES[hold.rule].source,
                }
                for hold in one.holds
            ],
        }
        for one in reports
    ]
