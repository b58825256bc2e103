"""Known commands of images, for wrapped steps that set no command."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from moorage.model.names import IMAGES_ANNOTATION
from moorage_kube.errors import DocumentError
from moorage_kube.images import ImageRule, parse_rules, rule_of
from moorage_kube.meta import annotations_of


class Entrypoints(Mapping[str, tuple[Sequence[str], Sequence[str]]]):
    """Maps an image to its (ENTRYPOINT, CMD) by rules with patterns.

    Iteration yields the patterns of the rules.
    """

    def __init__(self, rules: Sequence[ImageRule] = ()) -> None:
        self._rules = tuple(rules)

    def __getitem__(self, image: str) -> tuple[Sequence[str], Sequence[str]]:
        rule = rule_of(self._rules, image)
        if rule is None:
            raise KeyError(image)
        return rule.entrypoint, rule.cmd

    def __iter__(self) -> Iterator[str]:
        return iter([rule.image for rule in self._rules])

    def __len__(self) -> int:
        return len(self._rules)


def entrypoints_of(nodes: Iterable[Mapping[str, Any]]) -> Entrypoints:
    """The commands of images that the nodes of a local cluster report; unreadable ones are ignored."""
    rules: dict[str, ImageRule] = {}
    for node in nodes:
        try:
            listed = parse_rules(annotations_of(node).get(IMAGES_ANNOTATION) or "[]")
        except DocumentError:
            continue
        rules |= {json.dumps([rule.image, rule.entrypoint, rule.cmd]): rule for rule in listed}
    return Entrypoints(tuple(rules.values()))
