"""Sources of GPU and pod readings: exporters, Prometheus or a metrics API.

Each source is asked once a round. A source that fails is skipped, and is retried after growing delays.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any, Protocol

import aiohttp
from msgspec import Struct

from moorage.decide.usage.readings import (
    GPU_METRICS,
    GpuUse,
    Measured,
    exporters,
    gpus_of,
    measured_by_metrics_api,
    parse_exposition,
    series_of_query,
)
from moorage_kube.api import Api
from moorage_kube.backoff import DoublingDelay
from moorage_kube.clock import Clock
from moorage_kube.errors import ApiError, ServerError
from moorage_kube.meta import Key
from moorage_kube.resources import ENDPOINTSLICES

log = logging.getLogger(__name__)

EXPORTER_LABELS = ("app.kubernetes.io/name=dcgm-exporter", "app=nvidia-dcgm-exporter", "app=dcgm-exporter")
FIND_SECONDS = 300.0  # between two looks for exporters
ASK_SECONDS = 5.0  # patience with one source
ANSWER_MAX_BYTES = 32 * 2**20  # one exporter says some 2 kB of each GPU, Prometheus of all of them
AT_ONCE = 32
RETRY = DoublingDelay(30.0, 600.0)  # seconds before a source that failed is asked again
METRICS_API = "/apis/metrics.k8s.io/v1beta1/pods"


class Fetch(Protocol):
    """GET over HTTP."""

    async def __call__(self, url: str, params: Mapping[str, str]) -> bytes:
        """Fetch a URL. Raises OSError, aiohttp.ClientError, TimeoutError, ServerError."""
        ...


class Rests:
    """Failed sources, with the time of the next attempt for each."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed: dict[str, tuple[int, float]] = {}  # failures in a row, and when to ask again
        self.failures = 0  # ever

    def is_resting(self, source: str) -> bool:
        return self._clock.monotonic() < self._failed.get(source, (0, 0.0))[1]

    def fail(self, source: str, error: BaseException) -> None:
        count = self._failed.get(source, (0, 0.0))[0] + 1
        self._failed[source] = (count, self._clock.monotonic() + RETRY.after(count))
        self.failures += 1
        if count == 1:
            log.warning(
                "a source of the use of pods does not answer", extra={"source": source, "error": str(error)}
            )

    def succeed(self, source: str) -> None:
        self._failed.pop(source, None)


class Http:
    """Fetches answers of at most ANSWER_MAX_BYTES; does not follow redirects."""

    def __init__(self, token: str = "") -> None:
        self._session: aiohttp.ClientSession | None = None
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def __call__(self, url: str, params: Mapping[str, str]) -> bytes:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=AT_ONCE)
            self._session = aiohttp.ClientSession(connector=connector, headers=self._headers)
        async with self._session.get(url, params=dict(params), allow_redirects=False) as answer:
            if answer.status != 200:
                raise ServerError(f"{url} answered {answer.status}", status=answer.status)
            body = bytearray()
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > ANSWER_MAX_BYTES:
                    raise ServerError(f"the answer of {url} is longer than {ANSWER_MAX_BYTES} bytes")
            return bytes(body)


class SourceSettings(Struct, frozen=True, kw_only=True):
    """The sources of GPU readings. `namespaces`: namespaces of trusted exporters; `prometheus`: its
    address, or "".

    `token`: the token for the local cluster's exporter; it is not sent to Prometheus.
    """

    namespaces: tuple[str, ...] = ()
    prometheus: str = ""
    token: str = ""


class GpuSources:
    """GPU readings of the cluster.

    From Prometheus if its address is set, else from every exporter of the cluster.
    """

    def __init__(self, api: Api, settings: SourceSettings, *, clock: Clock, fetch: Fetch | None = None) -> None:
        self._api, self._settings, self._clock = api, settings, clock
        self._http = Http("" if settings.prometheus else settings.token)
        self._fetch = fetch or self._http
        self._exporters: tuple[str, ...] = ()
        self._look_at = 0.0
        self.rests = Rests(clock)

    async def close(self) -> None:
        await self._http.close()

    async def gpus(self) -> list[GpuUse]:
        """Each GPU that a source reports; a GPU in two sources occurs twice."""
        if self._settings.prometheus:
            return await self._ask(f"{self._settings.prometheus.rstrip('/')}/api/v1/query", is_prometheus=True)
        if self._clock.monotonic() >= self._look_at:
            await self._find()
        gpus: list[GpuUse] = []
        for first in range(0, len(self._exporters), AT_ONCE):
            places = self._exporters[first : first + AT_ONCE]
            answers = await asyncio.gather(*(self._ask(f"http://{place}/metrics") for place in places))
            gpus += [gpu for answer in answers for gpu in answer]
        return gpus

    async def _find(self) -> None:
        self._look_at = self._clock.monotonic() + FIND_SECONDS
        slices = []
        try:
            for label in EXPORTER_LABELS:
                slices += (await self._api.list(ENDPOINTSLICES, label_selector=label)).items
        except ApiError as error:
            self.rests.fail("exporters of GPUs", error)
            self._look_at = self._clock.monotonic() + RETRY.after(1)
            return
        self.rests.succeed("exporters of GPUs")
        self._exporters = exporters(slices, self._settings.namespaces)
        if not self._exporters:  # they may be on their way
            self._look_at = self._clock.monotonic() + RETRY.after(1)

    async def _ask(self, url: str, *, is_prometheus: bool = False) -> list[GpuUse]:
        if self.rests.is_resting(url):
            return []
        params = {"query": f'{{__name__=~"{"|".join(GPU_METRICS)}"}}'} if is_prometheus else {}
        try:
            async with asyncio.timeout(ASK_SECONDS):
                body = await self._fetch(url, params)
            if is_prometheus:
                series = series_of_query(await asyncio.to_thread(json.loads, body))
            else:
                series = await asyncio.to_thread(parse_exposition, body.decode("utf-8", "replace"))
        except (ApiError, aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            self.rests.fail(url, error)
            return []
        self.rests.succeed(url)
        return gpus_of(series)


class RawApi(Protocol):
    async def raw(self, method: str, path: str) -> bytes: ...


class MetricsApi:
    """metrics.k8s.io, for pods without a reading of a kubelet; empty where it is not installed."""

    def __init__(self, api: RawApi | None, *, clock: Clock) -> None:
        self._api = api
        self.rests = Rests(clock)

    async def measured(self) -> dict[Key, Measured]:
        if self._api is None or self.rests.is_resting(METRICS_API):
            return {}
        try:
            async with asyncio.timeout(ASK_SECONDS):
                answer: Any = json.loads(await self._api.raw("GET", METRICS_API))
        except (ApiError, OSError, TimeoutError, ValueError) as error:
            self.rests.fail(METRICS_API, error)
            return {}
        self.rests.succeed(METRICS_API)
        return measured_by_metrics_api(answer)
