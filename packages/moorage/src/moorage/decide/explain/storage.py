"""Whether the volumes of a pod let it start, and on which nodes.

The rules are those of the scheduler's volume filters, as far as the objects that were read allow:
https://kubernetes.io/docs/concepts/storage/storage-classes/#volume-binding-mode and
https://kubernetes.io/docs/concepts/storage/persistent-volumes/#node-affinity
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from moorage.decide.explain.eventtexts import newest_message
from moorage_kube.meta import annotations_of, is_deleting
from moorage_kube.resources import Obj
from moorage_kube.scheduling import NodeInfo, NodeSelectorTerm, PodInfo
from moorage_kube.selectors import requirement_of

SELECTED_NODE = "volume.kubernetes.io/selected-node"  # a claim is being provisioned for this node
NO_PROVISIONER = "kubernetes.io/no-provisioner"  # a class whose volumes an admin makes by hand


class Storage(Struct, frozen=True, kw_only=True):
    """The objects that were read, by name, in one namespace. None: not readable, so nothing is judged by it."""

    claims: Mapping[str, Obj] | None = None
    volumes: Mapping[str, Obj] | None = None
    classes: Mapping[str, Obj] | None = None


class Trouble(Struct, frozen=True):
    """A problem of a claim. The pod cannot run on any node because of it."""

    claim: str
    message: str  # the fault, as the end of a sentence that begins with "volume NAMESPACE/CLAIM"
    missing: bool = False


class PodVolumes(Struct, frozen=True):
    """The state of a pod's volumes."""

    troubles: tuple[Trouble, ...] = ()
    terms: tuple[tuple[str, tuple[NodeSelectorTerm, ...]], ...] = ()  # claim and where its volume is reachable
    chosen: tuple[tuple[str, str], ...] = field(default_factory=tuple)  # claim and the node it is provisioned for

    def refusal(self, node: NodeInfo) -> str | None:
        """The reason why the volumes exclude the node; None if they do not."""
        for claim, terms in self.terms:
            if not any(term.matches(node.labels, node.name) for term in terms):
                return f"volume {claim} cannot be reached from it"
        for claim, where in self.chosen:
            if where != node.name:
                return f"volume {claim} is being created for node {where}"
        return None


def storage_of(
    claims: Iterable[Obj] | None, volumes: Iterable[Obj] | None = None, classes: Iterable[Obj] | None = None
) -> Storage:
    """Index the objects by name. `claims` are the claims of the pod's namespace."""

    def by_name(objects: Iterable[Obj] | None) -> dict[str, Obj] | None:
        return None if objects is None else {str(obj["metadata"]["name"]): obj for obj in objects}

    return Storage(claims=by_name(claims), volumes=by_name(volumes), classes=by_name(classes))


def volumes_of(
    pod: PodInfo, seen: Storage, others: Iterable[PodInfo] = (), events: Sequence[Obj] = ()
) -> PodVolumes:
    """Check each claim of the pod. `others`: pods with a node, to check claims that only one pod may use.

    `events`: of the claims, among others. They have the reason of a failed provisioning.
    """
    if seen.claims is None:
        return PodVolumes()
    troubles, terms, chosen = [], [], []
    for name in pod.claims:
        claim = seen.claims.get(name)
        if claim is None:
            hint = f"`moor volume create {name}` makes it"
            troubles.append(Trouble(name, f"does not exist; {hint}", missing=True))
            continue
        if message := _trouble(name, claim, pod, seen, others, events):
            troubles.append(Trouble(name, message))
            continue
        spec = claim.get("spec") or {}
        volume = (seen.volumes or {}).get(spec.get("volumeName") or "")
        required = (((volume or {}).get("spec") or {}).get("nodeAffinity") or {}).get("required")
        if required is not None:
            terms.append((name, tuple(_term(term) for term in required.get("nodeSelectorTerms") or ())))
        if not spec.get("volumeName") and (where := annotations_of(claim).get(SELECTED_NODE)):
            chosen.append((name, where))
    return PodVolumes(tuple(troubles), tuple(terms), tuple(chosen))


def _trouble(
    name: str, claim: Obj, pod: PodInfo, seen: Storage, others: Iterable[PodInfo], events: Sequence[Obj]
) -> str:
    spec, phase = claim.get("spec") or {}, (claim.get("status") or {}).get("phase")
    volume = spec.get("volumeName") or ""
    if is_deleting(claim):
        return "is being deleted"
    if phase == "Lost" or (
        phase == "Bound" and volume and seen.volumes is not None and volume not in seen.volumes
    ):
        return "has lost the storage behind it"
    if "ReadWriteOncePod" in (spec.get("accessModes") or ()) and any(
        name in other.claims and other.namespace == pod.namespace and other.name != pod.name for other in others
    ):
        return "can be used by only one pod at a time (ReadWriteOncePod), and another pod uses it"
    if phase != "Pending":
        return ""
    failures = [
        event
        for event in events
        if event.get("reason") == "ProvisioningFailed" and (event.get("involvedObject") or {}).get("name") == name
    ]
    return _unbound(claim, seen, newest_message(failures))


def _unbound(claim: Obj, seen: Storage, failure: str) -> str:
    """The fault of a claim that has no storage yet. Empty if it gets storage with its first pod.

    `failure`: the message of the provisioner.
    """
    spec = claim.get("spec") or {}
    kind = spec.get("storageClassName")
    if not kind:
        why = "it names no StorageClass" + ("" if kind == "" else ", and the cluster has no default one")
        return f"has no storage yet: {why}, so an administrator must create a volume for it"
    storage_class = (seen.classes or {}).get(kind)
    if storage_class is None and seen.classes is not None:
        known = ", ".join(sorted(seen.classes)) or "none"
        return f"has no storage yet: StorageClass {kind!r} not found (available: {known})"
    if failure:
        return f"has no storage yet: {failure}"
    if storage_class is None:
        return ""
    if storage_class.get("volumeBindingMode") != "WaitForFirstConsumer" or spec.get("volumeName"):
        return f"has no storage yet: StorageClass {kind} has not made it"
    free = [volume for volume in (seen.volumes or {}).values() if _serves(volume, claim)]
    if storage_class.get("provisioner") == NO_PROVISIONER and seen.volumes is not None and not free:
        return f"has no storage yet: StorageClass {kind} has no volume left for it"
    return ""


def _serves(volume: Obj, claim: Obj) -> bool:
    spec, meta = volume.get("spec") or {}, claim["metadata"]
    if spec.get("storageClassName") != (claim.get("spec") or {}).get("storageClassName"):
        return False
    owner = spec.get("claimRef")
    if owner:
        return (owner.get("namespace"), owner.get("name")) == (meta.get("namespace"), meta.get("name"))
    return (volume.get("status") or {}).get("phase") == "Available"


def _term(term: Obj) -> NodeSelectorTerm:
    return NodeSelectorTerm(
        tuple(requirement_of(part) for part in term.get("matchExpressions") or ()),
        tuple(requirement_of(part) for part in term.get("matchFields") or ()),
    )
