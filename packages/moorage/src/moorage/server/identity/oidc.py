"""An OpenID Connect provider: discovery, the authorization code flow with PKCE, and checks of existing logins.

https://openid.net/specs/openid-connect-core-1_0.html, https://www.rfc-editor.org/rfc/rfc7636 (PKCE),
https://openid.net/specs/openid-connect-discovery-1_0.html
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from msgspec import Struct

from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.documents import parse_json
from moorage_kube.errors import DocumentError, MoorageError, UsageError

if TYPE_CHECKING:
    import aiohttp

log = logging.getLogger(__name__)

ALGORITHMS = ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "EdDSA")
ANSWER_SECONDS = 10.0
ANSWER_BYTES = 1024 * 1024
DISCOVERY_SECONDS = 3600.0
KEYS_AGAIN_SECONDS = 10.0  # an unknown key id has the keys read again, at most this often
LEEWAY_SECONDS = 60.0  # by how much the provider's clock may differ from ours
GROUPS_MAX = 500
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class ProviderAway(MoorageError):
    """The provider gives no usable answer now; existing sessions stay."""


class Refused(MoorageError):
    """The provider, or its answer, does not let this person in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSettings:
    """An administrator's settings for the provider. Raises UsageError for invalid ones."""

    issuer: str
    client_id: str
    client_secret: str = field(default="", repr=False)
    client_secret_file: Path | None = None  # read at every use, so that it can be changed
    scopes: tuple[str, ...] = ("openid", "email", "profile", "offline_access")
    name_claim: str = "email"
    groups_claim: str = "groups"
    label: str = ""  # on the button

    def __post_init__(self) -> None:
        check_address(self.issuer, "the issuer")
        if not self.client_id:
            raise UsageError("an OIDC provider needs a client id")
        if "openid" not in self.scopes:
            raise UsageError("the scopes lack openid", hint="without it there is no ID token")

    def secret(self) -> str:
        if self.client_secret_file is not None:
            try:
                return self.client_secret_file.read_text().strip()
            except OSError as error:
                raise ProviderAway(f"the client secret cannot be read: {error}") from error
        return self.client_secret


class Login(Struct, frozen=True):
    """The provider's answer about a person."""

    subject: str
    name: str
    groups: tuple[str, ...]
    refresh_token: str  # empty: it gave none
    expires: float  # seconds since 1970, of the ID token; 0 where there was none


def check_address(url: str, what: str) -> None:
    """Raise UsageError unless a URL is an https address, or an address of this machine."""
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return
    if parts.scheme == "http" and parts.hostname in LOOPBACK:
        return
    raise UsageError(f"{what} {url!r} is not an https address", hint="http is allowed for localhost only")


def new_verifier() -> str:
    return secrets.token_urlsafe(48)


def challenge_of(verifier: str) -> str:
    """The S256 challenge of PKCE."""
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()


class Provider:
    """One provider. Use from one event loop; `close` at the end."""

    def __init__(self, settings: ProviderSettings, *, clock: Clock = SYSTEM) -> None:
        self.settings = settings
        self._clock = clock
        self._http: aiohttp.ClientSession | None = None
        self._told: tuple[float, dict[str, Any]] | None = None
        self._keys: dict[str, Any] = {}
        self._keys_at: float | None = None
        self._lock = asyncio.Lock()

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def authorization_url(self, *, redirect: str, state: str, nonce: str, verifier: str) -> str:
        """The provider's address to which the browser is sent for login."""
        discovery = await self._discovered()
        query = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": redirect,
            "scope": " ".join(self.settings.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge_of(verifier),
            "code_challenge_method": "S256",
        }
        address = str(discovery["authorization_endpoint"])
        return f"{address}{'&' if '?' in address else '?'}{urlencode(query)}"

    async def exchange(self, code: str, *, redirect: str, nonce: str, verifier: str) -> Login:
        """Return the login of a code. Raises Refused and ProviderAway."""
        answer = await self._ask_token(
            {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect, "code_verifier": verifier}
        )
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise Refused("the provider sent no ID token", hint="its client needs the scope openid")
        claims = await self.verified(token, nonce=nonce)
        claims = await self._with_userinfo(claims, answer)
        return self._login(claims, str(answer.get("refresh_token") or ""), float(claims["exp"]))

    async def renew(self, refresh_token: str, *, subject: str) -> Login:
        """Ask whether a login is still valid. If the provider sends no new refresh token, the old one stays.

        `subject`: the expected user of the token. Raises Refused if the login is
        invalid, ProviderAway if the provider does not answer.
        """
        answer = await self._ask_token({"grant_type": "refresh_token", "refresh_token": refresh_token})
        token = answer.get("id_token")
        claims = await self.verified(token) if isinstance(token, str) else await self._userinfo(answer)
        if isinstance(token, str):
            claims = await self._with_userinfo(claims, answer)
        new = str(answer.get("refresh_token") or refresh_token)
        login = self._login(claims, new, float(claims.get("exp") or 0), is_renewal=True)
        if login.subject != subject:
            raise Refused("the provider answers for another person than the one who logged in")
        return login

    async def verified(self, token: str, *, nonce: str | None = None) -> dict[str, Any]:
        """The claims of an ID token, after a check of signature, audience and expiry. Raises Refused."""
        import jwt

        # the header is not trusted: it only selects an allowed algorithm and a known key
        try:
            head = jwt.get_unverified_header(token)
        except jwt.PyJWTError as error:
            raise Refused(f"the provider's ID token cannot be read: {error}") from error
        algorithm = head.get("alg")
        if algorithm not in ALGORITHMS:
            raise Refused(
                f"the provider's ID token is signed by {algorithm!r}", hint=f"allowed: {', '.join(ALGORITHMS)}"
            )
        # signature, issuer and audience
        key = await self._key(str(head.get("kid") or ""))
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key=key,
                algorithms=[str(algorithm)],
                audience=self.settings.client_id,
                issuer=self.settings.issuer,
                options={  # times are judged below, by our clock
                    "require": ["exp", "iat", "iss", "aud", "sub"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except jwt.PyJWTError as error:
            raise Refused(f"the provider's ID token is not good: {error}") from error
        # times, and the client and the login that the token was issued for
        self._check_times(claims)
        if (
            isinstance(claims["aud"], list)
            and len(claims["aud"]) > 1
            and claims.get("azp") != self.settings.client_id
        ):
            raise Refused("the provider's ID token was made for another client (azp)")
        if nonce is not None and claims.get("nonce") != nonce:
            raise Refused("the provider's ID token answers another login (nonce)")
        return claims

    def _check_times(self, claims: Mapping[str, Any]) -> None:
        now = self._clock.now().timestamp()
        try:
            ends, made, starts = float(claims["exp"]), float(claims["iat"]), float(claims.get("nbf") or 0)
        except (TypeError, ValueError) as error:
            raise Refused("the provider's ID token has times that are no numbers") from error
        if now >= ends + LEEWAY_SECONDS:
            raise Refused("the provider's ID token has expired")
        if max(made, starts) > now + LEEWAY_SECONDS:
            raise Refused("the provider's ID token is from the future", hint="compare the clocks of both machines")

    def _login(
        self, claims: Mapping[str, Any], refresh_token: str, expires: float, *, is_renewal: bool = False
    ) -> Login:
        """Read a login from the claims of an ID token.

        `is_renewal`: the user logged in before, so an address without the claim `email_verified` counts as
        verified.
        """
        settings = self.settings
        name = claims.get(settings.name_claim)
        if not isinstance(name, str) or not name.strip():
            raise Refused(f"the provider's ID token has no claim {settings.name_claim!r}, which gives the name")
        if settings.name_claim == "email" and claims.get("email_verified", is_renewal) is not True:
            is_missing = "email_verified" not in claims
            raise Refused(
                f"the provider has not verified the address {name}"
                + (": its ID token has no claim 'email_verified'" if is_missing else ""),
                hint="have it send email_verified, or name people by another claim: MOORAGE_OIDC_NAME_CLAIM=sub",
            )
        groups = claims.get(settings.groups_claim) or ()
        if isinstance(groups, str):
            groups = [groups]
        if not isinstance(groups, (list, tuple)) or len(groups) > GROUPS_MAX:
            raise Refused(f"the claim {settings.groups_claim!r} is not a list of at most {GROUPS_MAX} groups")
        subject = f"{settings.issuer} {claims['sub']}"
        kept = tuple(group for group in groups if isinstance(group, str) and 0 < len(group) <= 256)
        return Login(subject, name.strip(), kept, refresh_token, expires)

    async def _with_userinfo(self, claims: dict[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
        """Add the claims of the userinfo endpoint; providers with small ID tokens have the rest there."""
        settings = self.settings
        if settings.name_claim in claims:
            return claims
        more = await self._userinfo(answer)
        if more.get("sub") != claims["sub"]:
            raise Refused("the provider's two answers are about different people")
        return more | claims

    async def _userinfo(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        discovery = await self._discovered()
        if not discovery.get("userinfo_endpoint") or not answer.get("access_token"):
            raise ProviderAway("the provider renewed the login but named no user")
        headers = {"Authorization": f"Bearer {answer['access_token']}"}
        status, body = await self._ask("GET", str(discovery["userinfo_endpoint"]), headers=headers)
        if status in (401, 403):
            raise Refused("the provider does not accept the token it has just given")
        if status != 200 or not isinstance(body.get("sub"), str):
            raise ProviderAway(f"the provider's userinfo endpoint answered HTTP {status}")
        return body

    async def _ask_token(self, form: dict[str, str]) -> dict[str, Any]:
        discovery, settings = await self._discovered(), self.settings
        secret = await asyncio.to_thread(settings.secret)
        headers = {}
        methods = discovery.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        if secret and "client_secret_basic" in methods:
            pair = f"{quote(settings.client_id, safe='')}:{quote(secret, safe='')}".encode()
            headers["Authorization"] = "Basic " + base64.b64encode(pair).decode()
        else:
            form = form | {"client_id": settings.client_id} | ({"client_secret": secret} if secret else {})
        status, body = await self._ask("POST", str(discovery["token_endpoint"]), headers=headers, data=form)
        if status == 200 and isinstance(body.get("access_token"), str):
            return body
        error = str(body.get("error") or f"HTTP {status}")
        if error in ("invalid_grant", "access_denied", "login_required", "interaction_required"):
            raise Refused(f"the provider does not let this login go on: {error}")
        # a wrong client secret, say, is our fault and no reason to put people out
        log.warning("the provider's token endpoint refuses us", extra={"error": error, "status": status})
        raise ProviderAway(f"the provider's token endpoint answered {error}")

    async def _discovered(self) -> dict[str, Any]:
        now = self._clock.monotonic()
        if self._told is not None and now < self._told[0]:
            return self._told[1]
        issuer = self.settings.issuer
        try:
            status, body = await self._ask("GET", issuer.rstrip("/") + "/.well-known/openid-configuration")
            if status != 200:
                raise ProviderAway(f"the provider's discovery document answered HTTP {status}")
        except ProviderAway:
            if self._told is None:
                raise
            return self._told[1]
        if body.get("issuer") != issuer:
            raise ProviderAway(
                f"the provider calls itself {body.get('issuer')!r}, and {issuer!r} is configured",
                hint="give the issuer exactly as the provider writes it",
            )
        for endpoint in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            try:
                check_address(str(body.get(endpoint) or ""), f"the provider's {endpoint}")
            except UsageError as error:
                raise ProviderAway(error.message) from error
        self._told = (now + DISCOVERY_SECONDS, body)
        return body

    async def _key(self, identity: str) -> Any:
        """The provider's key with this ID. For an unknown ID the keys are fetched again."""
        async with self._lock:
            now = self._clock.monotonic()
            stale = self._keys_at is None or now >= self._keys_at + DISCOVERY_SECONDS
            unknown = identity not in self._keys and (identity or len(self._keys) != 1)
            if stale or (unknown and now >= (self._keys_at or 0) + KEYS_AGAIN_SECONDS):
                await self._read_keys(now)
        if identity in self._keys:
            return self._keys[identity]
        if not identity and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        raise Refused(f"the provider's ID token is signed by a key it does not publish ({identity or 'unnamed'})")

    async def _read_keys(self, now: float) -> None:
        import jwt

        discovery = await self._discovered()
        try:
            status, body = await self._ask("GET", str(discovery["jwks_uri"]))
            if status != 200 or not isinstance(body.get("keys"), list):
                raise ProviderAway(f"the provider's keys answered HTTP {status}")
        except ProviderAway:
            if not self._keys:
                raise
            return
        keys: dict[str, Any] = {}
        for key in body["keys"]:
            if not isinstance(key, dict) or key.get("use") not in (None, "sig") or key.get("kty") == "oct":
                continue
            try:
                keys[str(key.get("kid") or "")] = jwt.PyJWK.from_dict(key)
            except jwt.PyJWTError as error:
                log.info("a key of the provider cannot be used", extra={"error": str(error)})
        self._keys, self._keys_at = keys, now

    async def _ask(self, method: str, url: str, **sent: Any) -> tuple[int, dict[str, Any]]:
        import aiohttp

        if self._http is None:
            self._http = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS), cookie_jar=aiohttp.DummyCookieJar()
            )
        headers = {"Accept": "application/json"} | sent.pop("headers", {})
        try:
            async with self._http.request(method, url, allow_redirects=False, headers=headers, **sent) as answer:
                body, status = b"", answer.status
                async for chunk in answer.content.iter_any():
                    body += chunk
                    if len(body) > ANSWER_BYTES:
                        raise ProviderAway("the provider's answer is too long")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ProviderAway(f"the provider at {urlsplit(url).netloc} gives no answer: {error!r}") from error
        try:
            document = parse_json(body)
        except DocumentError:
            document = {}
        return status, document if isinstance(document, dict) else {}
