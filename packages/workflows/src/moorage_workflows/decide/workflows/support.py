"""The fields of Argo's format: one table of all of them, by Argo's type.

A field runs as in Argo, or `REASONS` has the reason why it does not. It is then refused, never ignored: without it
the workflow would do something else. A field that the table lacks does not exist in Argo, and is refused too.

https://argo-workflows.readthedocs.io/en/latest/fields/
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from moorage.decide.admission.fields import Path
from moorage.model.names import NAME_COMPARED
from moorage_workflows.decide.workflows.findings import Finding, Severity
from moorage_workflows.decide.workflows.scopes import has_tag

RULE = "support"
STRATEGIES = ("OnWorkflowCompletion", "OnWorkflowDeletion", "Never")  # of artifactGC
_COLLECTED = ("ArtifactGC.strategy", "WorkflowLevelArtifactGC.strategy")

_STORES = (
    "artifactory azure gcs:GCSArtifact git:GitArtifact hdfs http:HTTPArtifact oss plugin raw:RawArtifact"
    " s3:S3Artifact"
)
_ARTIFACT = (
    f"archive:ArchiveStrategy archiveLogs artifactGC:ArtifactGC deleted from fromExpression globalName mode name"
    f" optional path recurseMode subPath {_STORES}"
)
_CONTAINER = (
    "args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports readinessProbe resizePolicy"
    " resources restartPolicy restartPolicyRules securityContext startupProbe stdin stdinOnce"
    " terminationMessagePath terminationMessagePolicy tty volumeDevices volumeMounts workingDir"
)
_STEP = (
    "arguments:Arguments continueOn:ContinueOn hooks:*LifecycleHook inline:Template name onExit template"
    " templateRef:TemplateRef when withItems withParam withSequence:Sequence"
)
_RUNNABLE = (
    "activeDeadlineSeconds affinity automountServiceAccountToken executor:ExecutorConfig hostAliases"
    " metrics:Metrics nodeSelector parallelism podResources podSpecPatch resourceClaims"
    " retryStrategy:RetryStrategy schedulerName securityContext serviceAccountName"
    " synchronization:Synchronization tolerations volumes"
)
# Argo's type → its fields. `a:T`: field a is of type T, or a list of T; `a:*T`: a mapping of names to T. Fields
# without a type have Kubernetes' types, or plain values.
FIELDS: Mapping[str, str] = {
    "WorkflowSpec": f"{_RUNNABLE} archiveLogs arguments:Arguments artifactGC:WorkflowLevelArtifactGC"
    " artifactRepositoryRef:ArtifactRepositoryRef dnsConfig dnsPolicy entrypoint executorPlugins"
    " hooks:*LifecycleHook hostNetwork imagePullSecrets onExit podDisruptionBudget podGC:PodGC"
    " podMetadata:Metadata podPriorityClassName priority shutdown suspend templateDefaults:Template"
    " templates:Template"
    " ttlStrategy:TTLStrategy volumeClaimGC:VolumeClaimGC volumeClaimTemplates workflowMetadata:WorkflowMetadata"
    " workflowTemplateRef:WorkflowTemplateRef",
    "CronWorkflowSpec": "concurrencyPolicy failedJobsHistoryLimit schedules startingDeadlineSeconds"
    " stopStrategy:StopStrategy successfulJobsHistoryLimit suspend timezone when workflowMetadata"
    " workflowSpec:WorkflowSpec",
    "Template": f"{_RUNNABLE} annotations archiveLocation:ArtifactLocation container:Container"
    " containerSet:ContainerSetTemplate daemon dag:DAGTemplate data:Data failFast http:HTTP"
    " initContainers:UserContainer inputs:Inputs memoize:Memoize metadata:Metadata name outputs:Outputs"
    " pendingTimeout plugin priorityClassName resource:ResourceTemplate script:ScriptTemplate"
    " sidecars:UserContainer steps:WorkflowStep suspend:SuspendTemplate timeout",
    "Arguments": "artifacts:Artifact parameters:Parameter",
    "ArchiveStrategy": "none:NoneStrategy tar:TarStrategy zip:ZipStrategy",
    "Artifact": _ARTIFACT,
    "ArtifactGC": "podMetadata:Metadata serviceAccountName strategy",
    "ArtifactLocation": f"archiveLogs {_STORES}",
    "ArtifactPaths": _ARTIFACT,
    "ArtifactRepositoryRef": "configMap key",
    "Backoff": "cap duration factor maxDuration",
    "BasicAuth": "passwordSecret usernameSecret",
    "Cache": "configMap",
    "ClientCertAuth": "clientCertSecret clientKeySecret",
    "Container": _CONTAINER,
    "ContainerNode": f"{_CONTAINER} dependencies",
    "ContainerSetRetryStrategy": "duration retries",
    "ContainerSetTemplate": "containers:ContainerNode retryStrategy:ContainerSetRetryStrategy volumeMounts",
    "ContinueOn": "error failed",
    "Counter": "value",
    "CreateS3BucketOptions": "objectLocking",
    "DAGTask": f"{_STEP} dependencies depends",
    "DAGTemplate": "failFast target tasks:DAGTask",
    "Data": "source:DataSource transformation:TransformationStep",
    "DataSource": "artifactPaths:ArtifactPaths",
    "ExecutorConfig": "serviceAccountName",
    "GCSArtifact": "bucket key serviceAccountKeySecret",
    "Gauge": "operation realtime value",
    "GitArtifact": "branch depth disableSubmodules fetch insecureIgnoreHostKey insecureSkipTLS passwordSecret repo"
    " revision singleBranch sshPrivateKeySecret usernameSecret",
    "HTTP": "body bodyFrom:HTTPBodySource headers:HTTPHeader insecureSkipVerify method successCondition"
    " timeoutSeconds url",
    "HTTPArtifact": "auth:HTTPAuth headers:Header saveStreamViaFile url",
    "HTTPAuth": "basicAuth:BasicAuth clientCert:ClientCertAuth oauth2:OAuth2Auth",
    "HTTPBodySource": "bytes",
    "HTTPHeader": "name value valueFrom:HTTPHeaderSource",
    "HTTPHeaderSource": "secretKeyRef",
    "Header": "name value",
    "Histogram": "buckets value",
    "Inputs": "artifacts:Artifact parameters:Parameter",
    "LabelValueFrom": "expression",
    "LifecycleHook": "arguments:Arguments expression template templateRef:TemplateRef",
    "ManifestFrom": "artifact:Artifact",
    "Memoize": "cache:Cache key maxAge",
    "Metadata": "annotations labels",
    "MetricLabel": "key value",
    "Metrics": "prometheus:Prometheus",
    "Mutex": "database name namespace",
    "NoneStrategy": "",
    "OAuth2Auth": "clientIDSecret clientSecretSecret endpointParams:OAuth2EndpointParam scopes tokenURLSecret",
    "OAuth2EndpointParam": "key value",
    "Outputs": "artifacts:Artifact exitCode parameters:Parameter result",
    "Parameter": "default description enum globalName name value valueFrom:ValueFrom",
    "PodGC": "deleteDelayDuration labelSelector strategy",
    "Prometheus": "counter:Counter gauge:Gauge help histogram:Histogram labels:MetricLabel name when",
    "RawArtifact": "data",
    "ResourceTemplate": "action failureCondition flags manifest manifestFrom:ManifestFrom mergeStrategy"
    " setOwnerReference successCondition",
    "RetryAffinity": "nodeAntiAffinity:RetryNodeAntiAffinity",
    "RetryNodeAntiAffinity": "",
    "RetryStrategy": "affinity:RetryAffinity backoff:Backoff expression limit retryPolicy",
    "S3Artifact": "accessKeySecret addressingStyle bucket caSecret createBucketIfNotPresent:CreateS3BucketOptions"
    " encryptionOptions:S3EncryptionOptions endpoint insecure key region roleARN secretKeySecret"
    " sessionTokenSecret"
    " useSDKCreds",
    "S3EncryptionOptions": "enableEncryption kmsEncryptionContext kmsKeyId serverSideCustomerKeySecret",
    "ScriptTemplate": f"{_CONTAINER} source",
    "SemaphoreRef": "configMapKeyRef database:SyncDatabaseRef namespace",
    "Sequence": "count end format start",
    "StopStrategy": "expression",
    "SuppliedValueFrom": "",
    "SuspendTemplate": "duration",
    "SyncDatabaseRef": "key",
    "Synchronization": "mutexes:Mutex semaphores:SemaphoreRef",
    "TTLStrategy": "secondsAfterCompletion secondsAfterFailure secondsAfterSuccess",
    "TarStrategy": "compressionLevel",
    "TemplateRef": "clusterScope name template",
    "TransformationStep": "expression",
    "UserContainer": f"{_CONTAINER} mirrorVolumeMounts",
    "ValueFrom": "configMapKeyRef default event expression jqFilter jsonPath parameter path"
    " supplied:SuppliedValueFrom",
    "VolumeClaimGC": "strategy",
    "WorkflowLevelArtifactGC": "forceFinalizerRemoval podMetadata:Metadata podSpecPatch serviceAccountName"
    " strategy",
    "WorkflowMetadata": "annotations labels labelsFrom:*LabelValueFrom",
    "WorkflowStep": _STEP,
    "WorkflowTemplateRef": "clusterScope name",
    "ZipStrategy": "",
}

_OTHER_STORES = (
    "artifacts are stored in Moorage's own store, S3 or Google Cloud Storage, or read by HTTP and Git; use one"
)
# type.field → why it does not run. A change that supports one of them removes its row.
REASONS: Mapping[str, str] = {
    **{
        f"{kind}.{store}": _OTHER_STORES
        for kind in ("Artifact", "ArtifactLocation", "ArtifactPaths")
        for store in ("artifactory", "azure", "hdfs", "oss", "plugin")
    },
    "S3EncryptionOptions.serverSideCustomerKeySecret": (
        "keys of the customer are not used; use enableEncryption, with kmsKeyId or without"
    ),
    "Template.plugin": "executor plugins are not run; use a container that does the same",
    "ValueFrom.event": "events do not start workflows here; use value",
    "WorkflowSpec.executorPlugins": "executor plugins are not run",
}
WITHOUT_EFFECT: Mapping[str, str] = {  # type.field → why a run is the same without it; lint warns
    "HTTPArtifact.saveStreamViaFile": "has no effect: every upload is from a file",
    "Template.annotations": "has no effect: only Argo's page shows it; write metadata.annotations for pods",
}
_TABLE: Mapping[str, Mapping[str, str]] = {
    kind: dict(word.partition(":")[::2] for word in words.split()) for kind, words in FIELDS.items()
}


def unsupported(document: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Return a finding for each field of a normalised document that does not run, or that Argo does not have."""
    spec = document.get("spec")
    kind = "CronWorkflowSpec" if document.get("kind") == "CronWorkflow" else "WorkflowSpec"
    return tuple(_walk(spec, kind, ("spec",)))


def is_known(kind: str, field: str) -> bool:
    """Whether one of Argo's types has this field."""
    return field in _TABLE.get(kind, ())


def unknown_field(name: str, known: Iterable[str]) -> str:
    """Return the message for a field that does not exist, with the most similar one."""
    head, *rest = name.split("_")
    camel = head + "".join(part[:1].upper() + part[1:] for part in rest)
    same = [field for field in known if field.lower() in (name.lower(), camel.lower())]
    nearest = same or difflib.get_close_matches(name[:NAME_COMPARED], known, n=1, cutoff=0.6)
    hint = f"did you mean {nearest[0]}?" if nearest else f"known fields: {', '.join(sorted(known)[:30])}"
    return f"unknown field; {hint}"


def _walk(value: Any, kind: str, path: Path) -> Iterator[Finding]:
    """Find the fields below a value of one of Argo's types, or a list of such values."""
    if isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _walk(inner, kind, (*path, index))
    if not isinstance(value, Mapping):
        return
    table = _TABLE[kind]
    for key, inner in value.items():
        name, at = str(key), (*path, str(key))
        if inner is None:
            continue
        if name not in table:
            yield Finding("field", at, "", unknown_field(name, table))
        elif (reason := REASONS.get(f"{kind}.{name}")) is not None:
            if inner is not False:
                yield Finding(RULE, at, "", reason)
        elif (reason := WITHOUT_EFFECT.get(f"{kind}.{name}")) is not None:
            yield Finding(RULE, at, "", reason, Severity.WARNING)
        elif table[name].startswith("*"):
            for entry, held in inner.items() if isinstance(inner, Mapping) else ():
                yield from _walk(held, table[name][1:], (*at, str(entry)))
        elif table[name]:
            yield from _walk(inner, table[name], at)
        elif f"{kind}.{name}" in _COLLECTED and inner not in ("", *STRATEGIES) and not has_tag(inner):
            yield Finding(RULE, at, str(inner), f"must be one of {', '.join(STRATEGIES)}")
