"""Names of container images, and tables of what is known of images by patterns of their names.

https://kubernetes.io/docs/concepts/containers/images/#image-names
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from moorage.apimachinery.documents import parse_json
from moorage.errors import DocumentError

_FIELDS = ("image", "entrypoint", "cmd", "path", "env")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRule:
    """What images of a name have. `image`: a pattern with `*`, `?` and `[…]`; without a tag it fits every tag.

    `entrypoint`, `cmd`: as the image's own. `path`: folders of the machine, put before those in PATH. `env`:
    variables.
    """

    image: str
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


def short_name(image: str) -> str:
    """The name without Docker Hub's own words: "docker.io/library/busybox:1" is "busybox:1"."""
    for prefix in ("docker.io/", "index.docker.io/"):
        image = image.removeprefix(prefix)
    return image.removeprefix("library/")


def without_tag(image: str) -> str:
    """The name without tag and digest."""
    name = image.partition("@")[0]
    head, colon, tag = name.rpartition(":")
    return head if colon and "/" not in tag else name


def rule_of(rules: Sequence[ImageRule], image: str) -> ImageRule | None:
    """The first rule that fits the image."""
    name = short_name(image)
    for rule in rules:
        pattern = short_name(rule.image)
        if fnmatchcase(name, pattern) or fnmatchcase(without_tag(name), pattern):
            return rule
    return None


def parse_rules(data: bytes | str) -> tuple[ImageRule, ...]:
    """Read a table: a JSON list of objects with the fields of ImageRule. Raises DocumentError."""
    document = parse_json(data)
    if not isinstance(document, list):
        raise DocumentError("a table of images must be a list of objects")
    return tuple(_rule(number, entry) for number, entry in enumerate(document))


def _rule(number: int, entry: Any) -> ImageRule:
    if not isinstance(entry, dict) or not isinstance(entry.get("image"), str) or not entry["image"]:
        raise DocumentError(f"entry {number} of the table of images must be an object with the name `image`")
    for name in entry:
        if name not in _FIELDS:
            raise DocumentError(f"{entry['image']}: unknown field {name!r}: use {', '.join(_FIELDS)}")
    lists = {name: entry.get(name, []) for name in ("entrypoint", "cmd", "path")}
    for name, words in lists.items():
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise DocumentError(f"{entry['image']}: {name} must be a list of texts")
    env = entry.get("env", {})
    if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
        raise DocumentError(f"{entry['image']}: env must be an object of texts")
    return ImageRule(image=entry["image"], env=env, **{name: tuple(words) for name, words in lists.items()})
