"""Check which nodes can accept a pod now, and why others cannot.

The rules, their order and their messages are those of kube-scheduler's filter plugins. A node reports only
the first rule that refuses it. https://kubernetes.io/docs/reference/scheduling/config/#scheduling-plugins
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from moorage_kube.meta import Key
from moorage_kube.scheduling import NodeSelectorTerm, PodInfo, Taint, Toleration, refusal_by_labels, shortages
from moorage_local.scheduler.snapshot import NO_PROVISIONER, Claim, NodeState, PodView, Snapshot, SpreadConstraint

Domain = tuple[str, str]  # topology key, value of that label on a node

CORDON = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


@dataclass(frozen=True, slots=True)
class Refusal:
    """`reason` is counted in "0/2 nodes are available: 2 …"; `resolvable`: removing pods could help."""

    reason: str
    resolvable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadFacts:
    """Counts of matching pods per domain, for one hard constraint."""

    constraint: SpreadConstraint
    counts: Mapping[str, int]
    lowest: int  # pods in the emptiest domain; 0 when there are fewer than minDomains
    selects_itself: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts of the whole cluster about one pod, computed once and used for every node."""

    everywhere: Refusal | None = None  # no node at all can take it
    spread: tuple[SpreadFacts, ...] = ()
    together: Mapping[Domain, int] = field(default_factory=dict)  # pods that match all its affinity terms
    apart: Mapping[Domain, int] = field(default_factory=dict)  # pods that match one of its anti-affinity terms
    unwelcome: Mapping[Domain, int] = field(default_factory=dict)  # pods whose anti-affinity it matches
    claims: tuple[tuple[Key, Claim], ...] = ()


def facts_of(pod: PodView, snapshot: Snapshot) -> Facts:
    """Compute the facts of the whole cluster for one pod."""
    claims, everywhere = _claims_of(pod, snapshot)
    together, apart, unwelcome = _neighbours(pod, snapshot)
    return Facts(
        everywhere=everywhere,
        spread=_spread_facts(pod, snapshot),
        together=together,
        apart=apart,
        unwelcome=unwelcome,
        claims=claims,
    )


def judge(pod: PodView, node: NodeState, snapshot: Snapshot, facts: Facts) -> tuple[Refusal, ...]:
    """Return the reasons why the node cannot take the pod now; empty when it can.

    Pods of the same or a higher priority that are nominated for the node count as if they ran there. The
    pod must fit without them too, because they may never come.
    """
    rivals = tuple(
        rival
        for rival in snapshot.nominated.get(node.name, ())
        if rival.key != pod.key and rival.info.priority >= pod.info.priority
    )
    if rivals:
        fuller = node.with_pods(*rivals)
        world = snapshot.with_node(fuller)
        refusal = check(pod, fuller, world, facts_of(pod, world))
        if refusal:
            return refusal
    return check(pod, node, snapshot, facts)


def check(pod: PodView, node: NodeState, snapshot: Snapshot, facts: Facts) -> tuple[Refusal, ...]:
    """Like `judge`, but without the pods that are nominated for the node."""
    if facts.everywhere is not None:
        return (facts.everywhere,)
    info = pod.info
    if node.info.unschedulable and not _tolerates(info.tolerations, CORDON):
        return (Refusal("node(s) were unschedulable", False),)
    for taint in node.info.taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not _tolerates(info.tolerations, taint):
            return (Refusal(f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}", False),)
    if refusal_by_labels(info, node.info) is not None:
        return (Refusal("node(s) didn't match Pod's node affinity/selector", False),)
    if info.host_ports and any(info.host_ports & other.info.host_ports for other in node.pods):
        return (Refusal("node(s) didn't have free ports for the requested pod ports", True),)
    refusals = tuple(
        Refusal(
            "Too many pods" if name == "pods" else f"Insufficient {name}",
            asked <= node.info.allocatable.get(name, 0),
        )
        for name, (asked, _) in sorted(shortages(info, node.info, node.used).items())
        if name not in snapshot.ignored_resources
    )
    if refusals:
        return refusals
    for judged in (
        _refused_by_volumes(node, snapshot, facts),
        _refused_by_spread(node, facts),
        _refused_by_neighbours(info, node, snapshot, facts),
    ):
        if judged is not None:
            return (judged,)
    return ()


def fit_message(total: int, refusals: Iterable[Sequence[Refusal]], note: str = "") -> str:
    """Return kube-scheduler's message: "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. preemption: …"."""
    counted = Counter(refusal.reason for node_refusals in refusals for refusal in node_refusals)
    reasons = sorted(f"{count} {reason}" for reason, count in counted.items())
    sentence = f"0/{total} nodes are available"
    sentence += ": " + ", ".join(reasons) + "." if reasons else "."
    return f"{sentence} {note}" if note else sentence


def blanket_message(total: int, refusal: Refusal, note: str = "") -> str:
    """Return the message for one reason that refuses all nodes; it has no count of nodes per reason."""
    sentence = f"0/{total} nodes are available: {refusal.reason}."
    return f"{sentence} {note}" if note else sentence


def _tolerates(tolerations: Sequence[Toleration], taint: Taint) -> bool:
    return any(toleration.tolerates(taint) for toleration in tolerations)


# volumes


def _claims_of(pod: PodView, snapshot: Snapshot) -> tuple[tuple[tuple[Key, Claim], ...], Refusal | None]:
    claims: list[tuple[Key, Claim]] = []
    for name in pod.claims:
        key = Key(pod.info.namespace, name)
        claim = snapshot.claims.get(key)
        if claim is None:
            return (), Refusal(f'persistentvolumeclaim "{name}" not found', False)
        if claim.deleting:
            return (), Refusal(f'persistentvolumeclaim "{name}" is being deleted', False)
        if claim.lost:
            return (), Refusal(
                f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{claim.volume}"', False
            )
        if not claim.bound and not is_delayed(claim, snapshot):
            return (), Refusal("pod has unbound immediate PersistentVolumeClaims", False)
        if claim.single_pod and any(
            other.key != pod.key and other.info.namespace == pod.info.namespace and name in other.claims
            for node in snapshot.nodes.values()
            for other in node.pods
        ):
            return (), Refusal(
                "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode",
                True,
            )
        claims.append((key, claim))
    return tuple(claims), None


def is_delayed(claim: Claim, snapshot: Snapshot) -> bool:
    """Whether the claim waits for its first pod (volumeBindingMode WaitForFirstConsumer)."""
    kind = snapshot.classes.get(claim.storage_class)
    return kind is not None and kind.delayed and not claim.volume


def _refused_by_volumes(node: NodeState, snapshot: Snapshot, facts: Facts) -> Refusal | None:
    for key, claim in facts.claims:
        if claim.bound:
            volume = snapshot.volumes.get(claim.volume)
            if volume is not None and volume.terms is not None and not _reaches(volume.terms, node):
                return Refusal("node(s) didn't match PersistentVolume's node affinity", False)
            continue
        unmet = Refusal("node(s) didn't find available persistent volumes to bind", False)
        if claim.selected_node in snapshot.nodes and claim.selected_node != node.name:
            return unmet  # it is being provisioned for another node
        kind = snapshot.classes[claim.storage_class]
        if kind.provisioner != NO_PROVISIONER:
            continue
        if not any(
            volume.storage_class == claim.storage_class
            and (volume.claim == str(key) or (volume.available and not volume.claim))
            and (volume.terms is None or _reaches(volume.terms, node))
            for volume in snapshot.volumes.values()
        ):
            return unmet
    return None


def _reaches(terms: Sequence[NodeSelectorTerm], node: NodeState) -> bool:
    return any(term.matches(node.info.labels, node.name) for term in terms)


# topology spread: https://kubernetes.io/docs/concepts/scheduling-eviction/topology-spread-constraints/


def counts_for_spread(pod: PodView, node: NodeState, constraint: SpreadConstraint) -> bool:
    """Whether the node counts for the domains of the constraint."""
    if constraint.honor_affinity and refusal_by_labels(pod.info, node.info) is not None:
        return False
    return not constraint.honor_taints or all(
        taint.effect == "PreferNoSchedule" or _tolerates(pod.info.tolerations, taint) for taint in node.info.taints
    )


def matching_pods(pod: PodView, node: NodeState, constraint: SpreadConstraint) -> int:
    """Count the pods on the node that are in the pod's namespace and selected by the constraint.

    Pods that are being deleted do not count.
    """
    if constraint.selector is None:
        return 0
    return sum(
        1
        for other in node.pods
        if other.info.namespace == pod.info.namespace
        and other.key != pod.key
        and not other.info.deleting
        and constraint.selector.matches(other.info.labels)
    )


def _spread_facts(pod: PodView, snapshot: Snapshot) -> tuple[SpreadFacts, ...]:
    hard = [constraint for constraint in pod.spread if constraint.hard]
    if not hard:
        return ()
    keys = {constraint.topology_key for constraint in hard}
    facts = []
    for constraint in hard:
        counts: dict[str, int] = {}
        for node in snapshot.nodes.values():
            if not keys <= node.info.labels.keys() or not counts_for_spread(pod, node, constraint):
                continue
            value = node.info.labels[constraint.topology_key]
            counts[value] = counts.get(value, 0) + matching_pods(pod, node, constraint)
        lowest = min(counts.values(), default=0)
        if constraint.min_domains is not None and len(counts) < constraint.min_domains:
            lowest = 0
        facts.append(
            SpreadFacts(
                constraint=constraint,
                counts=counts,
                lowest=lowest,
                selects_itself=constraint.selector is not None and constraint.selector.matches(pod.info.labels),
            )
        )
    return tuple(facts)


def _refused_by_spread(node: NodeState, facts: Facts) -> Refusal | None:
    reason = "node(s) didn't match pod topology spread constraints"
    for spread in facts.spread:
        value = node.info.labels.get(spread.constraint.topology_key)
        if value is None:
            return Refusal(f"{reason} (missing required label)", False)
        skew = spread.counts.get(value, 0) + (1 if spread.selects_itself else 0) - spread.lowest
        if skew > spread.constraint.max_skew:
            return Refusal(reason, True)
    return None


# inter-pod affinity: https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/


def _neighbours(
    pod: PodView, snapshot: Snapshot
) -> tuple[dict[Domain, int], dict[Domain, int], dict[Domain, int]]:
    together: Counter[Domain] = Counter()
    apart: Counter[Domain] = Counter()
    unwelcome: Counter[Domain] = Counter()
    info = pod.info
    own = snapshot.namespaces.get(info.namespace)
    for node in snapshot.nodes.values():
        labels = node.info.labels
        for other in node.with_terms:
            for term in other.info.anti_affinity:
                if other.key != pod.key and term.topology_key in labels and term.selects(info, own):
                    unwelcome[term.topology_key, labels[term.topology_key]] += 1
        if not info.affinity and not info.anti_affinity:
            continue
        for other in node.pods:
            if other.key == pod.key:
                continue
            theirs = snapshot.namespaces.get(other.info.namespace)
            if info.affinity and all(term.selects(other.info, theirs) for term in info.affinity):
                for term in info.affinity:
                    if term.topology_key in labels:
                        together[term.topology_key, labels[term.topology_key]] += 1
            for term in info.anti_affinity:
                if term.topology_key in labels and term.selects(other.info, theirs):
                    apart[term.topology_key, labels[term.topology_key]] += 1
    return dict(together), dict(apart), dict(unwelcome)


def _refused_by_neighbours(info: PodInfo, node: NodeState, snapshot: Snapshot, facts: Facts) -> Refusal | None:
    labels = node.info.labels
    if info.affinity:
        missing = Refusal("node(s) didn't match pod affinity rules", False)
        if any(term.topology_key not in labels for term in info.affinity):
            return missing
        near = all(facts.together.get((term.topology_key, labels[term.topology_key])) for term in info.affinity)
        own = snapshot.namespaces.get(info.namespace)
        first = not facts.together and all(term.selects(info, own) for term in info.affinity)
        if not near and not first:  # the first pod of a group with affinity to itself may run on any node
            return missing
    for term in info.anti_affinity:
        if facts.apart.get((term.topology_key, labels.get(term.topology_key, ""))):
            return Refusal("node(s) didn't match pod anti-affinity rules", True)
    if facts.unwelcome and any(facts.unwelcome.get(pair) for pair in labels.items()):
        return Refusal("node(s) didn't satisfy existing pods anti-affinity rules", True)
    return None
