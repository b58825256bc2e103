"""The fields of Argo's format that Moorage does not run: one table.

A field that is not run is refused with the reason, never ignored: without it the workflow would do
something else. A change that supports one of them removes its row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from moorage.decide.admission.fields import Path
from moorage_workflows.decide.workflows.findings import Finding, Severity

RULE = "support"
STRATEGIES = ("OnWorkflowCompletion", "OnWorkflowDeletion", "Never")  # of artifactGC


class Row(Struct, frozen=True):
    """A field that Moorage does not run. `field`: dotted; `*` is an index.

    A row of OF_TEMPLATES starts at a template (also an inline one, and templateDefaults), a row of OF_SPECS at the
    workflow's spec; a row of ANYWHERE is the end of a path.
    """

    field: str
    reason: str
    severity: Severity = Severity.ERROR

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.field.split("."))


_STORES = (
    "artifacts are stored in Moorage's own store, S3 or Google Cloud Storage, or read by HTTP and Git; use one"
)
_AGENT = "use a container that does the same"

OF_TEMPLATES: tuple[Row, ...] = (Row("plugin", f"executor plugins are not run; {_AGENT}"),)
OF_SPECS: tuple[Row, ...] = (Row("executorPlugins", "executor plugins are not run"),)
ANYWHERE: tuple[Row, ...] = (
    *(Row(f"artifacts.*.{store}", _STORES) for store in ("artifactory", "azure", "hdfs", "oss", "plugin")),
    *(Row(f"archiveLocation.{store}", _STORES) for store in ("artifactory", "azure", "hdfs", "oss", "plugin")),
    Row(
        "s3.encryptionOptions.serverSideCustomerKeySecret",
        "keys of the customer are not used; use enableEncryption, with kmsKeyId or without",
    ),
    Row("valueFrom.event", "events do not start workflows here; use value"),
)


def unsupported(document: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Return a finding for each field of a normalised document that Moorage does not run."""
    spec = document.get("spec")
    return tuple(_walk(spec, ("spec",), (), OF_SPECS)) if isinstance(spec, Mapping) else ()


def _walk(value: Any, path: Path, names: tuple[str, ...], rows: Sequence[Row]) -> Iterator[Finding]:
    """`names`: those since the spec or template that `path` is in; `rows`: the unsupported fields of that."""
    if isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _walk(inner, (*path, index), (*names, "*"), rows)
    if not isinstance(value, Mapping):
        return
    if names[-2:] == ("templates", "*") or names[-1:] in (("inline",), ("templateDefaults",)):
        names, rows = (), OF_TEMPLATES
    elif names[-1:] == ("workflowSpec",):
        names, rows = (), OF_SPECS
    for key, inner in value.items():
        if inner is None or inner is False or key in ("labels", "annotations", "withItems"):
            continue
        at, named = (*path, str(key)), (*names, str(key))
        row = next((row for row in rows if row.names == named), None) or next(
            (row for row in ANYWHERE if named[-len(row.names) :] == row.names), None
        )
        if row is not None:
            yield Finding(RULE, at, "", row.reason, row.severity)
            if row.severity is Severity.ERROR:
                continue
        if key == "artifactGC" and isinstance(inner, Mapping):
            strategy = inner.get("strategy") or ""
            if strategy not in ("", *STRATEGIES):
                yield Finding(RULE, (*at, "strategy"), strategy, f"must be one of {', '.join(STRATEGIES)}")
        yield from _walk(inner, at, named, rows)
