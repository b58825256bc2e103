"""Names of container images, and tables of facts about images by patterns of their names.

https://kubernetes.io/docs/concepts/containers/images/#image-names
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from moorage_kube.documents import parse_json
from moorage_kube.errors import DocumentError
from moorage_kube.globs import fits

DOCKER_HUB = "registry-1.docker.io"
REFERENCE_CHARACTERS = 512
_REFERENCE = re.compile(
    r"(?P<path>(?:\[[0-9a-fA-F:]+\](?::\d+)?/|[A-Za-z0-9.-]+(?::\d+)?/)?[^:@\[\]]+)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_HOST = re.compile(r"(?:\[[0-9a-fA-F:]+\]|[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)(?::\d{1,5})?")
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*")
_FIELDS = ("image", "entrypoint", "cmd", "path", "env")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRule:
    """The properties of images with a name.

    `image`: a pattern with `*`, `?` and `[…]`; without a tag it fits every tag.

    `entrypoint`, `cmd`: as in the image. `path`: folders of the machine, put before those in PATH. `env`:
    variables.
    """

    image: str
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ImageReference:
    """An image in a registry. `host`: the host of the registry's API, with the port.

    `digest`: "" if there is none.
    """

    name: str  # as it is written
    host: str
    repository: str
    tag: str
    digest: str = ""


def parse_reference(image: str) -> ImageReference:
    """Read "busybox", "ghcr.io/org/tool:1", "r.corp:5000/x@sha256:…". Raises DocumentError.

    An image without a registry is from Docker Hub. An image without a tag has the tag `latest`.

    https://github.com/distribution/reference
    """
    match = _REFERENCE.fullmatch(image) if len(image) <= REFERENCE_CHARACTERS else None
    if match is None:
        raise DocumentError(f"invalid image name {image[:100]!r}: use a name such as ghcr.io/org/tool:1.2")
    path, tag, digest = match["path"], match["tag"] or "latest", match["digest"] or ""
    host, slash, rest = path.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost"):
        host, rest = "docker.io", path
    if host in ("docker.io", "index.docker.io"):
        host, rest = DOCKER_HUB, rest if "/" in rest else f"library/{rest}"
    if not _HOST.fullmatch(host) or not _REPOSITORY.fullmatch(rest):
        raise DocumentError(f"invalid image name {image[:100]!r}: use a name such as ghcr.io/org/tool:1.2")
    return ImageReference(image, host, rest, tag, digest)


def short_name(image: str) -> str:
    """Return the name without the default prefixes of Docker Hub: "docker.io/library/busybox:1" is "busybox:1"."""
    for prefix in ("docker.io/", "index.docker.io/"):
        image = image.removeprefix(prefix)
    return image.removeprefix("library/")


def without_tag(image: str) -> str:
    """Return the name without its tag and digest."""
    name = image.partition("@")[0]
    head, colon, tag = name.rpartition(":")
    return head if colon and "/" not in tag else name


def rule_of(rules: Sequence[ImageRule], image: str) -> ImageRule | None:
    """Return the first rule that matches the image; None if no rule matches."""
    name = short_name(image)
    for rule in rules:
        pattern = short_name(rule.image)
        if fits(name, pattern) or fits(without_tag(name), pattern):
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
            raise DocumentError(f"{entry['image']}: {name} must be a list of strings")
    env = entry.get("env", {})
    if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
        raise DocumentError(f"{entry['image']}: env must be an object with strings as values")
    return ImageRule(image=entry["image"], env=env, **{name: tuple(words) for name, words in lists.items()})
