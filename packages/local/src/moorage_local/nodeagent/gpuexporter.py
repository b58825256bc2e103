"""The usage of this machine's GPUs, in the form of DCGM's exporter: real ones by NVML, others simulated.

A simulated GPU follows the CPU time of its pod's processes: one core for each GPU is 100 %. Its memory is the
pod's memory, in equal parts, and its power rises from IDLE_WATTS to BUSY_WATTS with its utilisation.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from moorage_local.nodeagent.gpus import device_ids
from moorage_local.nodeagent.node import NodeSpec
from moorage_local.nodeagent.podfolder import Admission
from moorage_local.nodeagent.podstats import PodStat

IDLE_WATTS, BUSY_WATTS = 60.0, 400.0  # about those of an A100 of 80 GB
MIB = 2**20
MEMORY_BYTES = 40 * 2**30  # of a simulated GPU without a configured size
HEAD_MAX_BYTES = 16 * 1024
ASK_SECONDS = 10.0  # for a request of a connected client
METRICS = (
    ("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %)."),
    ("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB)."),
    ("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB)."),
    ("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W)."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """The use of one GPU at one moment."""

    utilisation: float  # percent
    memory_bytes: int
    memory_total_bytes: int
    power_watts: float | None = None  # None: the driver does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One GPU of a node, with the container that uses it; the container is "" if the GPU is free."""

    node: str
    index: int
    device: str
    model: str
    use: DeviceUse
    namespace: str = ""
    pod: str = ""
    container: str = ""


def rows_of(
    spec: NodeSpec, pods: Iterable[Admission], stats: Mapping[str, PodStat], real: Mapping[str, DeviceUse]
) -> list[Row]:
    """The GPUs of a node.

    Two kinds are left out, because their usage is not known: real GPUs without data from the driver, and
    simulated GPUs of a pod that was measured only once.
    """
    # which container has which device, for the labels
    holders = {
        device: (pod, container)
        for pod in pods
        for container, devices in pod.devices.items()
        for device in devices
    }
    rows = []
    # real GPUs are measured, free simulated ones idle, others follow their pod
    for index in range(spec.gpus):
        (device,) = device_ids(spec.name, spec.real_gpu_uuids, (index,))
        holder = holders.get(device)
        if spec.real_gpu_uuids:
            use = real.get(device)
        elif holder is None:
            use = DeviceUse(
                utilisation=0.0, memory_bytes=0, memory_total_bytes=_total(spec), power_watts=IDLE_WATTS
            )
        else:
            use = simulated(spec, stats.get(holder[0].uid), gpus=len(holder[0].gpus) or 1)
        if use is None:
            continue
        # a free GPU has empty labels
        pod, container = holder if holder else (None, "")
        rows.append(
            Row(
                node=spec.name,
                index=index,
                device=device,
                model=spec.gpu_type,
                use=use,
                namespace=pod.namespace if pod else "",
                pod=pod.name if pod else "",
                container=container,
            )
        )
    return rows


def simulated(spec: NodeSpec, stat: PodStat | None, *, gpus: int) -> DeviceUse | None:
    """Return the simulated use of one of a pod's GPUs (`gpus`: their number); None if the pod's use is unknown."""
    if stat is None or stat.nano_cores is None:
        return None
    busy = min(1.0, stat.nano_cores / 1e9 / gpus)
    return DeviceUse(
        utilisation=100 * busy,
        memory_bytes=min(_total(spec), stat.memory_bytes // gpus),
        memory_total_bytes=_total(spec),
        power_watts=IDLE_WATTS + busy * (BUSY_WATTS - IDLE_WATTS),
    )


def read_real(nvml: Any) -> dict[str, DeviceUse]:
    """Read the usage of each GPU by NVML, by its UUID; a GPU that answers with an error is left out.

    `nvml` is the module pynvml, or one like it.
    """
    uses: dict[str, DeviceUse] = {}
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return uses
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            with contextlib.suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                uuid = nvml.nvmlDeviceGetUUID(handle)
                memory = _memory(nvml, handle)
                uses[uuid.decode() if isinstance(uuid, bytes) else uuid] = DeviceUse(
                    utilisation=float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
                    memory_bytes=int(memory.used),
                    memory_total_bytes=int(memory.total),
                    power_watts=_power(nvml, handle),
                )
    except nvml.NVMLError:
        pass  # of the count: earlier readings stay
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()
    return uses


def read_driver() -> dict[str, DeviceUse]:
    """Return the use of this machine's real GPUs (`read_real`); empty without a driver."""
    try:
        import pynvml
    except ImportError:
        return {}
    return read_real(pynvml)


def exposition(rows: Iterable[Row]) -> str:
    """Format the rows in Prometheus' text format, with the names and labels of DCGM's exporter."""
    listed = list(rows)
    lines = []
    for name, text in METRICS:
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
        for row in listed:
            value = _value(name, row.use)
            if value is not None:
                lines.append(f"{name}{{{_labels(row)}}} {value:.6g}")
    return "\n".join(lines) + "\n"


async def serve(page: Callable[[], Awaitable[str]], *, token: str, host: str = "127.0.0.1") -> asyncio.Server:
    """Answer GET /metrics with this bearer token on a free port until closed.

    Requests without the token are refused.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(ASK_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                first, *fields = head.split(b"\r\n")
                words = first.split()
                if not _has_token(fields, token):
                    status, body = "401 Unauthorized", b"/metrics needs a bearer token\n"
                elif words[:1] == [b"GET"] and words[1:2] and words[1].split(b"?")[0] == b"/metrics":
                    status, body = "200 OK", (await page()).encode()
                else:
                    status, body = "404 Not Found", b"only /metrics is here\n"
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    return await asyncio.start_server(answer, host, 0, limit=HEAD_MAX_BYTES)


def _has_token(fields: Iterable[bytes], token: str) -> bool:
    """Whether the fields of a request's head have the token."""
    for field in fields:
        name, _, value = field.partition(b":")
        if name.strip().lower() == b"authorization":
            kind, _, given = value.strip().partition(b" ")
            return bool(token) and kind.lower() == b"bearer" and hmac.compare_digest(given, token.encode())
    return False


def _total(spec: NodeSpec) -> int:
    return spec.gpu_memory_bytes or MEMORY_BYTES


def _memory(nvml: Any, handle: Any) -> Any:
    """Read the memory without the driver's reserve, as nvidia-smi and DCGM do.

    Drivers before 510 do not separate it.
    """
    try:
        return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except nvml.NVMLError:
        return nvml.nvmlDeviceGetMemoryInfo(handle)


def _power(nvml: Any, handle: Any) -> float | None:
    try:
        return float(nvml.nvmlDeviceGetPowerUsage(handle)) / 1000  # of milliwatts
    except nvml.NVMLError:
        return None


def _value(name: str, use: DeviceUse) -> float | None:
    match name:
        case "DCGM_FI_DEV_GPU_UTIL":
            return use.utilisation
        case "DCGM_FI_DEV_FB_USED":
            return use.memory_bytes // MIB
        case "DCGM_FI_DEV_FB_FREE":
            return max(0, use.memory_total_bytes - use.memory_bytes) // MIB
    return use.power_watts


def _labels(row: Row) -> str:
    labels = {
        "gpu": str(row.index),
        "UUID": row.device,
        "device": f"nvidia{row.index}",
        "modelName": row.model,
        "Hostname": row.node,
    }
    if row.pod:
        labels |= {"container": row.container, "namespace": row.namespace, "pod": row.pod}
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
