"""Parse and join readings of pods' use from kubelets, DCGM's exporter, Prometheus and the metrics API.

Answers come from other programs: parts of another shape are left out, and nothing raises.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from moorage.decide.usage.gpus import NOBODY, device_ids, is_reservation, owner_of
from moorage.decide.usage.samples import GpuReading, Reading
from moorage.model.argo import WORKFLOW_LABEL
from moorage.model.names import CONTAINER_LABEL, MAP_LABEL, RUN_LABEL, WORKSPACE_LABEL
from moorage_kube.errors import MoorageError
from moorage_kube.meta import Key, key_of, labels_of
from moorage_kube.moments import moment
from moorage_kube.quantity import parse_quantity
from moorage_kube.resources import Obj
from moorage_kube.scheduling import parse_pod

USER_LABELS = (RUN_LABEL, WORKSPACE_LABEL, MAP_LABEL, WORKFLOW_LABEL, CONTAINER_LABEL)
UTILISATION, MEMORY_USED, MEMORY_FREE, POWER = (
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_DEV_FB_FREE",
    "DCGM_FI_DEV_POWER_USAGE",
)
GPU_METRICS = (UTILISATION, MEMORY_USED, MEMORY_FREE, POWER)
MIB = 2**20
_LABEL = re.compile(r'(?<![A-Za-z0-9_])([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_RATE_SECONDS = 300.0  # between two readings of a counter, from which a rate is still made


class Series(Struct, frozen=True):
    """One value of a metric in Prometheus' format."""

    name: str
    labels: Mapping[str, str]
    value: float


class Measured(Struct, frozen=True, kw_only=True):
    """The reading of a pod from a kubelet or the metrics API. None: not reported."""

    cpu_milli: int | None = None
    cpu_nanoseconds: int | None = None  # used since its start: rates are made of two
    cpu_at: datetime | None = None  # when that was read
    memory_bytes: int | None = None


class GpuUse(Struct, frozen=True, kw_only=True):
    """One GPU as an exporter reports it; the pod may be named by the exporter, or be known by the device."""

    namespace: str
    pod: str
    gpu: GpuReading


def is_sampled(pod: Obj) -> bool:
    """Whether the use of a pod is measured: it runs, and it belongs to a user or holds GPUs."""
    if (pod.get("status") or {}).get("phase") != "Running" or not (pod.get("spec") or {}).get("nodeName"):
        return False
    if any(label in labels_of(pod) for label in USER_LABELS):
        return True
    parsed = parse_pod(pod)
    return parsed.gpus > 0 and not is_reservation(parsed)


def measured_by_kubelet(summary: Any) -> dict[str, Measured]:
    """Uid of a pod → the sum of all its containers in a kubelet's summary.

    https://kubernetes.io/docs/reference/instrumentation/node-metrics/#summary-api-source
    """
    measured = {}
    for entry in _listed(summary, "pods"):
        uid = str(_mapping(entry, "podRef").get("uid") or "")
        parts = _listed(entry, "containers") or [entry]
        if uid:
            cpus = [_mapping(part, "cpu") for part in parts]
            nano = _sum(cpu.get("usageNanoCores") for cpu in cpus)
            measured[uid] = Measured(
                cpu_milli=None if nano is None else round(nano / 1_000_000),
                cpu_nanoseconds=_sum(cpu.get("usageCoreNanoSeconds") for cpu in cpus),
                cpu_at=max(filter(None, (moment(cpu.get("time")) for cpu in cpus)), default=None),
                memory_bytes=_sum(_mapping(part, "memory").get("workingSetBytes") for part in parts),
            )
    return measured


def measured_by_metrics_api(answer: Any) -> dict[Key, Measured]:
    """The measured values of the pods in a `PodMetricsList` of metrics.k8s.io."""
    measured = {}
    for entry in _listed(answer, "items"):
        meta, usages = (
            _mapping(entry, "metadata"),
            [_mapping(part, "usage") for part in _listed(entry, "containers")],
        )
        cpu = _sum(_thousandths(usage.get("cpu")) for usage in usages)
        memory = _sum(_thousandths(usage.get("memory")) for usage in usages)
        measured[Key(str(meta.get("namespace") or ""), str(meta.get("name") or ""))] = Measured(
            cpu_milli=cpu, memory_bytes=None if memory is None else memory // 1000
        )
    return measured


def cpu_milli(before: Measured | None, now: Measured) -> int | None:
    """The recent CPU use of a pod, in thousandths of a core: as reported, or from the growth of its counter."""
    if now.cpu_milli is not None:
        return now.cpu_milli
    if before is None or now.cpu_nanoseconds is None or before.cpu_nanoseconds is None:
        return None
    if now.cpu_at is None or before.cpu_at is None:
        return None
    seconds = (now.cpu_at - before.cpu_at).total_seconds()
    used = now.cpu_nanoseconds - before.cpu_nanoseconds
    if not 0 < seconds <= _RATE_SECONDS or used < 0:  # the same reading, a long gap, or a restarted counter
        return None
    return round(used / seconds / 1_000_000)


def parse_exposition(text: str, names: Iterable[str] = GPU_METRICS) -> list[Series]:
    """The series with these names in a text in Prometheus' format. Invalid lines are skipped.

    https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
    """
    wanted, series = frozenset(names), []
    for line in text.splitlines():
        name, brace, rest = line.partition("{")
        if not brace or name not in wanted:
            continue
        end = _end_of_labels(rest)
        words = rest[end + 1 :].split() if end >= 0 else []
        value = _number(words[0]) if words else None
        if value is not None:
            labels = {match[1]: _unescaped(match[2]) for match in _LABEL.finditer(rest[:end])}
            series.append(Series(name, labels, value))
    return series


def series_of_query(answer: Any) -> list[Series]:
    """The series in the response to an instant query of Prometheus.

    https://prometheus.io/docs/prometheus/latest/querying/api/#instant-queries
    """
    series = []
    for entry in _listed(_mapping(answer, "data"), "result"):
        labels = {str(name): str(value) for name, value in _mapping(entry, "metric").items()}
        pair = entry.get("value")
        value = _number(pair[1]) if isinstance(pair, list) and len(pair) == 2 else None
        if value is not None:
            series.append(Series(labels.pop("__name__", ""), labels, value))
    return series


def gpus_of(series: Iterable[Series]) -> list[GpuUse]:
    """GPUs in the series of DCGM's exporter. A GPU without its utilisation is left out.

    Prometheus moves the pod that an exporter names to `exported_pod` where it puts the exporter's own into `pod`.
    A GPU divided by MIG has a device for each instance.
    """
    values: dict[tuple[str, str, str], dict[str, float]] = {}
    for each in series:
        labels = each.labels
        device = labels.get("UUID") or "/".join(filter(None, (labels.get("Hostname"), labels.get("gpu"))))
        if not device:
            continue
        if instance := labels.get("GPU_I_ID"):
            device = f"{device}/{instance}"
        exported = "exported_pod" in labels or "exported_namespace" in labels
        pod, namespace = ("exported_pod", "exported_namespace") if exported else ("pod", "namespace")
        key = (labels.get(namespace, ""), labels.get(pod, ""), device)
        values.setdefault(key, {})[each.name] = each.value
    return [
        GpuUse(namespace=namespace, pod=pod, gpu=_gpu(device, read))
        for (namespace, pod, device), read in values.items()
        if UTILISATION in read
    ]


def make_readings(
    pods: Iterable[Obj],
    measured: Mapping[str, Measured],
    before: Mapping[str, Measured],
    gpus: Iterable[GpuUse],
    *,
    at: datetime,
) -> list[Reading]:
    """One reading for each pod with data from a source.

    `measured`: by uid; `before`: the readings of the last round.
    """
    # an exporter names the pod of a GPU, or only the device
    by_pod: dict[tuple[str, str], dict[str, GpuReading]] = {}
    by_device: dict[str, GpuReading] = {}
    for use in gpus:
        if use.pod:
            by_pod.setdefault((use.namespace, use.pod), {}).setdefault(use.gpu.device, use.gpu)
        by_device.setdefault(use.gpu.device, use.gpu)
    # join the sources by pod; a pod without any reading is left out
    readings = []
    for obj in pods:
        uid, key = str(obj["metadata"].get("uid") or ""), key_of(obj)
        named = by_pod.get((key.namespace, key.name))
        if named is None:  # an exporter that knows no pods
            ids = [device for devices in device_ids(obj).values() for device in devices]
            named = {device: by_device[device] for device in ids if device in by_device}
        known = measured.get(uid)
        cpu = None if known is None else cpu_milli(before.get(uid), known)
        memory = None if known is None else known.memory_bytes
        if not uid or (cpu is None and memory is None and not named):
            continue
        owner = owner_of(parse_pod(obj))
        readings.append(
            Reading(
                pod_uid=uid,
                at=at,
                cpu_milli=cpu,
                memory_bytes=memory,
                gpus=tuple(named.values()),
                owner="" if owner == NOBODY else owner,
                namespace=key.namespace,
            )
        )
    return readings


def exporters(slices: Iterable[Obj], namespaces: Iterable[str]) -> tuple[str, ...]:
    """host:port of each exporter that EndpointSlices of these namespaces name, sorted.

    In other namespaces any user could report false readings.
    """
    trusted, places = frozenset(namespaces), set()
    for entry in slices:
        if _mapping(entry, "metadata").get("namespace") not in trusted:
            continue
        ports = [
            port.get("port") for port in _listed(entry, "ports") if port.get("name") in (None, "", *_PORT_NAMES)
        ]
        for endpoint in _listed(entry, "endpoints"):
            if _mapping(endpoint, "conditions").get("ready") is False:
                continue
            for host in endpoint.get("addresses") or ():
                shown = f"[{host}]" if ":" in str(host) else str(host)
                places |= {f"{shown}:{port}" for port in ports[:1] if isinstance(port, int)}
    return tuple(sorted(places))


_PORT_NAMES = ("metrics", "gpu-metrics", "http", "web")


def _gpu(device: str, read: Mapping[str, float]) -> GpuReading:
    used, free = read.get(MEMORY_USED), read.get(MEMORY_FREE)
    return GpuReading(
        device=device,
        utilisation=min(100.0, max(0.0, read[UTILISATION])),
        memory_bytes=0 if used is None else max(0, round(used)) * MIB,
        memory_total_bytes=0 if used is None or free is None else max(0, round(used + free)) * MIB,
        power_watts=None if POWER not in read else max(0.0, read[POWER]),
    )


def _end_of_labels(rest: str) -> int:
    """The index of the closing brace, ignoring braces in quotes. -1 if it is missing."""
    quoted = escaped = False
    for at, char in enumerate(rest):
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = quoted
        elif char == '"':
            quoted = not quoted
        elif char == "}" and not quoted:
            return at
    return -1


def _unescaped(value: str) -> str:
    if "\\" not in value:
        return value
    return re.sub(r"\\(.)", lambda match: {"n": "\n"}.get(match[1], match[1]), value)


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _thousandths(value: Any) -> int | None:
    try:
        return int(parse_quantity(str(value)) * 1000) if value is not None else None
    except MoorageError:
        return None


def _sum(values: Iterable[Any]) -> int | None:
    known = [value for value in values if isinstance(value, int) and not isinstance(value, bool) and value >= 0]
    return sum(known) if known else None


def _mapping(part: Any, key: str) -> Mapping[str, Any]:
    value = part.get(key) if isinstance(part, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _listed(part: Any, key: str) -> list[Mapping[str, Any]]:
    value = part.get(key) if isinstance(part, Mapping) else None
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
