"""Images that a local cluster does not run: it pulls none, and would let their pods wait for ever."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from moorage.decide.admission.fields import Path, mapping, sequence
from moorage.model.names import HOST_ENV_ANNOTATION, HOST_IMAGE
from moorage.model.runtimes import is_on_processes
from moorage_kube.images import without_tag
from moorage_workflows.decide.workflows.entrypoints import entrypoints_of
from moorage_workflows.decide.workflows.findings import Finding

CANNOT_PULL = (
    "cannot be pulled: this cluster runs commands on this machine itself; submit it with --host-env, or name the"
    " image in images.json"
)


def unrunnable_images(document: Mapping[str, Any], nodes: Iterable[Mapping[str, Any]]) -> list[Finding]:
    """Errors for the steps of a Workflow whose images no node runs; none where nodes pull images.

    Not judged: templates of other documents, and images that are known only when a step starts.
    """
    nodes = list(nodes)
    if document.get("kind") != "Workflow" or not is_on_processes(nodes):
        return []
    runnable, spec = entrypoints_of(nodes), mapping(document.get("spec"))
    if _is_host_env(spec.get("podMetadata")) or _is_host_env(
        mapping(spec.get("templateDefaults")).get("metadata")
    ):
        return []
    findings = []
    for at, template in enumerate(sequence(spec.get("templates"))):
        if _is_host_env(mapping(template).get("metadata")) or mapping(template).get("podSpecPatch"):
            continue
        for path, image in _images(mapping(template), ("spec", "templates", at)):
            if "{{" not in image and without_tag(image) != HOST_IMAGE and image not in runnable:
                findings.append(Finding("image", path, image, CANNOT_PULL))
    return findings


def _is_host_env(metadata: Any) -> bool:
    return mapping(mapping(metadata).get("annotations")).get(HOST_ENV_ANNOTATION) == "true"


def _images(template: Mapping[str, Any], path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the images of the containers of a template, with their paths."""
    places: list[tuple[Path, Any]] = [((name,), template.get(name)) for name in ("container", "script")]
    for names in (("containerSet", "containers"), ("initContainers",), ("sidecars",)):
        containers = mapping(template.get(names[0])).get(names[1]) if len(names) == 2 else template.get(names[0])
        places += [((*names, at), container) for at, container in enumerate(sequence(containers))]
    for place, container in places:
        image = mapping(container).get("image")
        if isinstance(image, str) and image:
            yield (*path, *place, "image"), image
