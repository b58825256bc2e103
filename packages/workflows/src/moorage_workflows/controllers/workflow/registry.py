"""Read the commands of images from their registries, by the HTTP API of OCI's distribution specification.

A user writes the registry's host, so a user could point the operator at internal services. Therefore:
https to public addresses only, unless the administrator names the registry; names are resolved once, by
us, and the connection uses the checked addresses; redirects and token servers have the same rules;
proxies of the environment are not used; answers have a maximum size, and users see only their status.

https://github.com/opencontainers/distribution-spec/blob/main/spec.md
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import ipaddress
import json
import re
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urljoin, urlsplit

from msgspec import Struct

from moorage.notify.outbound import Outbound
from moorage_kube.cache import BoundedCache
from moorage_kube.errors import DocumentError, MoorageError
from moorage_kube.images import ImageReference, parse_reference

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.abc import ResolveResult

SECONDS = 15.0  # of one look-up, with all its requests
DOCUMENT_BYTES = 4 * 1024 * 1024  # of a manifest or an image's configuration, as registries bound manifests
TOKEN_BYTES = 64 * 1024
REDIRECTS = 5
CONFIGS = 1024  # in the cache, by digest
_INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_PUBLIC = Outbound()


class RegistryError(MoorageError):
    """The command of an image is unavailable. The message is the reason."""


class Command(Struct, frozen=True):
    """The command of an image: its ENTRYPOINT and CMD."""

    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()


class Credentials(Struct, frozen=True):
    """Of one registry."""

    user: str
    password: str

    @property
    def header(self) -> str:
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


class Registries:
    """Reads commands of images from registries.

    `known`: registries of the administrator, such as `registry.corp:5000`, with http:// if they have no TLS.
    """

    def __init__(self, known: Sequence[str] = (), *, seconds: float = SECONDS) -> None:
        self._plain = {name.removeprefix("http://") for name in known if name.startswith("http://")}
        self._trusted = {name.removeprefix("http://").removeprefix("https://").rstrip("/") for name in known}
        self._seconds = seconds
        self._configs: BoundedCache[str, Command] = BoundedCache(CONFIGS)

    async def command_of(
        self, image: str, credentials: Credentials | None = None, architectures: Sequence[str] = ()
    ) -> Command:
        """Return the command of the Linux image for the first available architecture, else for any.

        Raises RegistryError.
        """
        import aiohttp

        try:
            reference = parse_reference(image)
        except DocumentError as error:
            raise RegistryError(error.message) from error
        refused: list[str] = []
        resolver = _guarded({name.partition(":")[0] for name in self._trusted}, refused)
        connector = aiohttp.TCPConnector(resolver=resolver, use_dns_cache=False, force_close=True)
        timeout = aiohttp.ClientTimeout(total=self._seconds)
        jar = aiohttp.DummyCookieJar()
        try:
            async with (
                asyncio.timeout(self._seconds),
                aiohttp.ClientSession(
                    connector=connector, timeout=timeout, trust_env=False, cookie_jar=jar
                ) as session,
            ):
                return await _Lookup(
                    session, reference, credentials, self._plain, self._trusted, self._configs, architectures
                ).run()
        except TimeoutError:
            raise RegistryError(f"{reference.host} did not answer within {self._seconds:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if refused:
                raise RegistryError(_not_allowed(refused[0])) from None
            raise RegistryError(f"{reference.host} cannot be reached: {type(error).__name__}") from None


def _guarded(trusted: set[str], refused: list[str]) -> Any:
    """Return a DNS resolver. Host names with forbidden addresses are added to `refused`."""
    from aiohttp.abc import AbstractResolver

    class Guarded(AbstractResolver):
        """Resolves to public addresses only; trusted names may have any address."""

        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
        ) -> list[ResolveResult]:
            entries = await asyncio.get_running_loop().getaddrinfo(
                host, port, type=socket.SOCK_STREAM, family=family
            )
            results: list[ResolveResult] = []
            for kind, _, proto, _, where in entries:
                address = str(where[0])
                if host not in trusted and not _PUBLIC.allows(ipaddress.ip_address(address.partition("%")[0])):
                    refused.append(host)
                    raise OSError("refused")
                results.append(
                    {"hostname": host, "host": address, "port": port, "family": kind, "proto": proto, "flags": 0}
                )
            return results

        async def close(self) -> None:
            return None

    return Guarded()


class _Lookup(Struct):
    """Reads one image: its manifest, by an index if necessary, and its configuration."""

    session: aiohttp.ClientSession
    reference: ImageReference
    credentials: Credentials | None
    plain: set[str]
    trusted: set[str]
    configs: BoundedCache[str, Command]
    architectures: Sequence[str]
    authorization: str = ""

    async def run(self) -> Command:
        manifest = await self._manifest(self.reference.digest or self.reference.tag)
        if manifest.get("mediaType") in _INDEXES or "manifests" in manifest:
            manifest = await self._manifest(_platform(manifest, self.architectures))
        digest = str((manifest.get("config") or {}).get("digest") or "")
        if not _DIGEST.fullmatch(digest):
            raise RegistryError(f"the manifest of {self.reference.name} names no configuration of an image")
        if (known := self.configs.get(digest)) is not None:
            return known
        data = await self._get(f"/v2/{self.reference.repository}/blobs/{digest}", accept="*/*")
        if f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
            raise RegistryError(f"the configuration of {self.reference.name} has another digest than {digest}")
        config = _document(data).get("config")
        made = Command(*(_words(config, field) for field in ("Entrypoint", "Cmd")))
        self.configs.put(digest, made)
        return made

    async def _manifest(self, name: str) -> Mapping[str, Any]:
        path = f"/v2/{self.reference.repository}/manifests/{name}"
        data = await self._get(path, accept=", ".join((*_INDEXES, *_MANIFESTS)))
        if name.startswith("sha256:") and f"sha256:{hashlib.sha256(data).hexdigest()}" != name:
            raise RegistryError(f"the manifest of {self.reference.name} has another digest than {name}")
        return _document(data)

    async def _get(self, path: str, *, accept: str) -> bytes:
        host = self.reference.host
        url = f"{'http' if host in self.plain else 'https'}://{host}{path}"
        status, headers, data = await self._follow(url, accept)
        if status == 401 and not self.authorization:
            await self._authorize(headers.get("WWW-Authenticate") or "", url)
            status, headers, data = await self._follow(url, accept)
        if status in (401, 403):
            how = "its pull secret was refused" if self.credentials else "no pull secret fits it"
            raise RegistryError(f"{host} answered {status} for {self.reference.name}: {how}")
        if status != 200:
            raise RegistryError(f"{host} answered {status} for {self.reference.name}")
        return data

    async def _authorize(self, challenge: str, url: str) -> None:
        """Get the credentials that the registry asks for: a token, or the password itself."""
        kind, _, rest = challenge.partition(" ")
        if kind.lower() == "basic" and self.credentials is not None:
            self.authorization = self.credentials.header
        if kind.lower() != "bearer":
            return
        fields = dict(_CHALLENGE.findall(rest))
        query = {key: fields[key] for key in ("service", "scope") if fields.get(key)}
        query.setdefault("scope", f"repository:{self.reference.repository}:pull")
        realm = urljoin(url, fields.get("realm") or "")
        where = f"{realm}{'&' if '?' in realm else '?'}{urlencode(query)}"
        headers = {"Authorization": self.credentials.header} if self.credentials is not None else {}
        status, _, data = await self._once(where, headers, TOKEN_BYTES)
        if status != 200:
            raise RegistryError(f"the token server of {self.reference.host} answered {status}")
        document = _document(data)
        token = document.get("token") or document.get("access_token")
        if not isinstance(token, str):
            raise RegistryError(f"the token server of {self.reference.host} gave no token")
        self.authorization = f"Bearer {token}"

    async def _follow(self, url: str, accept: str) -> tuple[int, Mapping[str, str], bytes]:
        start = urlsplit(url).netloc
        for _ in range(REDIRECTS + 1):
            headers = {"Accept": accept}
            if self.authorization and urlsplit(url).netloc == start:
                headers["Authorization"] = self.authorization
            status, answered, data = await self._once(url, headers, DOCUMENT_BYTES)
            if status not in (301, 302, 303, 307, 308) or not answered.get("Location"):
                return status, answered, data
            url = urljoin(url, answered["Location"])
        raise RegistryError(f"{self.reference.host} redirects more than {REDIRECTS} times")

    async def _once(self, url: str, headers: Mapping[str, str], most: int) -> tuple[int, Mapping[str, str], bytes]:
        """Send one request, if its address is allowed."""
        self._check(url)
        given = {"User-Agent": "moorage", "Accept-Encoding": "identity", **headers}
        async with self.session.get(url, headers=given, allow_redirects=False) as answer:
            data = b""
            if answer.status == 200:
                async for chunk in answer.content.iter_chunked(64 * 1024):
                    data += chunk
                    if len(data) > most:
                        raise RegistryError(f"{urlsplit(url).hostname} answers with more than {most} bytes")
            return answer.status, answer.headers, data

    def _check(self, url: str) -> None:
        """Allow https, and no literal private addresses: a literal address is not passed to the resolver."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        if parts.scheme != "https" and not (parts.scheme == "http" and parts.netloc in self.plain):
            raise RegistryError(f"{parts.netloc or url[:100]!r} is not reached by https")
        try:
            literal = ipaddress.ip_address(host)
        except ValueError:
            return
        if parts.netloc not in self.trusted and not _PUBLIC.allows(literal):
            raise RegistryError(_not_allowed(host))


def credentials_of(configs: Sequence[Mapping[str, Any]], reference: ImageReference) -> Credentials | None:
    """Return the credentials for an image from `.dockerconfigjson` documents.

    As in kubelets, the longest path wins.
    """
    names = {reference.host}
    if reference.host == "registry-1.docker.io":
        names |= {"docker.io", "index.docker.io"}
    fitting: list[tuple[int, Credentials]] = []
    for config in configs:
        auths = config.get("auths") if isinstance(config, Mapping) else None
        for key, entry in (auths if isinstance(auths, Mapping) else {}).items():
            plain = str(key).removeprefix("https://").removeprefix("http://").rstrip("/")
            host, _, path = plain.partition("/")
            path = "" if path in ("v1", "v2") else path
            inside = not path or reference.repository == path or reference.repository.startswith(f"{path}/")
            if host in names and inside and (made := _credentials(entry)) is not None:
                fitting.append((len(path), made))
    return max(fitting, key=lambda row: row[0])[1] if fitting else None


def _credentials(entry: Any) -> Credentials | None:
    if not isinstance(entry, Mapping):
        return None
    user, password = str(entry.get("username") or ""), str(entry.get("password") or "")
    if entry.get("auth"):
        try:
            user, _, password = base64.b64decode(str(entry["auth"])).decode().partition(":")
        except ValueError:
            return None
    return Credentials(user, password) if user and password else None


def _platform(index: Mapping[str, Any], architectures: Sequence[str]) -> str:
    """Return the digest of the Linux image for the first available architecture, else of the first Linux image."""
    fitting: dict[str, str] = {}
    for entry in index.get("manifests") or ():
        platform = (entry.get("platform") if isinstance(entry, Mapping) else None) or {}
        if platform.get("os", "linux") == "linux" and _DIGEST.fullmatch(str(entry.get("digest"))):
            fitting.setdefault(str(platform.get("architecture") or ""), str(entry["digest"]))
    if not fitting:
        raise RegistryError("the index of the image names none for Linux")
    return next((fitting[name] for name in architectures if name in fitting), next(iter(fitting.values())))


def _document(data: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, Mapping):
        raise RegistryError("the registry's answer is not a JSON object")
    return document


def _words(config: Any, field: str) -> tuple[str, ...]:
    words = config.get(field) if isinstance(config, Mapping) else None
    return tuple(str(word) for word in words) if isinstance(words, list) else ()


def _not_allowed(host: str) -> str:
    return f"{host} is not a public address, and the administrator does not name it in MOORAGE_REGISTRIES"
