"""The images that the nodes of a local cluster run as processes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from moorage.model.names import IMAGES_ANNOTATION
from moorage_kube.errors import DocumentError
from moorage_kube.images import ImageRule, parse_rules
from moorage_kube.meta import annotations_of


def image_rules(nodes: Iterable[Mapping[str, Any]]) -> tuple[ImageRule, ...]:
    """The rules that the nodes report; unreadable ones are ignored."""
    rules: dict[str, ImageRule] = {}
    for node in nodes:
        try:
            listed = parse_rules(annotations_of(node).get(IMAGES_ANNOTATION) or "[]")
        except DocumentError:
            continue
        rules |= {json.dumps([rule.image, rule.entrypoint, rule.cmd]): rule for rule in listed}
    return tuple(rules.values())
