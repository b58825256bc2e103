"""The shapes of a workflow's fields: which are mappings, lists and single values.

The schema of Argo's kinds on a cluster accepts any value, so a field may hold anything. The code that
runs and checks workflows assumes the shapes below. Fields that are not named here may hold anything.

https://argo-workflows.readthedocs.io/en/latest/fields/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from moorage.decide.admission.fields import Path


class Fault(Struct, frozen=True):
    """A field of another shape. `must`: the required shape."""

    path: Path
    must: str


class _Shape:
    """The allowed shape of a field; null is always allowed, except in a list."""

    __slots__ = ()

    def faults(self, value: Any, path: Path) -> Iterator[Fault]:
        raise NotImplementedError


class _Single(_Shape):
    """The shape of a string, number or boolean."""

    __slots__ = ()

    def faults(self, value: Any, path: Path) -> Iterator[Fault]:
        if isinstance(value, (Mapping, list)):
            yield Fault(path, "a string or a number")


class _Text(_Shape):
    __slots__ = ()

    def faults(self, value: Any, path: Path) -> Iterator[Fault]:
        if not isinstance(value, str):
            yield Fault(path, "a string")


class _Fields(_Shape):
    """The shape of a mapping, with shapes for some of its fields."""

    __slots__ = ("fields",)

    def __init__(self, **fields: _Shape) -> None:
        self.fields = fields

    def faults(self, value: Any, path: Path) -> Iterator[Fault]:
        if not isinstance(value, Mapping):
            yield Fault(path, "a mapping")
            return
        for name, shape in self.fields.items():
            if (inner := value.get(name)) is not None:
                yield from shape.faults(inner, (*path, name))


class _Named(_Shape):
    """A mapping with any names and with values of one shape."""

    __slots__ = ("each",)

    def __init__(self, each: _Shape) -> None:
        self.each = each

    def faults(self, value: Any, path: Path) -> Iterator[Fault]:
        if not isinstance(value, Mapping):
            yield Fault(path, "a mapping")
            return
        for name, inner in value.items():
            if inner is not None:
                yield from self.each.faults(inner, (*path, str(name)))


class _List(_Shape):
    __slots__ = ("each", "must")

    def __init__(self, each: _Shape | None = None, must: str = "a list") -> None:
        self.each, self.must = each, must

    def faults(self, value: Any, path: Path) -> Iterator[Fault]:
        if not isinstance(value, list):
            yield Fault(path, self.must)
            return
        if self.each is not None:
            for index, inner in enumerate(value):
                yield from self.each.faults(inner, (*path, index))


def _singles(*names: str) -> dict[str, _Shape]:
    return dict.fromkeys(names, _SINGLE)


_SINGLE, _TEXT, _MAPPING = _Single(), _Text(), _Fields()
_MAPPINGS = _List(_MAPPING)
_KEY = _Fields(**_singles("name", "key"))
_ARTIFACT = _Fields(
    **_singles("name", "path", "from", "fromExpression", "subPath", "globalName", "mode"),
    s3=_Fields(
        **_singles("key", "bucket", "endpoint", "region", "roleARN"),
        accessKeySecret=_KEY, secretKeySecret=_KEY, sessionTokenSecret=_KEY, caSecret=_KEY,
        createBucketIfNotPresent=_Fields(**_singles("objectLocking")),
        encryptionOptions=_Fields(
            **_singles("enableEncryption", "kmsKeyId", "kmsEncryptionContext"), serverSideCustomerKeySecret=_KEY
        ),
    ),
    gcs=_Fields(**_singles("key", "bucket"), serviceAccountKeySecret=_KEY),
    http=_Fields(
        **_singles("url"),
        headers=_List(_Fields(**_singles("name", "value"))),
        auth=_Fields(
            basicAuth=_Fields(usernameSecret=_KEY, passwordSecret=_KEY),
            clientCert=_Fields(clientCertSecret=_KEY, clientKeySecret=_KEY),
            oauth2=_Fields(
                clientIDSecret=_KEY, clientSecretSecret=_KEY, tokenURLSecret=_KEY, scopes=_List(_SINGLE),
                endpointParams=_List(_Fields(**_singles("key", "value"))),
            ),
        ),
    ),
    git=_Fields(
        **_singles("repo", "revision", "branch", "depth"),
        usernameSecret=_KEY, passwordSecret=_KEY, sshPrivateKeySecret=_KEY, fetch=_List(_SINGLE),
    ),
    raw=_Fields(**_singles("data")),
    artifactory=_MAPPING, hdfs=_MAPPING, oss=_MAPPING, azure=_MAPPING,
    archive=_Fields(none=_MAPPING, tar=_MAPPING, zip=_MAPPING),
)  # fmt: skip
_VALUE_FROM = _Fields(
    **_singles("path", "parameter", "expression", "default", "event", "jsonPath", "jqFilter"),
    configMapKeyRef=_KEY,
    supplied=_MAPPING,
)
# the checks of arguments judge a parameter's value
_PARAMETER = _Fields(**_singles("name", "default", "globalName"), valueFrom=_VALUE_FROM, enum=_List(_SINGLE))
_ENTRIES = "a list of entries with a name"
_INPUTS = _Fields(parameters=_List(_PARAMETER, _ENTRIES), artifacts=_List(_ARTIFACT, _ENTRIES))
_HOOK = _Fields(**_singles("template", "expression"), templateRef=_MAPPING, arguments=_INPUTS)
_LOCKS = _Fields(
    mutexes=_List(_Fields(**_singles("name", "namespace"))),
    semaphores=_List(_Fields(**_singles("namespace"), configMapKeyRef=_KEY, database=_MAPPING)),
)
_RETRY = _Fields(
    **_singles("limit", "retryPolicy", "expression"),
    backoff=_Fields(**_singles("duration", "factor", "maxDuration", "cap")),
    affinity=_Fields(nodeAntiAffinity=_MAPPING),
)
_LABELS = _Fields(labels=_Named(_SINGLE), annotations=_Named(_SINGLE))
_RESOURCES = _Fields(requests=_Named(_SINGLE), limits=_Named(_SINGLE))
_CONTAINER = _Fields(
    **_singles("name", "image", "source", "workingDir", "imagePullPolicy"),
    command=_List(_SINGLE), args=_List(_SINGLE), dependencies=_List(_SINGLE),
    env=_List(_Fields(**_singles("name", "value"), valueFrom=_MAPPING)), envFrom=_MAPPINGS,
    volumeMounts=_List(_Fields(**_singles("name", "mountPath", "subPath"))),
    volumeDevices=_MAPPINGS, ports=_MAPPINGS,
    resources=_RESOURCES, securityContext=_MAPPING, lifecycle=_MAPPING,
    livenessProbe=_MAPPING, readinessProbe=_MAPPING, startupProbe=_MAPPING,
)  # fmt: skip
_VOLUMES = _List(_Fields(**_singles("name")))
_POD: dict[str, _Shape] = {
    **_singles("serviceAccountName", "schedulerName", "priorityClassName", "podSpecPatch"),
    "volumes": _VOLUMES, "nodeSelector": _Named(_SINGLE), "tolerations": _MAPPINGS, "affinity": _MAPPING,
    "securityContext": _MAPPING, "hostAliases": _MAPPINGS, "executor": _MAPPING, "imagePullSecrets": _MAPPINGS,
    "dnsConfig": _MAPPING, "synchronization": _LOCKS, "retryStrategy": _RETRY,
    "metrics": _Fields(prometheus=_List(_Fields(
        **_singles("name", "help", "when"), labels=_MAPPINGS, counter=_MAPPING, gauge=_MAPPING, histogram=_MAPPING
    ))),
}  # fmt: skip
_TEMPLATE = _Fields(
    **_POD,
    **_singles("name", "timeout", "activeDeadlineSeconds", "parallelism", "pendingTimeout"),
    inputs=_INPUTS, outputs=_INPUTS, metadata=_LABELS, archiveLocation=_Fields(
        **_ARTIFACT.fields | _singles("archiveLogs")
    ),
    container=_CONTAINER, script=_CONTAINER, initContainers=_List(_CONTAINER), sidecars=_List(_CONTAINER),
    containerSet=_Fields(containers=_List(_CONTAINER), volumeMounts=_MAPPINGS, retryStrategy=_MAPPING),
    suspend=_Fields(**_singles("duration")), resource=_MAPPING, http=_MAPPING, data=_MAPPING,
    memoize=_Fields(**_singles("key", "maxAge"), cache=_Fields(configMap=_KEY)),
)  # fmt: skip
_STEP = _Fields(
    **_singles("name", "template", "when", "onExit", "depends", "withParam"),
    templateRef=_Fields(**_singles("name", "template")),
    arguments=_INPUTS, withItems=_List(), withSequence=_Fields(**_singles("count", "start", "end", "format")),
    continueOn=_MAPPING, hooks=_Named(_HOOK), dependencies=_List(_SINGLE), inline=_TEMPLATE,
)  # fmt: skip
_GROUP = _List(_STEP, "a list: each group of steps begins with '- - '")
_TEMPLATE.fields["steps"] = _List(_GROUP, "a list of lists of steps")
_TEMPLATE.fields["dag"] = _Fields(**_singles("target"), tasks=_List(_STEP))
_SPEC = _Fields(
    **_POD,
    **_singles("activeDeadlineSeconds", "parallelism", "podPriority", "priority", "podPriorityClassName"),
    templates=_List(_TEMPLATE), arguments=_INPUTS, entrypoint=_TEXT, onExit=_TEXT, hooks=_Named(_HOOK),
    volumeClaimTemplates=_List(_Fields(
        metadata=_Fields(**_LABELS.fields | _singles("name")), spec=_Fields(resources=_RESOURCES)
    )),
    volumeClaimGC=_Fields(**_singles("strategy")), templateDefaults=_TEMPLATE,
    workflowTemplateRef=_Fields(**_singles("name")),
    podGC=_Fields(**_singles("strategy", "deleteDelayDuration"), labelSelector=_Fields(
        matchLabels=_Named(_SINGLE), matchExpressions=_MAPPINGS
    )),
    ttlStrategy=_Fields(**_singles("secondsAfterCompletion", "secondsAfterSuccess", "secondsAfterFailure")),
    workflowMetadata=_Fields(**_LABELS.fields, labelsFrom=_Named(_Fields(**_singles("expression")))),
    podMetadata=_LABELS, podDisruptionBudget=_MAPPING, artifactRepositoryRef=_MAPPING, artifactGC=_MAPPING,
)  # fmt: skip


def faults_of_shape(spec: Mapping[str, Any], path: Path) -> Iterator[Fault]:
    """Yield the fields of a workflow's normalised spec whose types are wrong."""
    return _SPEC.faults(spec, path)
