"""All objects of an installation with its values: what `moor install` applies, and `moor uninstall` looks for."""

from __future__ import annotations

from moorage import __version__
from moorage.apimachinery.resources import Obj
from moorage.cli.manifests import objects
from moorage.decide.install.overlay import overlay
from moorage.decide.install.values import InstallValues
from moorage.model.manifests import make_ingress

VERSION = __version__


def wanted_objects(values: InstallValues) -> list[Obj]:
    """What an installation with these values consists of.

    With an Ingress where both an address and a class are chosen: without a class something else leads to us.
    """
    shipped = [obj for objs in objects().values() for obj in objs]
    if values.public_url and values.ingress_class:
        shipped.append(make_ingress(values.public_url, values.ingress_class, values.tls_secret))
    return overlay(shipped, values)
