"""Admission webhooks: send `admission.k8s.io/v1` reviews to the URLs of the stored configurations.

Only `clientConfig.url` is supported; there is no service network. Of `matchConditions` (CEL) only comparisons of
text are supported; a configuration with other conditions is refused.
https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from moorage_kube.bodies import BodyTooLong, read_whole
from moorage_kube.documents import parse_json
from moorage_kube.errors import ApiError, BadRequest, DocumentError, Forbidden, ServerError
from moorage_kube.resources import MUTATING_WEBHOOKS, NAMESPACES, VALIDATING_WEBHOOKS, Obj
from moorage_kube.selectors import label_selector_of
from moorage_local.apiserver.admission.conditions import Request, parse_condition
from moorage_local.apiserver.kinds.kind import Kind
from moorage_local.apiserver.pipeline.calls import Admission
from moorage_local.apiserver.pipeline.pipeline import Pipeline
from moorage_local.apiserver.wire.patch import json_patch

if TYPE_CHECKING:
    import ssl

log = logging.getLogger(__name__)

_EXEMPT_GROUPS = frozenset({"admissionregistration.k8s.io", "authentication.k8s.io", "authorization.k8s.io"})
MAX_ANSWER_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """One webhook of a configuration."""

    configuration: str
    name: str
    spec: Mapping[str, Any]

    @property
    def ignorable(self) -> bool:
        return bool(self.spec.get("failurePolicy") == "Ignore")

    @property
    def timeout_seconds(self) -> int:
        return int(self.spec.get("timeoutSeconds") or 10)


class CallFailed(Exception):
    """The webhook gave no usable answer."""


class Webhooks:
    """Implements `pipeline.Admitter`."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._mutating: tuple[Webhook, ...] = ()
        self._validating: tuple[Webhook, ...] = ()
        self._session: Any = None
        self._tls: dict[str, ssl.SSLContext] = {}

    def load(self) -> None:
        self._mutating = self._read(MUTATING_WEBHOOKS)
        self._validating = self._read(VALIDATING_WEBHOOKS)

    def stored(self, kind: Kind, _before: Obj | None, _after: Obj | None) -> None:
        if kind.resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
            self.load()

    async def stop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _read(self, resource: Any) -> tuple[Webhook, ...]:
        kind = self._pipeline.kinds.of(resource)
        assert kind is not None
        return tuple(
            Webhook(configuration=configuration["metadata"]["name"], name=hook["name"], spec=hook)
            for configuration in sorted(
                self._pipeline.every(kind), key=lambda configuration: str(configuration["metadata"]["name"])
            )
            for hook in configuration.get("webhooks") or ()
        )

    async def mutate(self, asked: Admission) -> Obj | None:
        obj = asked.obj
        if not self._mutating or asked.kind.resource.group in _EXEMPT_GROUPS:
            return obj
        changed_after: dict[int, bool] = {}
        called: list[int] = []
        for at, hook in enumerate(self._mutating):
            if not self._matches(hook, asked, obj):
                continue
            called.append(at)
            new = await self._mutate_once(hook, asked, obj)
            if new != obj:
                obj = new
                for earlier in called[:-1]:
                    changed_after[earlier] = True
        for at in called:
            hook = self._mutating[at]
            if changed_after.get(at) and hook.spec.get("reinvocationPolicy") == "IfNeeded":
                obj = await self._mutate_once(hook, asked, obj)
        return obj

    async def validate(self, asked: Admission) -> None:
        if asked.operation == "DELETE" and self._mutating:
            await self.mutate(asked)
        if not self._validating or asked.kind.resource.group in _EXEMPT_GROUPS:
            return
        wanted = [hook for hook in self._validating if self._matches(hook, asked, asked.obj)]
        if not wanted:
            return
        results = await asyncio.gather(
            *(self._ask(hook, asked, asked.obj) for hook in wanted), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _mutate_once(self, hook: Webhook, asked: Admission, obj: Obj | None) -> Obj | None:
        response = await self._ask(hook, asked, obj)
        if response is None or not response.get("patch") or obj is None:
            return obj
        if response.get("patchType") != "JSONPatch":
            raise ServerError(
                f'Internal error occurred: admission webhook "{hook.name}" returned a patch of type'
                f" {response.get('patchType')!r}; only JSONPatch is known"
            )
        try:
            operations = parse_json(base64.b64decode(response["patch"], validate=True), bytes_max=MAX_ANSWER_BYTES)
            patched = json_patch(obj, operations)
        except (ApiError, binascii.Error, ValueError, TypeError) as error:
            raise ServerError(
                f'Internal error occurred: the patch of admission webhook "{hook.name}" does not apply: {error}'
            ) from error
        if not isinstance(patched, dict):
            raise ServerError(f'Internal error occurred: admission webhook "{hook.name}" left no object')
        return patched

    # --- does it concern the webhook?

    def _matches(self, hook: Webhook, asked: Admission, obj: Obj | None) -> bool:
        if not any(self._rule_matches(rule, hook, asked) for rule in hook.spec.get("rules") or ()):
            return False
        selector = hook.spec.get("objectSelector") or {}
        if selector:
            wanted = label_selector_of(selector)
            if not any(
                candidate is not None and wanted.matches((candidate.get("metadata") or {}).get("labels"))
                for candidate in (obj, asked.old)
            ):
                return False
        selector = hook.spec.get("namespaceSelector") or {}
        if selector:
            labels = self._namespace_labels(asked, obj)
            if labels is not None and not label_selector_of(selector).matches(labels):
                return False
        conditions = hook.spec.get("matchConditions")
        if not conditions:
            return True
        fields = _condition_fields(asked)
        return all(parse_condition(condition["expression"])(fields) for condition in conditions)

    def _rule_matches(self, rule: Mapping[str, Any], hook: Webhook, asked: Admission) -> bool:
        where = asked.kind.resource
        operations = rule.get("operations") or ()
        if "*" not in operations and asked.operation not in operations:
            return False
        scope = rule.get("scope", "*")
        if scope != "*" and (scope == "Namespaced") != where.namespaced:
            return False
        groups, versions = rule.get("apiGroups") or (), rule.get("apiVersions") or ()
        if "*" not in groups and where.group not in groups:
            return False
        if "*" not in versions and where.version not in versions:
            served = set(self._pipeline.kinds.groups().get(where.group, ()))
            if hook.spec.get("matchPolicy") == "Exact" or not served & set(versions):
                return False
        sub = asked.subresource or ""
        for resource in rule.get("resources") or ():
            plural, _, subresource = resource.partition("/")
            if plural in ("*", where.plural) and (
                subresource == sub or (subresource == "*" and (sub or plural == "*"))
            ):
                return True
            if resource == "*/*":
                return True
        return False

    def _namespace_labels(self, asked: Admission, obj: Obj | None) -> Mapping[str, str] | None:
        """Return the labels that the namespace selector reads.

        None for cluster-scoped objects, which always match.
        """
        if asked.kind.resource == NAMESPACES:
            shown = obj if obj is not None else asked.old
            return ((shown or {}).get("metadata") or {}).get("labels") or {}
        if not asked.namespace:
            return None
        kind = self._pipeline.kinds.of(NAMESPACES)
        assert kind is not None
        stored = self._pipeline.peek(kind, asked.namespace)
        return {} if stored is None else stored["metadata"].get("labels") or {}

    # --- the call

    async def _ask(self, hook: Webhook, asked: Admission, obj: Obj | None) -> Obj | None:
        """Return the response if it allows the request; None if the call failed and the failure may be ignored.

        Raises an error if the webhook refuses the request.
        """
        if asked.call.dry_run and hook.spec.get("sideEffects") not in ("None", "NoneOnDryRun"):
            raise BadRequest(f'admission webhook "{hook.name}" does not support dry run')
        review = _review(asked, obj)
        try:
            response = await self._post(hook, review)
        except CallFailed as error:
            if hook.ignorable:
                log.warning("webhook failed, ignored", extra={"webhook": hook.name, "error": str(error)})
                return None
            raise ServerError(
                f'Internal error occurred: failed calling webhook "{hook.name}": failed to call webhook: {error}'
            ) from error
        for warning in response.get("warnings") or ():
            asked.call.warn(str(warning))
        if response.get("allowed"):
            return response
        status = response.get("status") or {}
        explanation = status.get("message") or status.get("reason") or ""
        message = f'admission webhook "{hook.name}" denied the request' + (
            f": {explanation}" if explanation else " without explanation"
        )
        code = int(status.get("code") or 403)
        if not 400 <= code < 600:
            code = 403
        reason = status.get("reason") or ("Forbidden" if code == 403 else "")
        from moorage_kube.errors import api_error

        if code == 403 and reason == "Forbidden":
            raise Forbidden(message, details=status.get("details") or {})
        raise api_error(code, {"message": message, "reason": reason, "details": status.get("details")})

    async def _post(self, hook: Webhook, review: Obj) -> Obj:
        import aiohttp

        # pods have no service network here: only a URL can be called
        config = hook.spec.get("clientConfig") or {}
        url = config.get("url")
        if not url:
            raise CallFailed("clientConfig.service cannot be reached on the local cluster; use clientConfig.url")
        separator = "&" if "?" in url else "?"
        url = f"{url}{separator}timeout={hook.timeout_seconds}s"
        if self._session is None:
            self._session = aiohttp.ClientSession()
        # a webhook that is slow, redirects or sends too much must not hold up the request
        try:
            async with self._session.post(
                url,
                data=io.BytesIO(msgspec.json.encode(review)),
                headers={"content-type": "application/json", "accept": "application/json"},
                ssl=self._tls_of(config.get("caBundle") or ""),
                timeout=aiohttp.ClientTimeout(total=hook.timeout_seconds),
                allow_redirects=False,
            ) as answer:
                if answer.status != 200:
                    raise CallFailed(f"expected response code 200, got {answer.status}")
                body = await read_whole(answer.content.iter_any(), MAX_ANSWER_BYTES)
        except BodyTooLong as error:
            raise CallFailed(f'Post "{url}": the answer cannot be read: {error}') from error
        except TimeoutError as error:
            raise CallFailed(f'Post "{url}": context deadline exceeded') from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise CallFailed(f'Post "{url}": {error}') from error
        # the answer is untrusted: check all fields that are used
        try:
            decoded = parse_json(body, bytes_max=MAX_ANSWER_BYTES)
            response = decoded["response"]
            if response["uid"] != review["request"]["uid"]:
                raise CallFailed(f"expected response.uid={review['request']['uid']}, got {response['uid']!r}")
            if not isinstance(response.get("allowed"), bool):
                raise CallFailed("response.allowed is missing")
            _check_shape(response)
        except (DocumentError, KeyError, TypeError, AttributeError) as error:
            raise CallFailed(f"the answer is not a valid AdmissionReview: {error}") from error
        answered: Obj = response
        return answered

    def _tls_of(self, bundle: str) -> ssl.SSLContext:
        context = self._tls.get(bundle)
        if context is None:
            import ssl

            try:
                pem = base64.b64decode(bundle).decode() if bundle else None
                context = ssl.create_default_context(cadata=pem)
            except (ssl.SSLError, binascii.Error, ValueError) as error:
                raise CallFailed(f"caBundle is unreadable: {error}") from error
            self._tls[bundle] = context
        return context


def _check_shape(response: Obj) -> None:
    """Raise TypeError if a field of the response does not have the type of an AdmissionResponse."""
    status = response.get("status") or {}
    for name, value, wanted in (
        ("warnings", response.get("warnings"), list),
        ("patch", response.get("patch"), str),
        ("status", status, dict),
        ("status.code", status.get("code") if isinstance(status, dict) else None, int),
        ("status.message", status.get("message") if isinstance(status, dict) else None, str),
        ("status.reason", status.get("reason") if isinstance(status, dict) else None, str),
        ("status.details", status.get("details") if isinstance(status, dict) else None, dict),
    ):
        if value is not None and not isinstance(value, wanted):
            raise TypeError(f"response.{name} must be a {wanted.__name__}")


def _condition_fields(asked: Admission) -> Request:
    """Return the fields of a review request that match conditions may read (`conditions.FIELDS`)."""
    where = asked.kind.resource
    return {
        "name": asked.name or "",
        "namespace": asked.namespace or "",
        "operation": asked.operation,
        "subResource": asked.subresource or "",
        "resource.group": where.group,
        "resource.version": where.version,
        "resource.resource": where.plural,
        "userInfo.username": asked.call.user.name,
    }


def _review(asked: Admission, obj: Obj | None) -> Obj:
    where = asked.kind.resource
    kind = {"group": where.group, "version": where.version, "kind": where.kind}
    if asked.subresource and obj is not None and obj.get("kind"):  # such as Eviction of policy/v1
        group, _, version = str(obj.get("apiVersion", "")).rpartition("/")
        kind = {"group": group, "version": version, "kind": str(obj["kind"])}
    elif obj is not None and asked.kind.has_status and not asked.kind.custom and "status" not in obj:
        obj = {**obj, "status": {}}  # of built-in kinds the real server sends an empty one
    resource = {"group": where.group, "version": where.version, "resource": where.plural}
    request: Obj = {
        "uid": str(uuid.uuid4()),
        "kind": kind,
        "resource": resource,
        "requestKind": kind,
        "requestResource": resource,
        "name": asked.name,
        "operation": asked.operation,
        "userInfo": asked.call.user.to_obj(),
        "object": obj,
        "oldObject": asked.old,
        "dryRun": asked.call.dry_run,
        "options": asked.options,
    }
    if asked.namespace:
        request["namespace"] = asked.namespace
    if asked.subresource:
        request["subResource"] = request["requestSubResource"] = asked.subresource
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
