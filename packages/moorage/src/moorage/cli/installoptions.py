"""The options of `moor install` and `moor upgrade`, and the install values from them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
from msgspec import Struct

from moorage.cli.session import Target
from moorage.decide.install.values import NAMES, SCHEDULERS, image_for, merged, parse_values
from moorage.decide.runs.timelimit import parse_time
from moorage.model.names import SYSTEM_NAMESPACE
from moorage_kube.errors import DocumentError, UsageError
from moorage_kube.texts import camel

R = TypeVar("R")

IMAGE_HINT = (
    "build it and push it to a registry that the nodes can read, then name it:"
    " docker build -f Containerfile -t REGISTRY/moorage:{version} . && docker push REGISTRY/moorage:{version}"
)

_VALUES = (  # each the option of a value
    click.option("--image", metavar="IMAGE", help="Image of the services, with its tag."),
    click.option("--public-url", metavar="URL", help="Address at which people reach the server."),
    click.option("--kubernetes-url", metavar="URL", help="Address at which people reach the Kubernetes API."),
    click.option("--workspace-url", metavar="URL", help="Addresses of workspaces: https://*.apps.example.org."),
    click.option("--ingress-class", metavar="NAME", help="IngressClass of the server and of workspaces."),
    click.option("--tls-secret", metavar="NAME", help="Secret with the certificate for the Ingress."),
    click.option("--storage-class", metavar="NAME", help="StorageClass of the server's volume."),
    click.option("--database-secret", metavar="NAME", help="Secret in moorage-system with the url of PostgreSQL."),
    click.option("--pause-image", metavar="IMAGE", help="Image of the pods that hold places of machines."),
    click.option("--run-image", metavar="IMAGE", help="Image of runs that name none, in teams created later."),
    click.option(
        "--scheduler",
        type=click.Choice(SCHEDULERS),
        help="Scheduler that uses the extender: a second one, the cluster's own (configure), or none.",
    ),
)
_OTHERS = (
    click.option(
        "--values",
        "file",
        type=click.Path(path_type=Path, dir_okay=False, exists=True, allow_dash=True),
        metavar="FILE",
        help="YAML file with values; - reads standard input. Options win over it.",
    ),
    click.option("--reset-values", is_flag=True, help="Forget the values of the last installation."),
    click.option("--dry-run", is_flag=True, help="Print the changes, or with -o yaml the manifests."),
    click.option("--force-conflicts", is_flag=True, help="Take over fields that others have set."),
    click.option(
        "--no-wait", "wait", flag_value=False, default=True, help="Do not wait until the services are up."
    ),
    click.option("--timeout", default="5m", show_default=True, help="Longest wait for the services: 90s, 10m."),
)


class Chosen(Struct, frozen=True, kw_only=True):
    """The typed options. `options`: values by their name in YAML; an empty text resets a value to its default."""

    options: Mapping[str, Any]
    file: Path | None
    reset_values: bool
    dry_run: bool
    force_conflicts: bool
    wait: bool
    timeout: str

    def document(self, kept: Mapping[str, Any], *, installed: str, version: str) -> dict[str, Any]:
        """Return the checked values of this installation: stored values, then the file, then options.

        The stored image is moved to this version. Raises Problems, and UsageError where the image is not known.
        """
        given = merged(read_values(self.file) if self.file is not None else {}, self.options)
        kept = {} if self.reset_values else dict(kept)
        if "image" not in given and kept.get("image") and installed:
            image = str(kept["image"])
            kept["image"] = image_for(image, kept_version=installed, version=version) or _no_image(
                f"the image of version {version} is not known: {image} was installed with version {installed}",
                version,
            )
        document = merged(kept, given, {name: "" for name, value in self.options.items() if value == ""})
        if not document.get("image"):
            _no_image("image missing: use --image REGISTRY/moorage:TAG", version)
        parse_values(document, source="the values")
        return document


def seconds_of(timeout: str) -> int:
    """Parse a timeout. Raises UsageError for an invalid one."""
    try:
        return parse_time(timeout)
    except ValueError as error:
        raise UsageError(f"invalid --timeout {timeout!r}", hint="use a time such as 90s, 10m or 1h") from error


def install_options(command: Callable[..., R]) -> Callable[..., R]:
    """Decorate a command with these options; the command gets them as one `Chosen`."""

    @functools.wraps(command)
    def with_chosen(*args: Any, **kwargs: Any) -> R:
        options = {
            camel(name): kwargs.pop(name) for name in list(kwargs) if name in NAMES.values() and name != "replicas"
        }
        chosen = Chosen(
            options={name: value for name, value in options.items() if value is not None},
            **{name: kwargs.pop(name) for name in list(kwargs) if name in Chosen.__struct_fields__},
        )
        return command(*args, chosen=chosen, **kwargs)

    decorated: Callable[..., R] = with_chosen
    for option in reversed((*_VALUES, *_OTHERS)):
        decorated = option(decorated)
    return decorated


def _no_image(message: str, version: str) -> NoReturn:
    raise UsageError(message, hint=IMAGE_HINT.format(version=version))


def read_values(file: Path) -> dict[str, Any]:
    """Read a file of values. Raises UsageError for a file that cannot be read, Problems for invalid values."""
    from moorage_kube.yamldocuments import parse_yaml

    try:
        with click.open_file(str(file), encoding="utf-8") as stream:
            document = parse_yaml(stream.read())
    except DocumentError as error:
        raise UsageError(f"{file}: {error.located}", hint=error.hint) from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from error
    parse_values(document, source=str(file))
    return dict(document or {})


def check_namespace(target: Target) -> None:
    """Raise UsageError for a namespace other than moorage-system."""
    if target.namespace not in (None, SYSTEM_NAMESPACE):
        raise UsageError(
            f"Moorage cannot be installed in namespace {target.namespace!r}: it is always {SYSTEM_NAMESPACE}",
            hint="leave -n out",
        )
