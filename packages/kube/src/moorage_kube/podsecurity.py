"""Pod Security: the fields of a pod that the standards `baseline` and `restricted` forbid.

https://kubernetes.io/docs/concepts/security/pod-security-standards/ (1.36): always the newest standard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PREFIX = "pod-security.kubernetes.io/"  # of the labels of a namespace
PRIVILEGED, BASELINE, RESTRICTED = "privileged", "baseline", "restricted"
LEVELS = (PRIVILEGED, BASELINE, RESTRICTED)
CONTAINER_FIELDS = ("initContainers", "containers", "ephemeralContainers")
APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
CAPABILITIES = frozenset(
    {
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    }
)
SELINUX_TYPES = frozenset({"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"})
SYSCTLS = frozenset(
    {
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.ping_group_range",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.tcp_wmem",
    }
)
VOLUMES = frozenset(
    {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
)


@dataclass(frozen=True, slots=True)
class Violation:
    """`reason`: the control, in upstream's words; `detail`: the part of the pod that breaks it."""

    reason: str
    detail: str

    def __str__(self) -> str:
        return f"{self.reason} ({self.detail})"


def violations(level: str, metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> list[Violation]:
    """Return the violations of a level by a pod.

    Empty for `privileged`. An unknown level counts as `restricted`.
    """
    if level == PRIVILEGED:
        return []
    pod = _Pod(metadata, spec)
    checks = _BASELINE if level == BASELINE else _RESTRICTED
    return [violation for check in checks if (violation := check(pod)) is not None]


class _Pod:
    """A pod in the form that the checks read: parts that may be null have empty values."""

    def __init__(self, metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
        self.annotations: Mapping[str, str] = metadata.get("annotations") or {}
        self.spec = spec
        self.context: Mapping[str, Any] = spec.get("securityContext") or {}
        self.volumes: Sequence[Mapping[str, Any]] = spec.get("volumes") or ()
        self.containers = [container for field in CONTAINER_FIELDS for container in spec.get(field) or ()]
        self.is_windows = (spec.get("os") or {}).get("name") == "windows"

    def contexts(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the name and the security context of each container."""
        for container in self.containers:
            yield str(container.get("name")), container.get("securityContext") or {}


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _containers(names: Sequence[str]) -> str:
    return f"container{'s' if len(names) > 1 else ''} {_quoted(names)}"


def _who(on_pod: bool, names: Sequence[str]) -> str:
    return " and ".join([*(["pod"] if on_pod else []), *([_containers(names)] if names else [])])


def _must_not(reason: str, pod: bool, names: Sequence[str], what: str) -> Violation | None:
    return Violation(reason, f"{_who(pod, names)} must not set {what}") if pod or names else None


# ---------------------------------------------------------------------------------------------------- baseline


def _app_armor(pod: _Pod) -> Violation | None:
    def is_bad(context: Mapping[str, Any]) -> bool:
        return (context.get("appArmorProfile") or {}).get("type") not in (None, "RuntimeDefault", "Localhost")

    details = []
    names = [name for name, context in pod.contexts() if is_bad(context)]
    if is_bad(pod.context) or names:
        values = sorted(
            {
                str(context["appArmorProfile"]["type"])
                for context in (pod.context, *(context for _, context in pod.contexts()))
                if is_bad(context)
            }
        )
        details.append(
            f"{_who(is_bad(pod.context), names)} must not set AppArmor profile type to {_quoted(values)}"
        )
    for key, value in sorted(pod.annotations.items()):
        if (
            key.startswith(APPARMOR)
            and value not in ("", "runtime/default")
            and not value.startswith("localhost/")
        ):
            details.append(f'annotation {key}="{value}"')
    return (
        Violation(f"forbidden AppArmor profile{'s' if len(details) > 1 else ''}", ", ".join(details))
        if details
        else None
    )


def _capabilities(pod: _Pod, allowed: frozenset[str] = CAPABILITIES) -> str:
    names, added = [], set()
    for name, context in pod.contexts():
        more = {str(capability) for capability in (context.get("capabilities") or {}).get("add") or ()} - allowed
        if more:
            names.append(name)
            added |= more
    if not names:
        return ""
    return f"{_containers(names)} must not include {_quoted(sorted(added))} in securityContext.capabilities.add"


def _baseline_capabilities(pod: _Pod) -> Violation | None:
    detail = _capabilities(pod)
    return Violation("non-default capabilities", detail) if detail else None


def _host_namespaces(pod: _Pod) -> Violation | None:
    fields = [f"{name}=true" for name in ("hostNetwork", "hostPID", "hostIPC") if pod.spec.get(name)]
    return Violation("host namespaces", ", ".join(fields)) if fields else None


def _host_path(pod: _Pod) -> Violation | None:
    names = [str(volume.get("name")) for volume in pod.volumes if volume.get("hostPath") is not None]
    return (
        Violation("hostPath volumes", f"volume{'s' if len(names) > 1 else ''} {_quoted(names)}") if names else None
    )


def _host_ports(pod: _Pod) -> Violation | None:
    names, ports = [], set()
    for container in pod.containers:
        used = {int(port["hostPort"]) for port in container.get("ports") or () if port.get("hostPort")}
        if used:
            names.append(str(container.get("name")))
            ports |= used
    if not names:
        return None
    verb = "use" if len(names) > 1 else "uses"
    what = f"hostPort{'s' if len(ports) > 1 else ''} {', '.join(map(str, sorted(ports)))}"
    return Violation("hostPort", f"{_containers(names)} {verb} {what}")


def _probe_hosts(pod: _Pod) -> Violation | None:
    names, hosts = [], set()
    for container in pod.containers:
        lifecycle = container.get("lifecycle") or {}
        handlers = [container.get(kind) for kind in ("livenessProbe", "readinessProbe", "startupProbe")]
        handlers += [lifecycle.get("postStart"), lifecycle.get("preStop")]
        used = {
            str(host)
            for handler in handlers
            for action in ("httpGet", "tcpSocket")
            if (host := ((handler or {}).get(action) or {}).get("host"))
        }
        if used:
            names.append(str(container.get("name")))
            hosts |= used
    if not names:
        return None
    verb = "use" if len(names) > 1 else "uses"
    return Violation("probe or lifecycle host", f"{_containers(names)} {verb} {_quoted(sorted(hosts))}")


def _privileged(pod: _Pod) -> Violation | None:
    names = [name for name, context in pod.contexts() if context.get("privileged")]
    return _must_not("privileged", False, names, "securityContext.privileged=true")


def _proc_mount(pod: _Pod) -> Violation | None:
    bad = {name: str(context["procMount"]) for name, context in pod.contexts() if context.get("procMount")}
    bad = {name: value for name, value in bad.items() if value != "Default"}
    values = _quoted(sorted(set(bad.values())))
    return _must_not("procMount", False, list(bad), f"securityContext.procMount to {values}")


def _selinux(pod: _Pod) -> Violation | None:
    def faults(context: Mapping[str, Any]) -> set[str]:
        options = context.get("seLinuxOptions") or {}
        kind = str(options.get("type") or "")
        out = {f'type "{kind}"'} if kind not in SELINUX_TYPES else set()
        return out | {f"{field} may not be set" for field in ("user", "role") if options.get(field)}

    names = [name for name, context in pod.contexts() if faults(context)]
    on_pod = faults(pod.context)
    if not names and not on_pod:
        return None
    details = on_pod.union(*(faults(context) for _, context in pod.contexts()))
    who = _who(bool(on_pod), names)
    return Violation(
        "seLinuxOptions", f"{who} set forbidden securityContext.seLinuxOptions: {'; '.join(sorted(details))}"
    )


def _seccomp_type(context: Mapping[str, Any]) -> str | None:
    kind = (context.get("seccompProfile") or {}).get("type")
    return None if kind is None else str(kind)


def _bad_seccomp(pod: _Pod) -> Violation | None:
    allowed = (None, "RuntimeDefault", "Localhost")
    on_pod = _seccomp_type(pod.context) not in allowed
    names = [name for name, context in pod.contexts() if _seccomp_type(context) not in allowed]
    return _must_not("seccompProfile", on_pod, names, 'securityContext.seccompProfile.type to "Unconfined"')


def _sysctls(pod: _Pod) -> Violation | None:
    names = [
        str(sysctl.get("name")) for sysctl in pod.context.get("sysctls") or () if sysctl.get("name") not in SYSCTLS
    ]
    return Violation("forbidden sysctls", ", ".join(names)) if names else None


def _host_process(pod: _Pod) -> Violation | None:
    def is_bad(context: Mapping[str, Any]) -> bool:
        return bool((context.get("windowsOptions") or {}).get("hostProcess"))

    names = [name for name, context in pod.contexts() if is_bad(context)]
    return _must_not("hostProcess", is_bad(pod.context), names, "securityContext.windowsOptions.hostProcess=true")


# -------------------------------------------------------------------------------------------------- restricted


def _escalation(pod: _Pod) -> Violation | None:
    names = [name for name, context in pod.contexts() if context.get("allowPrivilegeEscalation") is not False]
    if not names or pod.is_windows:
        return None
    detail = f"{_containers(names)} must set securityContext.allowPrivilegeEscalation=false"
    return Violation("allowPrivilegeEscalation != false", detail)


def _restricted_capabilities(pod: _Pod) -> Violation | None:
    if pod.is_windows:
        return None
    keeps = [
        name
        for name, context in pod.contexts()
        if "ALL" not in ((context.get("capabilities") or {}).get("drop") or ())
    ]
    details = [f'{_containers(keeps)} must set securityContext.capabilities.drop=["ALL"]'] if keeps else []
    added = _capabilities(pod, frozenset({"NET_BIND_SERVICE"}))
    details += [added] if added else []
    return Violation("unrestricted capabilities", "; ".join(details)) if details else None


def _volume_types(pod: _Pod) -> Violation | None:
    names, kinds = [], set()
    for volume in pod.volumes:
        more = {key for key, value in volume.items() if key != "name" and value is not None} - VOLUMES
        if more:
            names.append(str(volume.get("name")))
            kinds |= more
    if not names:
        return None
    many = len(names) > 1
    what = f"restricted volume type{'s' if len(kinds) > 1 else ''} {_quoted(sorted(kinds))}"
    detail = f"volume{'s' if many else ''} {_quoted(names)} {'use' if many else 'uses'} {what}"
    return Violation("restricted volume types", detail)


def _non_root(pod: _Pod) -> Violation | None:
    wanted = pod.context.get("runAsNonRoot")
    explicit = [name for name, context in pod.contexts() if context.get("runAsNonRoot") is False]
    if wanted is False or explicit:
        return _must_not("runAsNonRoot != true", wanted is False, explicit, "securityContext.runAsNonRoot=false")
    lacking = [name for name, context in pod.contexts() if context.get("runAsNonRoot") is None]
    if wanted or not lacking:
        return None
    detail = f"pod or {_containers(lacking)} must set securityContext.runAsNonRoot=true"
    return Violation("runAsNonRoot != true", detail)


def _user(pod: _Pod) -> Violation | None:
    names = [name for name, context in pod.contexts() if context.get("runAsUser") == 0]
    return _must_not("runAsUser=0", pod.context.get("runAsUser") == 0, names, "runAsUser=0")


def _restricted_seccomp(pod: _Pod) -> Violation | None:
    bad = _bad_seccomp(pod)
    if bad is not None:
        return bad
    if pod.is_windows or _seccomp_type(pod.context) is not None:
        return None
    lacking = [name for name, context in pod.contexts() if _seccomp_type(context) is None]
    if not lacking:
        return None
    who = f"pod or {_containers(lacking)}"
    detail = f'{who} must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
    return Violation("seccompProfile", detail)


_BOTH = (
    _app_armor,
    _host_namespaces,
    _host_ports,
    _probe_hosts,
    _privileged,
    _proc_mount,
    _selinux,
    _sysctls,
    _host_process,
)
_BASELINE = (*_BOTH, _baseline_capabilities, _host_path, _bad_seccomp)
_RESTRICTED = (
    *_BOTH,
    _escalation,
    _restricted_capabilities,
    _volume_types,
    _non_root,
    _user,
    _restricted_seccomp,
)
