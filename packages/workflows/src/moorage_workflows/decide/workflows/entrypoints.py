"""Known commands of images, for wrapped steps that set no command."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from moorage.model.localimages import image_rules
from moorage_kube.images import ImageRule, rule_of


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
    return Entrypoints(image_rules(nodes))
