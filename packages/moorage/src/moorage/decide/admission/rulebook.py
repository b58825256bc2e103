"""The guardrails that a GuardrailPolicy names: one table for admission, `moor lint` and the reference.

Each rule looks at one pod template of a workload and yields findings, by field path. A rule that can be filled in
also yields the missing values. The object with them is judged again, so remaining faults are still reported.

All functions here are total: fields of a wrong type are skipped (`shape.misshapen` names them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct

from moorage.decide.admission.fields import with_values
from moorage.decide.admission.findings import Filled, Finding, Subject
from moorage.decide.admission.gpufacts import Facts, with_expected
from moorage.decide.admission.gpurules import fill_gpu_nodes, gpu_count, gpu_nodes, gpu_type
from moorage.decide.admission.memoryrules import (
    fill_guaranteed_qos,
    fill_memory_limit,
    fill_resource_requests,
    fill_restart_bomb,
    fill_retry_without_limit,
    guaranteed_qos,
    memory_limit,
    resource_requests,
    restart_bomb,
    retry_without_limit,
)
from moorage.decide.admission.podrules import (
    ephemeral_storage,
    fill_ephemeral_storage,
    missing_command,
    unsupported_annotations,
)
from moorage.decide.admission.templates import JOBS, WORKLOADS, Template, templates_of
from moorage.model.policy import Policy
from moorage_kube.resources import Obj


class Rule(Struct, frozen=True, kw_only=True):
    """A row of the table. `fill` yields the missing values; None if they cannot be filled in."""

    name: str
    checks: str
    fields: str
    fix: str
    default: str
    check: Callable[[Subject], Iterator[Finding]]
    fill: Callable[[Subject], Iterator[Filled]] | None = None
    parameters: str = ""
    rows: str = ""
    kinds: tuple[str, ...] | None = None  # None: every workload
    argo: bool = True


class Judgement(Struct, frozen=True, kw_only=True):
    """The result of a policy for a workload, in the order of the table."""

    denied: tuple[Finding, ...] = ()
    warned: tuple[Finding, ...] = ()
    filled: tuple[Finding, ...] = ()  # the values that were filled in, with their paths
    obj: Obj  # the object with these values


def judge_workload(
    kind: str,
    obj: Obj,
    policy: Policy,
    *,
    facts: Facts | None = None,
    away: tuple[Obj, ...] = (),
    fill: bool = False,
) -> Judgement:
    """Apply every rule to every pod template of the object, and with `fill` fill in missing values.

    `obj` is not modified; parts that are not filled in are shared with it. Without `fill`, the result of a `fill`
    rule is a warning. Kinds without pod templates yield nothing; in unknown kinds, each field that looks like a
    pod template is judged.
    """
    denied: list[Finding] = []
    warned: list[Finding] = []
    filled: list[Finding] = []
    templates = list(templates_of(kind, obj))
    facts = with_expected(facts, policy)
    for rule in RULES:
        level = policy.level(rule.name, rule.default)
        if level == "off":
            continue
        settings = policy.rules.get(rule.name) or {}
        for index in range(len(templates)):
            if not _applies(rule, templates[index]):
                continue
            subject = Subject(template=templates[index], settings=settings, facts=facts, away=away)
            if level == "fill" and fill and rule.fill is not None and (values := list(rule.fill(subject))):
                filled += [value.finding for value in values]
                obj = with_values(obj, ((value.finding.path, value.value) for value in values))
                templates = list(templates_of(kind, obj))
                subject = Subject(template=templates[index], settings=settings, facts=facts, away=away)
            (denied if level == "deny" else warned).extend(rule.check(subject))
    return Judgement(denied=tuple(denied), warned=tuple(warned), filled=tuple(filled), obj=obj)


RULES: tuple[Rule, ...] = (
    Rule(
        name="memoryLimit",
        checks="every container has a memory limit, or the pod as a whole; amounts are not below 1 MiB",
        fields="`resources.limits.memory`",
        fix="set a limit: only the container that exceeds it is killed",
        default="warn",
        check=memory_limit,
        fill=fill_memory_limit,
        parameters="`default`: the limit filled in",
        rows="R4",
    ),
    Rule(
        name="resourceRequests",
        checks="every container requests CPU and memory",
        fields="`resources.requests.cpu`, `.memory`",
        fix="set requests; a limit counts as one",
        default="warn",
        check=resource_requests,
        fill=fill_resource_requests,
        parameters="`cpu`, `memory`: the requests filled in",
        rows="R28",
    ),
    Rule(
        name="retryWithoutLimit",
        checks="a Job without a memory limit is never tried again",
        fields="`backoffLimit`, `restartPolicy`",
        fix="set memory limits, or set backoffLimit 0 and restartPolicy Never",
        default="warn",
        check=retry_without_limit,
        fill=fill_retry_without_limit,
        rows="R6",
        kinds=JOBS,
        argo=False,
    ),
    Rule(
        name="guaranteedQos",
        checks="CPU and memory requests equal limits (Guaranteed quality of service)",
        fields="`resources`",
        fix="set requests and limits to the same amounts",
        default="warn",
        check=guaranteed_qos,
        fill=fill_guaranteed_qos,
        rows="R5",
    ),
    Rule(
        name="restartBomb",
        checks="a pod killed for memory does not move on to the next node with the same memory, for any owner",
        fields="`resources`, `podFailurePolicy`",
        fix="set memory request and limit to the same amount; in Jobs fail on exit code 137",
        default="warn",
        check=restart_bomb,
        fill=fill_restart_bomb,
        parameters="`allowed`: kills until a replacement is held; `escalation` (`max`, `factor`): with `fill`, the"
        " replacement gets more memory instead, up to `max`",
        rows="R6",
        argo=False,
    ),
    Rule(
        name="gpuNodes",
        checks="pods without GPUs keep off GPU nodes (as long as there are others; DaemonSets may go anywhere)",
        fields="`nodeSelector`, `affinity.nodeAffinity`",
        fix="ask for a GPU, or do not choose GPU nodes",
        default="warn",
        check=gpu_nodes,
        fill=fill_gpu_nodes,
        rows="R7",
        kinds=tuple(kind for kind in WORKLOADS if kind != "DaemonSet"),
    ),
    Rule(
        name="gpuType",
        checks="the GPU type that is chosen exists on some node",
        fields="`nodeSelector`, `affinity.nodeAffinity`",
        fix="choose a type that `moor gpus` shows",
        default="warn",
        check=gpu_type,
        parameters="in addition to the rules, `expectedNodes`: nodes that an autoscaler may add",
        rows="R8",
    ),
    Rule(
        name="gpuCount",
        checks="some node (of the type that is chosen) has as many GPUs as the pod asks for",
        fields="`resources.limits`",
        fix="ask for no more than the largest node has",
        default="warn",
        check=gpu_count,
        parameters="as `gpuType`",
        rows="R8",
    ),
    Rule(
        name="ephemeralStorage",
        checks="every container limits its use of the node's disk",
        fields="`resources.limits.ephemeral-storage`",
        fix="state a limit",
        default="off",
        check=ephemeral_storage,
        fill=fill_ephemeral_storage,
        parameters="`default`: the limit filled in",
    ),
    Rule(
        name="unsupportedAnnotations",
        checks="no annotation that Kubernetes ignores",
        fields="`metadata.annotations` of pods",
        fix="remove it, or use its replacement",
        default="warn",
        check=unsupported_annotations,
        parameters="`annotations`: more of them; `*` at the end makes a prefix",
        rows="R30",
    ),
    Rule(
        name="missingCommand",
        checks="containers of Jobs and of workflow steps name their command",
        fields="`command`",
        fix="write the command that the image would run",
        default="warn",
        check=missing_command,
        rows="R30",
        kinds=JOBS,
    ),
)

FIXES: Mapping[str, str] = {rule.name: rule.fix for rule in RULES} | {
    "shape": "write the field as in the API reference"
}


def _applies(rule: Rule, template: Template) -> bool:
    if template.is_workflow:
        return rule.argo
    return rule.kinds is None or template.kind in rule.kinds
