"""The admin's choices for an installation: `InstallValues`, its YAML form, and the merging of choices.

`moor install`, `moor upgrade`, the Helm chart and `moor doctor install` share it: `from
moorage.decide.install.values import InstallValues, parse_values`. The YAML has the names of the options, in
camelCase; the last installation's values are stored on the cluster in the ConfigMap `moorage-install`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

from msgspec import Struct, field

from moorage.model.info import INFO_VALUES
from moorage.model.names import is_dns_label
from moorage_kube.errors import InvalidName, Problems, QuantityError
from moorage_kube.quantity import parse_quantity
from moorage_kube.resources import Obj
from moorage_kube.texts import camel

Scheduler = Literal["second", "configure", "none"]
SCHEDULERS: tuple[Scheduler, ...] = ("second", "configure", "none")
SERVICES = ("operator", "webhook", "extender", "server")
_SUBDOMAIN_MAX = 253
_IMAGE = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]*(:\d+)?(/[a-z0-9][a-z0-9._-]*)*(:[\w][\w.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
_WORKSPACE_URL = re.compile(r"https?://\*\.[a-z0-9]([-a-z0-9.]*[a-z0-9])?(:\d{1,5})?/?")


class InstallValues(Struct, frozen=True, kw_only=True):
    """The choices of an installation. Empty values are left to the cluster, or to its admin."""

    image: str = ""  # of our services, with its tag; empty: the name `moorage`, for tools that replace it
    public_url: str = ""  # where people reach the server; several with commas between them
    kubernetes_url: str = ""  # where people reach the Kubernetes API
    kubernetes_ca: str = ""  # its certificate authority, PEM in base64, or "system"
    workspace_url: str = ""  # https://*.apps.example.org
    ingress_class: str = ""  # of our Ingresses; empty: the cluster's default
    tls_secret: str = ""  # a Secret of type kubernetes.io/tls for these Ingresses
    trusted_proxies: str = ""  # networks whose X-Forwarded headers are believed, with commas between them
    storage_class: str = ""  # of the server's volume; empty: the cluster's default
    pause_image: str = ""  # of the pods that hold machines' places
    run_image: str = ""  # of runs that name none, in teams that are created later
    scheduler: Scheduler = "configure"  # the client of the extender
    scheduler_image: str = ""  # of a second kube-scheduler, without its tag; empty: registry.k8s.io/kube-scheduler
    database_secret: str = ""  # in moorage-system; its `url`: postgresql://…
    replicas: Mapping[str, int] = field(default_factory=dict)  # by service
    resources: Mapping[str, Obj] = field(default_factory=dict)  # by service: requests and limits
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Obj] = ()
    image_pull_secrets: Sequence[str] = ()

    def to_document(self) -> Obj:
        """The YAML document; defaults are left out, so that a later default applies."""
        default = InstallValues()
        document: Obj = {}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value != getattr(default, name):
                document[camel(name)] = _plain(value)
        return document

    def info(self) -> dict[str, str]:
        """The data of the ConfigMap `moorage` for clients and services; keys without a value are absent."""
        entries = {key: getattr(self, NAMES[name]) for key, name in INFO_VALUES.items()}
        return {key: value for key, value in entries.items() if value}


NAMES = {camel(name): name for name in InstallValues.__struct_fields__}


def parse_values(document: Any, *, source: str = "values") -> InstallValues:
    """Parse the values file. Raises Problems with all errors at once.

    A null value means the default, like an absent name.
    """
    if document is None:
        return InstallValues()
    if not isinstance(document, Mapping):
        raise Problems([(f"{source} is not a mapping of names to values", f"names: {', '.join(NAMES)}")])
    problems: list[tuple[str, str | None]] = []
    chosen: dict[str, Any] = {}
    for name, value in document.items():
        if name not in NAMES:
            near = difflib.get_close_matches(str(name), NAMES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"names: {', '.join(NAMES)}"
            problems.append((f"{source} has an unknown name {name!r}", hint))
        elif value is not None:
            try:
                chosen[NAMES[name]] = _CHECKS[NAMES[name]](value)
            except ValueError as error:
                problems.append((f"{source}: {name} is {value!r}: {error}", None))
    if problems:
        raise Problems(problems)
    return InstallValues(**chosen)


def merged(*documents: Mapping[str, Any]) -> dict[str, Any]:
    """Merge documents, the last wins by name: stored values, then a file, then options.

    An empty text resets a value to its default.
    """
    result: dict[str, Any] = {}
    for document in documents:
        result.update(document)
    return {name: value for name, value in result.items() if value not in ("", None)}


def adopted(info: Mapping[str, str], image: str = "") -> dict[str, Any]:
    """Values of an installation without a record, from its ConfigMap `moorage` and the image of its operator."""
    document: dict[str, Any] = {
        INFO_VALUES[key]: text.strip() for key, text in info.items() if key in INFO_VALUES and text.strip()
    }
    return document | ({"image": image} if image else {})


# --- one check for each value: returns it as the dataclass keeps it, raises ValueError


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("use a string")
    return value.strip()


def _image(value: Any) -> str:
    text = _text(value)
    if text and not _IMAGE.fullmatch(text):
        raise ValueError("use an image such as registry.example.org/moorage:0.1.0")
    return text


def _url(value: Any) -> str:
    text = _text(value).rstrip("/")
    parts = urlsplit(text)
    if text and (parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment):
        raise ValueError("use an address such as https://moorage.example.org")
    return text


def _urls(value: Any) -> str:
    return ",".join(_url(text) for text in re.split(r"[\s,]+", _text(value)) if text)


def _workspace_url(value: Any) -> str:
    text = _text(value)
    if text and not _WORKSPACE_URL.fullmatch(text.lower()):
        raise ValueError("use an address such as https://*.apps.example.org")
    return text


def _object_name(value: Any) -> str:
    text = _text(value)
    if text and not (len(text) <= _SUBDOMAIN_MAX and all(map(is_dns_label, text.split(".")))):
        raise ValueError("use the name of an object: a-z, 0-9, '-' and '.'")
    return text


def _scheduler(value: Any) -> Scheduler:
    for word in SCHEDULERS:
        if value == word:
            return word
    raise ValueError(f"use one of {', '.join(SCHEDULERS)}")


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError("use a mapping")
    return value


def _of_services(value: Any) -> Mapping[str, Any]:
    wrong = sorted(set(_mapping(value)) - set(SERVICES))
    if wrong:
        raise ValueError(f"{', '.join(wrong)} is no service: use {', '.join(SERVICES)}")
    return dict(value)


def _replicas(value: Any) -> Mapping[str, int]:
    chosen = _of_services(value)
    for name, count in chosen.items():
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= 100:
            raise ValueError(f"{name} has {count!r}: use a number from 0 to 100")
    return chosen


def _resources(value: Any) -> Mapping[str, Obj]:
    chosen = _of_services(value)
    for name, wanted in chosen.items():
        for kind, amounts in _mapping(wanted).items():
            if kind not in ("requests", "limits"):
                raise ValueError(f"{name} has {kind!r}: use requests and limits")
            for resource, amount in _mapping(amounts).items():
                try:
                    parse_quantity(str(amount))
                except QuantityError as error:
                    raise ValueError(f"{name} {kind} {resource}: {error.message}") from error
    return {
        name: {kind: {key: str(amount) for key, amount in amounts.items()} for kind, amounts in wanted.items()}
        for name, wanted in chosen.items()
    }


def _labels(value: Any) -> Mapping[str, str]:
    chosen = _mapping(value)
    if not all(isinstance(text, str) for text in chosen.values()):
        raise ValueError("use labels with strings as values")
    return dict(chosen)


def _tolerations(value: Any) -> Sequence[Obj]:
    known = {"key", "operator", "value", "effect", "tolerationSeconds"}
    if not isinstance(value, list) or not all(isinstance(each, Mapping) and set(each) <= known for each in value):
        raise ValueError("use a list of tolerations, as a pod has them")
    return tuple(dict(each) for each in value)


def _secrets(value: Any) -> Sequence[str]:
    if not isinstance(value, list):
        raise ValueError("use a list of names of Secrets")
    return tuple(_object_name(each) for each in value)


_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "image": _image,
    "public_url": _urls,
    "kubernetes_url": _url,
    "kubernetes_ca": _text,
    "workspace_url": _workspace_url,
    "ingress_class": _object_name,
    "tls_secret": _object_name,
    "trusted_proxies": _text,
    "storage_class": _object_name,
    "pause_image": _image,
    "run_image": _image,
    "scheduler": _scheduler,
    "scheduler_image": _image,
    "database_secret": _object_name,
    "replicas": _replicas,
    "resources": _resources,
    "node_selector": _labels,
    "tolerations": _tolerations,
    "image_pull_secrets": _secrets,
}


def _plain(value: Any) -> Any:
    """Convert a value to its YAML form."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


# --- images


def tag_of(image: str) -> str:
    """The tag of an image; "" if it has none, or a digest instead."""
    name = image.rsplit("/", 1)[-1]
    return "" if "@" in name or ":" not in name else name.rsplit(":", 1)[1]


def with_tag(image: str, tag: str) -> str:
    """The image with another tag."""
    return f"{image.removesuffix(f':{tag_of(image)}')}:{tag}" if tag_of(image) else f"{image}:{tag}"


def image_for(image: str, *, kept_version: str, version: str) -> str:
    """The image of `version`, if the stored image has the tag of the version it was installed with.

    Empty: unknown, and the admin must name it. The stored image where the version is the same.
    """
    if not image or kept_version == version:
        return image
    return with_tag(image, version) if tag_of(image).removeprefix("v") == kept_version else ""


def parse_version(text: str) -> tuple[int, ...]:
    """Parse a version to comparable numbers: "0.10.1" is (0, 10, 1). Raises InvalidName."""
    match = re.fullmatch(r"v?(\d+(?:\.\d+)*)(?:[-.+a-z].*)?", text)
    if match is None:
        raise InvalidName(f"invalid version {text!r}: use one such as 0.1.0")
    return tuple(int(part) for part in match[1].split("."))
