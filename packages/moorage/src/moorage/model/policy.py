"""GuardrailPolicy: which guardrails hold in which namespaces, and how strictly.

The rules themselves are one table, `moorage.decide.admission.rulebook.RULES`; each has a field of the same name
in `GuardrailRules`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from moorage.model.names import GROUP, VERSION
from moorage.model.tenant import Quantity
from moorage_kube.errors import SelectorError
from moorage_kube.resources import Obj, Resource
from moorage_kube.selectors import label_selector_of

POLICIES = Resource(GROUP, VERSION, "guardrailpolicies", "GuardrailPolicy", namespaced=False)

LEVELS = ("off", "warn", "fill", "deny")  # from the mildest to the strictest

Level = Annotated[
    str,
    Meta(
        pattern="^(off|warn|fill|deny)$",
        extra_json_schema={"enum": list(LEVELS)},
        description='"off" (quoted: bare, YAML reads it as false), warn, fill (add missing values) or deny.',
    ),
]
Judged = Annotated[
    str,
    Meta(
        pattern="^(off|warn|deny)$",
        extra_json_schema={"enum": ["off", "warn", "deny"]},
        description='"off" (quoted: bare, YAML reads it as false), warn or deny.',
    ),
]


class MemoryLimitRule(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Every container has a memory limit."""

    level: Level
    default: Annotated[
        Quantity | None, Meta(description="Filled in for each container that names no memory at all.")
    ] = None


class ResourceRequestsRule(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Every container requests CPU and memory."""

    level: Level
    cpu: Annotated[Quantity | None, Meta(description="CPU request of a container that names none.")] = None
    memory: Annotated[Quantity | None, Meta(description="Memory request of a container that names none.")] = None


class EphemeralStorageRule(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Every container has a limit for the files that it writes on its node's disk."""

    level: Level
    default: Annotated[Quantity | None, Meta(description="Request and limit of a container that states none.")] = (
        None
    )


class FillableRule(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A rule without parameters; see the reference of guardrails."""

    level: Level


class Escalation(Struct, frozen=True, rename="camel", omit_defaults=True):
    """More memory for the replacement of a pod that was killed for memory."""

    max: Annotated[Quantity, Meta(description="The most memory that a container gets; above it pods are held.")]
    factor: Annotated[
        float, Meta(ge=1.1, le=10, description="Factor of its memory, applied as often as needed.")
    ] = 2.0


class RestartBombRule(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A pod that was killed for memory must not move to the next node with the same memory.

    warn: kills are reported on the owner. fill: the replacement gets more memory if `escalation` allows it, and
    is held otherwise. deny: it is held.
    """

    level: Level
    allowed: Annotated[
        int, Meta(ge=1, le=100, description="Kills of pods that stand for each other until one is held.")
    ] = 1
    escalation: Annotated[
        Escalation | None, Meta(description="With level fill: give the replacement more memory; none: hold it.")
    ] = None


class JudgedRule(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A rule without a value that could be filled in for the user; see the reference of guardrails."""

    level: Judged


class AnnotationsRule(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Annotations that have no effect any more are reported."""

    level: Judged
    annotations: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=316)]],
        Meta(
            max_length=256, description='More annotations that do nothing here; one that ends in "*" is a prefix.'
        ),
    ] = []


class GuardrailRules(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One field per rule; a rule that is left out has its default level."""

    memory_limit: MemoryLimitRule | None = None
    resource_requests: ResourceRequestsRule | None = None
    guaranteed_qos: FillableRule | None = None
    retry_without_limit: FillableRule | None = None
    restart_bomb: RestartBombRule | None = None
    gpu_nodes: FillableRule | None = None
    gpu_type: JudgedRule | None = None
    gpu_count: JudgedRule | None = None
    ephemeral_storage: EphemeralStorageRule | None = None
    unsupported_annotations: AnnotationsRule | None = None
    missing_command: JudgedRule | None = None


class LabelExpression(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One expression of a label selector."""

    key: Annotated[str, Meta(min_length=1, max_length=316, description="Key of the label.")]
    operator: Annotated[
        str, Meta(pattern="^(In|NotIn|Exists|DoesNotExist)$", description="How `values` are compared.")
    ]
    values: Annotated[
        list[str], Meta(description="Values to compare with; none for Exists and DoesNotExist.")
    ] = []


class NamespaceSelector(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A label selector over namespaces; all of it must hold."""

    match_labels: Annotated[dict[str, str], Meta(description="Labels that a namespace must have.")] = {}
    match_expressions: list[LabelExpression] = []


class ExpectedNode(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A kind of node that an autoscaler adds when it is needed."""

    resources: Annotated[
        dict[str, Quantity],
        Meta(min_length=1, description="Resources that it offers, such as nvidia.com/gpu: 8; only GPUs count."),
    ]
    labels: Annotated[
        dict[str, str], Meta(description="Its labels; those that name a GPU type are looked at.")
    ] = {}


class GuardrailPolicySpec(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The namespaces of a policy and the level of each rule."""

    rules: GuardrailRules
    namespace_selector: Annotated[
        NamespaceSelector | None,
        Meta(
            description="Namespaces of the policy, by their labels; none: every namespace with the label"
            " moorage.dev/guard=enabled. Others are never checked."
        ),
    ] = None
    expected_nodes: Annotated[
        list[ExpectedNode],
        Meta(
            max_length=64,
            description="Nodes that may be absent now, as of pools that scale from zero; gpuType and gpuCount"
            " judge as if they were there.",
        ),
    ] = []


class GuardrailPolicy(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Guardrails for selected namespaces.

    If several policies select a namespace, each rule has the strictest level.
    """

    spec: GuardrailPolicySpec


class Policy(Struct, frozen=True):
    """The rules of one namespace: rule name → its settings as written (`level` and parameters)."""

    rules: Mapping[str, Mapping[str, Any]] = {}
    expected_nodes: tuple[Mapping[str, Any], ...] = ()  # of all policies that hold, as written

    def level(self, rule: str, default: str) -> str:
        """The level of a rule. YAML reads a bare `off` as false, so false means "off"."""
        level = (self.rules.get(rule) or {}).get("level", default)
        return "off" if level is False else str(level)


def policy_for(labels: Mapping[str, str], policies: Iterable[Mapping[str, Any]]) -> Policy | None:
    """The rules of all policies for a namespace with these labels; None where none selects it.

    Of two that name the same rule the stricter one counts, with its parameters; of equals the first by name.
    """
    mine = sorted(
        (policy for policy in policies if _selects(policy, labels)),
        key=lambda policy: str(policy["metadata"].get("name")),
    )
    if not mine:
        return None
    rules: dict[str, Mapping[str, Any]] = {}
    for policy in mine:
        for name, settings in ((policy.get("spec") or {}).get("rules") or {}).items():
            if name not in rules or _strictness(settings) > _strictness(rules[name]):
                rules[name] = settings
    return Policy(rules, expected_of(mine))


def expected_of(policies: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """The nodes that these policies expect from an autoscaler."""
    expected: list[Mapping[str, Any]] = []
    for policy in policies:
        nodes = (policy.get("spec") or {}).get("expectedNodes") or ()
        expected += [node for node in nodes if node not in expected]
    return tuple(expected)


def _strictness(settings: Mapping[str, Any]) -> int:
    level = settings.get("level")
    return LEVELS.index(level) if isinstance(level, str) and level in LEVELS else 0


def _selects(policy: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    selector = (policy.get("spec") or {}).get("namespaceSelector")
    try:
        return label_selector_of(selector).matches(labels)
    except (SelectorError, KeyError):
        return False  # one that cannot be read selects nothing: the schema let it through, or there is none


def gpu_cluster_policy() -> Obj:
    """The ready-made policy for clusters with GPUs; an administrator applies it, so that users expect it."""
    strict: Sequence[str] = ("restartBomb", "gpuNodes", "retryWithoutLimit", "guaranteedQos")
    rules: Obj = {
        "memoryLimit": {"level": "fill", "default": "2Gi"},
        "resourceRequests": {"level": "fill", "cpu": "500m", "memory": "2Gi"},
        **{name: {"level": "fill"} for name in sorted(strict)},
        "gpuType": {"level": "deny"},
        "gpuCount": {"level": "deny"},
        "ephemeralStorage": {"level": "warn"},
        "unsupportedAnnotations": {"level": "warn"},
        "missingCommand": {"level": "warn"},
    }
    return {
        "apiVersion": POLICIES.api_version,
        "kind": POLICIES.kind,
        "metadata": {"name": "gpu-cluster"},
        "spec": {"rules": rules},
    }
