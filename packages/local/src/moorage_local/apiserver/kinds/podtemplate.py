"""PodTemplates."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.cells import labels_text, template_containers
from moorage_local.apiserver.kinds.kind import Rules


def _cells(obj: Obj, _: datetime) -> Sequence[Any]:
    template = obj.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels")
    return (obj["metadata"]["name"], *template_containers(template), labels_text(labels))


RULES = {("", "podtemplates"): Rules(cells=_cells)}
