"""All objects of an installation with its values: `moor install` applies them, `moor uninstall` deletes them."""

from __future__ import annotations

from moorage import __version__
from moorage.cli.manifests import feature_definitions, objects
from moorage.decide.install.overlay import overlay
from moorage.decide.install.values import InstallValues
from moorage.model.manifests import make_ingress
from moorage.model.secondscheduler import SCHEDULER_IMAGE, SCHEDULER_VERSION, make_second_scheduler
from moorage_kube.resources import Obj

VERSION = __version__


def wanted_objects(values: InstallValues, kubernetes: str = "") -> list[Obj]:
    """Return the objects of an installation with these values.

    An Ingress is included if both an address and a class are set: without a class, another proxy leads to the
    server. Argo's kinds are included; an installation skips them if another product owns them. `kubernetes`:
    the version of the cluster, for a second scheduler.
    """
    shipped = [obj for objs in (objects() | feature_definitions()).values() for obj in objs]
    if values.public_url and values.ingress_class:
        shipped.append(make_ingress(values.public_url, values.ingress_class, values.tls_secret))
    if values.scheduler == "second":
        image = values.scheduler_image or SCHEDULER_IMAGE
        shipped += make_second_scheduler(kubernetes or SCHEDULER_VERSION, image=image)
    return overlay(shipped, values)


def whatever_is_shipped() -> list[Obj]:
    """All objects that an installation of this version may contain, with any values."""
    everything = InstallValues(public_url="https://moorage.invalid", ingress_class="any", scheduler="second")
    return wanted_objects(everything)
