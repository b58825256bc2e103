"""Scheduler extenders: HTTP services that take part in the choice of nodes, called as kube-scheduler does.

On the wire the field names are those of the Go types, which have no JSON tags: `Pod`, `Nodes`, `NodeNames`,
`FailedNodes`, `Host`, `Score`, …; answers are read without regard to case, as Go does.
https://github.com/kubernetes/kubernetes/blob/master/staging/src/k8s.io/kube-scheduler/extender/v1/types.go
https://github.com/kubernetes/kubernetes/blob/master/pkg/scheduler/extender.go

The configuration is a KubeSchedulerConfiguration, so that one file drives a real scheduler and this one.
https://kubernetes.io/docs/reference/config-api/kube-scheduler-config.v1/
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from moorage_kube.bodies import BodyTooLong, read_whole
from moorage_kube.documents import parse_document, parse_json
from moorage_kube.errors import DocumentError, MoorageError, UsageError
from moorage_kube.resources import Obj
from moorage_local.podspecs import containers_of
from moorage_local.scheduler.preemption import Candidate
from moorage_local.scheduler.scores import MAX_SCORE
from moorage_local.scheduler.snapshot import NodeState, Snapshot

if TYPE_CHECKING:
    import ssl

    import aiohttp

log = logging.getLogger(__name__)

CONFIG_API_VERSION = "kubescheduler.config.k8s.io/v1"
MAX_EXTENDER_SCORE = 10  # scores of extenders are scaled from this to MAX_SCORE
DEFAULT_TIMEOUT = timedelta(seconds=5)


class ExtenderError(MoorageError):
    """An extender gave no usable answer."""


@dataclass(frozen=True, slots=True)
class ManagedResource:
    """An extended resource that the extender manages. `ignored_by_scheduler`: our own filter does not check it."""

    name: str
    ignored_by_scheduler: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderTLS:
    """The field `tlsConfig`: files are paths, data is PEM text."""

    insecure: bool = False
    server_name: str = ""
    ca_file: str = ""
    ca_data: str = ""
    cert_file: str = ""
    key_file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderConfig:
    """One entry of `extenders`. An empty verb is not called."""

    url_prefix: str
    filter_verb: str = ""
    prioritize_verb: str = ""
    preempt_verb: str = ""
    bind_verb: str = ""
    weight: int = 1
    enable_https: bool = False
    tls: ExtenderTLS = field(default_factory=ExtenderTLS)
    http_timeout: timedelta = DEFAULT_TIMEOUT
    node_cache_capable: bool = False  # names of nodes travel, not the nodes
    managed_resources: tuple[ManagedResource, ...] = ()  # empty: every pod is sent
    ignorable: bool = False


def load_extenders(path: Path) -> tuple[ExtenderConfig, ...]:
    """Read the extenders of a KubeSchedulerConfiguration file (YAML or JSON). Raises UsageError."""
    try:
        configuration = parse_document(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read the scheduler configuration {path}: {error.strerror}") from error
    except DocumentError as error:
        raise UsageError(
            f"the scheduler configuration {path} is not valid YAML: {error.located}", hint=error.hint
        ) from error
    if not isinstance(configuration, dict):
        raise UsageError(f"the scheduler configuration {path} must be a YAML or JSON object")
    return parse_extenders(configuration)


def parse_extenders(configuration: Mapping[str, Any]) -> tuple[ExtenderConfig, ...]:
    """Read the extenders of a KubeSchedulerConfiguration.

    Its other fields are for kube-scheduler and ignored here.

    Raises UsageError with the path of the field.
    """
    api_version, kind = configuration.get("apiVersion"), configuration.get("kind")
    if (api_version, kind) != (CONFIG_API_VERSION, "KubeSchedulerConfiguration"):
        raise UsageError(
            f"invalid scheduler configuration of apiVersion {api_version!r} and kind {kind!r}: use"
            f" {CONFIG_API_VERSION!r} and 'KubeSchedulerConfiguration'"
        )
    extenders = configuration.get("extenders") or ()
    if not isinstance(extenders, list | tuple):
        raise UsageError("invalid extenders: use a list of objects")
    return tuple(_parse_extender(extender, at) for at, extender in enumerate(extenders))


def parse_go_duration(text: str) -> timedelta:
    """Read a duration of Go: "500ms", "1m30s", "1.5s". Raises ValueError with the text in its message."""
    if text == "0":
        return timedelta()
    if not _GO_DURATION.fullmatch(text):
        raise ValueError(f"invalid duration {text!r}")
    return timedelta(seconds=sum(float(number) * _GO_UNITS[unit] for number, unit in _GO_PART.findall(text)))


class Extender:
    """One extender. Errors raise ExtenderError; the caller handles them.

    `close` ends its connections. An extender that fails is logged once until it answers again.
    """

    def __init__(self, config: ExtenderConfig) -> None:
        self.config = config
        self._session: aiohttp.ClientSession | None = None
        self._failing = False
        self._managed = frozenset(resource.name for resource in config.managed_resources)

    @property
    def name(self) -> str:
        """Its address, without the path: that may hold a secret, and names are logged."""
        url = urlsplit(self.config.url_prefix)
        return f"{url.scheme}://{url.netloc}"

    def is_interested(self, pod: Obj) -> bool:
        """Whether the pod uses a resource that this extender manages.

        Always True if the extender has no such list.
        """
        if not self._managed:
            return True
        return any(
            name in self._managed
            for container in containers_of(pod.get("spec") or {})
            for part in ("requests", "limits")
            for name in (container.get("resources") or {}).get(part) or ()
        )

    async def filter(
        self, pod: Obj, nodes: Sequence[NodeState]
    ) -> tuple[list[NodeState], dict[str, str], dict[str, str]]:
        """Return the accepted nodes, and the reasons of two groups of refused nodes.

        The first group may accept the pod after other pods are removed, the second group not.
        """
        by_name = {node.name: node for node in nodes}
        answer = await self._send(self.config.filter_verb, self._arguments(pod, nodes))
        if error := _field(answer, "Error"):
            raise self._failed(str(error))
        names = _field(answer, "NodeNames")
        listed = _field(_field(answer, "Nodes") or {}, "Items") or ()
        if self.config.node_cache_capable and names is not None:
            unknown = [name for name in names if name not in by_name]
            if unknown:
                raise self._failed(f"it named the node {unknown[0]!r}, which it was not asked about")
            kept = [by_name[name] for name in names]
        else:
            kept = [by_name[name] for node in listed if (name := node["metadata"]["name"]) in by_name]
        failed = dict(_field(answer, "FailedNodes") or {})
        hopeless = dict(_field(answer, "FailedAndUnresolvableNodes") or {})
        if nodes and not kept and not failed and not hopeless and names is None and not listed:
            raise self._failed("its answer to filter speaks of no node")
        self._answered()
        return kept, failed, hopeless

    async def prioritize(self, pod: Obj, nodes: Sequence[NodeState]) -> dict[str, int]:
        """Return the scores by node, with the extender's weight, in the scale of our scores."""
        answer = await self._send(self.config.prioritize_verb, self._arguments(pod, nodes), list)
        scale = self.config.weight * (MAX_SCORE // MAX_EXTENDER_SCORE)
        points: dict[str, int] = {}
        try:
            for host_priority in answer:
                host = _field(host_priority, "Host")
                points[host] = points.get(host, 0) + int(_field(host_priority, "Score") or 0) * scale
        except (TypeError, AttributeError, ValueError) as error:
            raise self._failed(f"its list of scores is malformed: {error}") from error
        self._answered()
        return points

    async def preempt(self, pod: Obj, candidates: Sequence[Candidate], snapshot: Snapshot) -> list[Candidate]:
        """Return the candidates that the extender accepts, with the victims that it chooses.

        A candidate without victims is dropped if the extender is ignorable, else it is an error.
        """
        # an extender with its own cache of nodes gets names only
        body: Obj = {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": None}
        if self.config.node_cache_capable:
            body["NodeNameToMetaVictims"] = {
                candidate.node: {
                    "Pods": [{"UID": victim.info.uid} for victim in candidate.victims],
                    "NumPDBViolations": candidate.violations,
                }
                for candidate in candidates
            }
        else:
            body["NodeNameToVictims"] = {
                candidate.node: {
                    "Pods": [victim.obj for victim in candidate.victims],
                    "NumPDBViolations": candidate.violations,
                }
                for candidate in candidates
            }
        # both forms are answered by uids: pods and nodes must exist, or the answer is wrong
        answer = await self._send(self.config.preempt_verb, body)
        agreed = []
        for name, chosen in (_field(answer, "NodeNameToMetaVictims") or {}).items():
            node = snapshot.nodes.get(name)
            if node is None:
                raise self._failed(f"it named the node {name!r}, which does not exist")
            by_uid = {pod.info.uid: pod for pod in node.pods}
            uids = [str(_field(victim, "UID")) for victim in _field(chosen or {}, "Pods") or ()]
            missing = [uid for uid in uids if uid not in by_uid]
            if missing:
                raise self._failed(f"it named the pod {missing[0]} as a victim, which is not on {name}")
            # an entry without victims is an error, unless the extender may be ignored
            if not uids:
                if self.config.ignorable:
                    continue
                raise self._failed(f"it named no victim on {name}")
            agreed.append(
                Candidate(
                    node=name,
                    victims=tuple(sorted((by_uid[uid] for uid in uids), key=lambda victim: -victim.info.priority)),
                    violations=int(_field(chosen, "NumPDBViolations") or 0),
                )
            )
        self._answered()
        return agreed

    async def bind(self, *, namespace: str, name: str, uid: str, node: str) -> None:
        body = {"PodName": name, "PodNamespace": namespace, "PodUID": uid, "Node": node}
        answer = await self._send(self.config.bind_verb, body)
        if error := _field(answer, "Error"):
            raise self._failed(str(error))
        self._answered()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _arguments(self, pod: Obj, nodes: Sequence[NodeState]) -> Obj:
        if self.config.node_cache_capable:
            return {"Pod": pod, "Nodes": None, "NodeNames": [node.name for node in nodes]}
        items = [{"apiVersion": "v1", "kind": "Node", **node.obj} for node in nodes]
        return {"Pod": pod, "Nodes": {"metadata": {}, "items": items}, "NodeNames": None}

    async def _send(self, verb: str, body: Obj, shape: type = dict) -> Any:
        import aiohttp

        url = f"{self.config.url_prefix.rstrip('/')}/{verb}"
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self.config.http_timeout.total_seconds()),
                connector=aiohttp.TCPConnector(ssl=_tls_context(self.config) or True),
            )
        try:
            async with self._session.post(
                url,
                data=json.dumps(body, separators=(",", ":")).encode(),
                headers={"Content-Type": "application/json"},
                server_hostname=self.config.tls.server_name or None,
            ) as response:
                if response.status != 200:
                    raise self._failed(f"failed {verb} with extender at URL {url}, code {response.status}")
                text = await read_whole(response.content.iter_any(), ANSWER_MAX_BYTES)
                answer = parse_json(text, bytes_max=ANSWER_MAX_BYTES)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError, BodyTooLong) as error:
            raise self._failed(f"{verb} at {url}: {error or type(error).__name__}") from error
        if not isinstance(answer, shape):
            raise self._failed(f"{verb} at {url}: the answer is not a {shape.__name__}")
        return answer

    def _failed(self, what: str) -> ExtenderError:
        if not self._failing:
            self._failing = True
            log.warning(
                "a scheduler extender fails",
                extra={"extender": self.name, "error": what, "ignorable": self.config.ignorable},
            )
        return ExtenderError(what)

    def _answered(self) -> None:
        if self._failing:
            self._failing = False
            log.info("a scheduler extender answers again", extra={"extender": self.name})


ANSWER_MAX_BYTES = 64 * 1024 * 1024  # 5,000 nodes whole are some 50 MB
_GO_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_GO_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_GO_DURATION = re.compile(rf"(?:{_GO_PART.pattern})+")

_KNOWN_FIELDS = frozenset(
    {
        "urlPrefix",
        "filterVerb",
        "prioritizeVerb",
        "preemptVerb",
        "bindVerb",
        "weight",
        "enableHTTPS",
        "tlsConfig",
        "httpTimeout",
        "nodeCacheCapable",
        "managedResources",
        "ignorable",
    }
)


def _parse_extender(extender: Any, at: int) -> ExtenderConfig:
    # an unknown field is an error: a typing mistake would turn off a part of the configuration
    path = f"extenders[{at}]"
    if not isinstance(extender, dict):
        raise UsageError(f"invalid {path}: use an object, such as {{urlPrefix: http://…}}")
    unknown = sorted(str(field) for field in extender.keys() - _KNOWN_FIELDS)
    if unknown:
        raise UsageError(f'unknown field "{path}.{unknown[0]}"', hint="use " + ", ".join(sorted(_KNOWN_FIELDS)))
    # the same limits as kube-scheduler's own validation
    url = extender.get("urlPrefix")
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise UsageError(f"invalid {path}.urlPrefix {url!r}: use an http:// or https:// URL")
    weight = extender.get("weight", 1)
    if extender.get("prioritizeVerb") and (type(weight) is not int or weight <= 0):
        raise UsageError(f"invalid {path}.weight {weight!r}: use a positive integer")
    try:
        timeout = (
            parse_go_duration(str(extender["httpTimeout"])) if extender.get("httpTimeout") else DEFAULT_TIMEOUT
        )
    except ValueError as error:
        raise UsageError(f"{path}.httpTimeout: {error}", hint="use a number with a unit, such as 500ms") from error
    # check the types of nested fields before they are read
    tls, managed = extender.get("tlsConfig") or {}, extender.get("managedResources") or ()
    if not isinstance(tls, dict):
        raise UsageError(f"invalid {path}.tlsConfig: use an object")
    if not isinstance(managed, list | tuple) or not all(
        isinstance(resource, dict) and resource.get("name") for resource in managed
    ):
        raise UsageError(f"invalid {path}.managedResources: use a list of objects, each with a name")
    return ExtenderConfig(
        url_prefix=url,
        filter_verb=extender.get("filterVerb") or "",
        prioritize_verb=extender.get("prioritizeVerb") or "",
        preempt_verb=extender.get("preemptVerb") or "",
        bind_verb=extender.get("bindVerb") or "",
        weight=weight,
        enable_https=bool(extender.get("enableHTTPS")),
        tls=ExtenderTLS(
            insecure=bool(tls.get("insecure")),
            server_name=tls.get("serverName") or "",
            ca_file=tls.get("caFile") or "",
            ca_data=_pem(tls.get("caData"), path),
            cert_file=tls.get("certFile") or "",
            key_file=tls.get("keyFile") or "",
        ),
        http_timeout=timeout or DEFAULT_TIMEOUT,
        node_cache_capable=bool(extender.get("nodeCacheCapable")),
        managed_resources=tuple(
            ManagedResource(resource["name"], bool(resource.get("ignoredByScheduler"))) for resource in managed
        ),
        ignorable=bool(extender.get("ignorable")),
    )


def _pem(encoded: str | None, path: str) -> str:
    import base64

    if not encoded:
        return ""
    try:
        return base64.b64decode(encoded, validate=True).decode("ascii")
    except (TypeError, ValueError) as error:
        raise UsageError(f"invalid {path}.tlsConfig.caData: use a PEM certificate in base64") from error


def _tls_context(config: ExtenderConfig) -> ssl.SSLContext | None:
    """Return the TLS context of an extender; None for the default one.

    As in kube-scheduler, `enableHTTPS` without a CA means no verification.
    """
    tls = config.tls
    if not config.url_prefix.startswith("https://"):
        return None
    import ssl

    context = ssl.create_default_context(cafile=tls.ca_file or None, cadata=tls.ca_data or None)
    if tls.insecure or (config.enable_https and not tls.ca_file and not tls.ca_data):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert_file:
        context.load_cert_chain(tls.cert_file, tls.key_file or None)
    return context


def _field(obj: Any, name: str) -> Any:
    """Return a field by Go's rules: the exact name, else a name that differs only in case."""
    if not isinstance(obj, Mapping):
        return None
    if name in obj:
        return obj[name]
    lowered = name.lower()
    return next((value for key, value in obj.items() if key.lower() == lowered), None)
