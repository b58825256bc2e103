"""The fields of a pod's spec that the local cluster honours, and those that it ignores with the reason.

The docs page docs/reference/pod-fields.md is made from this table, and so is the event about ignored fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a type. `ignored`: the reason; "" if it is honoured. `of`: the type of its values."""

    ignored: str = ""
    harmless: tuple[Any, ...] = ()  # values that are ignored without a difference; no event names them
    of: str = ""


DONE = Field()
USER = "pods run as the user of the cluster"
RIGHTS = "a process has the rights of the user of the cluster"
MODULE = "security modules are not set up for processes"
NO_DNS = "pods use the name resolution of this machine"
NO_IMAGES = "images are not pulled"
NAMESPACES = "pods share the namespaces of this machine"
WINDOWS = "pods run on Linux"
NO_DRIVER = "the volume is refused with an event: this kind has no driver here"


def _done(names: str) -> dict[str, Field]:
    return dict.fromkeys(names.split(), DONE)


def _ignored(names: str, reason: str, *harmless: Any) -> dict[str, Field]:
    return dict.fromkeys(names.split(), Field(reason, harmless))


FIELDS: Mapping[str, Mapping[str, Field]] = {
    "PodSpec": {
        **_done(
            "activeDeadlineSeconds affinity automountServiceAccountToken hostNetwork hostname nodeName"
            " nodeSelector overhead preemptionPolicy priority priorityClassName readinessGates restartPolicy"
            " schedulerName schedulingGates serviceAccount serviceAccountName terminationGracePeriodSeconds"
            " tolerations topologySpreadConstraints"
        ),
        "containers": Field(of="Container"),
        "initContainers": Field(of="Container"),
        "securityContext": Field(of="PodSecurityContext"),
        "volumes": Field(of="Volume"),
        **_ignored("dnsConfig subdomain", NO_DNS),
        **_ignored("dnsPolicy", NO_DNS, "ClusterFirst", "ClusterFirstWithHostNet", "Default"),
        **_ignored("enableServiceLinks", "services set no variables", True, False),
        **_ignored("ephemeralContainers", "containers cannot be added to a running pod"),
        **_ignored("hostAliases", "pods use /etc/hosts of this machine"),
        **_ignored("hostIPC hostPID", NAMESPACES, True, False),
        **_ignored("shareProcessNamespace", NAMESPACES, True, False),
        **_ignored("hostUsers", USER, True),
        **_ignored("hostnameOverride", "processes see the host name of this machine; $HOSTNAME is hostname"),
        **_ignored("setHostnameAsFQDN", "processes see the host name of this machine", False),
        **_ignored("imagePullSecrets", NO_IMAGES),
        **_ignored("os", WINDOWS, {"name": "linux"}),
        **_ignored("resourceClaims", "the API server refuses them: no dynamic resource allocation"),
        **_ignored("resources", "the scheduler counts them; limits are enforced for containers only"),
        **_ignored("runtimeClassName", "containers are processes"),
        **_ignored("schedulingGroup", "the scheduler places single pods"),
    },
    "Container": {
        **_done(
            "args command env envFrom image name ports resources restartPolicy terminationMessagePath"
            " terminationMessagePolicy workingDir"
        ),
        "lifecycle": Field(of="Lifecycle"),
        "livenessProbe": Field(of="Probe"),
        "readinessProbe": Field(of="Probe"),
        "startupProbe": Field(of="Probe"),
        "securityContext": Field(of="SecurityContext"),
        "volumeMounts": Field(of="VolumeMount"),
        **_ignored("imagePullPolicy", NO_IMAGES, "Always", "IfNotPresent", "Never"),
        **_ignored("resizePolicy", "resources of a running pod do not change"),
        **_ignored("restartPolicyRules", "the restart policy alone decides"),
        **_ignored("stdin", "standard input stays open, and nothing can be written to it", False),
        **_ignored("stdinOnce", "standard input is empty", False),
        **_ignored("tty", "containers have no terminal", False),
        **_ignored("volumeDevices", "volumes are folders"),
    },
    "PodSecurityContext": {
        **_ignored("fsGroup runAsGroup runAsUser supplementalGroups", USER),
        **_ignored("fsGroupChangePolicy supplementalGroupsPolicy", USER, "Always", "OnRootMismatch", "Merge"),
        **_ignored("runAsNonRoot", USER, False),
        **_ignored("appArmorProfile seLinuxOptions seLinuxChangePolicy", MODULE),
        **_ignored("seccompProfile", MODULE, {"type": "RuntimeDefault"}, {"type": "Unconfined"}),
        **_ignored("sysctls", "the kernel is shared with this machine"),
        **_ignored("windowsOptions", WINDOWS),
    },
    "SecurityContext": {
        **_done("privileged"),
        **_ignored("runAsGroup runAsUser", USER),
        **_ignored("runAsNonRoot", USER, False),
        **_ignored("allowPrivilegeEscalation", RIGHTS, True, False),
        **_ignored("capabilities", RIGHTS, {"drop": ["ALL"]}),
        **_ignored("appArmorProfile seLinuxOptions", MODULE),
        **_ignored("seccompProfile", MODULE, {"type": "RuntimeDefault"}, {"type": "Unconfined"}),
        **_ignored("procMount", NAMESPACES, "Default"),
        **_ignored("readOnlyRootFilesystem", "files of this machine are as writable as for its user", False),
        **_ignored("windowsOptions", WINDOWS),
    },
    "Lifecycle": {
        "postStart": Field(of="LifecycleHandler"),
        "preStop": Field(of="LifecycleHandler"),
        **_ignored("stopSignal", "containers get SIGTERM", "SIGTERM"),
    },
    "LifecycleHandler": {
        **_done("exec httpGet sleep"),
        **_ignored("tcpSocket", "the container is refused with a message, because Kubernetes fails such a hook"),
    },
    "Probe": {
        **_done(
            "exec failureThreshold httpGet initialDelaySeconds periodSeconds successThreshold tcpSocket"
            " timeoutSeconds"
        ),
        **_ignored("grpc", "such a probe counts as successful"),
        **_ignored("terminationGracePeriodSeconds", "the grace period of the pod counts"),
    },
    "VolumeMount": {
        **_done("mountPath name readOnly subPath subPathExpr"),
        **_ignored("mountPropagation", "mounts stay in the container", "None"),
        **_ignored("recursiveReadOnly", "mounts below a volume stay writable", "Disabled"),
    },
    "Volume": {
        **_done("configMap downwardAPI hostPath name persistentVolumeClaim projected secret"),
        "emptyDir": Field(of="EmptyDirVolumeSource"),
        **_ignored(
            "awsElasticBlockStore azureDisk azureFile cephfs cinder csi ephemeral fc flexVolume flocker"
            " gcePersistentDisk gitRepo glusterfs image iscsi nfs photonPersistentDisk portworxVolume quobyte rbd"
            " scaleIO storageos vsphereVolume",
            NO_DRIVER,
        ),
    },
    "EmptyDirVolumeSource": {
        **_ignored("medium", "its files are on the disk of this machine"),
        **_ignored("sizeLimit", "the size of a volume is not measured"),
    },
}


def ignored_fields(spec: Mapping[str, Any]) -> list[str]:
    """The paths of the fields of a pod's spec that make no difference here, such as `containers[main].tty`."""
    return list(_walk(spec, "PodSpec", ""))


def _walk(obj: Mapping[str, Any], kind: str, path: str) -> Iterator[str]:
    for name, value in obj.items():
        field = FIELDS[kind].get(name, DONE)
        where = f"{path}{name}"
        if field.ignored:
            if value not in (None, [], {}, *field.harmless):
                yield where
        elif field.of and isinstance(value, Mapping):
            yield from _walk(value, field.of, f"{where}.")
        elif field.of:
            for at, item in enumerate(value or ()):
                yield from _walk(item, field.of, f"{where}[{item.get('name', at)}].")
