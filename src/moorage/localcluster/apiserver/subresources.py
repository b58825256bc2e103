"""Subresources that are more than one side of an object: binding, eviction, scale, token,
finalize, log; and reviews.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from moorage.apimachinery.meta import is_condition_true, with_condition
from moorage.apimachinery.resources import NAMESPACES, NODES, PDBS, PODS, SECRETS, SERVICEACCOUNTS, Obj, Resource
from moorage.apimachinery.selectors import label_selector_of
from moorage.clock import parse_rfc3339, rfc3339
from moorage.errors import ApiError, BadRequest, Conflict, NotFound, TooManyRequests
from moorage.localcluster.apiserver.auth import (
    ISSUER,
    UNAUTHENTICATED,
    Attributes,
    User,
    service_account_user,
)
from moorage.localcluster.apiserver.core import Core
from moorage.localcluster.apiserver.fields import FieldErrors
from moorage.localcluster.apiserver.kinds.builtin import BuiltinCodec
from moorage.localcluster.apiserver.kinds.kind import Kind
from moorage.localcluster.apiserver.pipeline.bodies import check_namespace, meta_of
from moorage.localcluster.apiserver.pipeline.calls import Call, DeleteOptions
from moorage.localcluster.apiserver.pipeline.refusals import not_found
from moorage.localcluster.apiserver.wire.options import delete_options_of

SUCCESS: Obj = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
TOKEN_SECONDS = 3600
TOKEN_SECONDS_MIN = 600
TOKEN_SECONDS_MAX = 2**32


BINDING = BuiltinCodec("io.k8s.api.core.v1.Binding", Resource("", "v1", "bindings", "Binding"))
EVICTION = BuiltinCodec("io.k8s.api.policy.v1.Eviction", Resource("policy", "v1", "evictions", "Eviction"))
SCALE = BuiltinCodec("io.k8s.api.autoscaling.v1.Scale", Resource("autoscaling", "v1", "scales", "Scale"))
NAMESPACE = BuiltinCodec("io.k8s.api.core.v1.Namespace", NAMESPACES)
TOKEN_REQUEST = BuiltinCodec(
    "io.k8s.api.authentication.v1.TokenRequest",
    Resource("authentication.k8s.io", "v1", "tokenrequests", "TokenRequest"),
)


def _read(body: Any, codec: BuiltinCodec) -> Obj:
    """The body as the Go type would hold it. Raises BadRequest for a value of another type."""
    return codec.decode(body).obj


def _named(body: Any, name: str, codec: BuiltinCodec) -> Obj:
    obj = _read(body, codec)
    given = meta_of(obj).get("name")
    if given and given != name:
        raise BadRequest(f"name in URL does not match name in {codec.resource.kind} object")
    return obj


# --- pods


async def bind(core: Core, call: Call, kind: Kind, name: str, namespace: str | None, body: Any) -> Obj:
    """`pods/binding`: put a pod on a node. Raises Conflict when it is bound, gated or going."""
    binding = _named(body, name, BINDING)
    check_namespace(kind.resource, meta_of(binding), namespace)
    node = (binding.get("target") or {}).get("name")
    if not node:
        raise BadRequest("target.name: Required value")
    meta = binding.get("metadata") or {}
    now = rfc3339(core.clock.now())

    async def make(pod: Obj) -> Obj:
        why = ""
        if meta.get("uid") and meta["uid"] != pod["metadata"]["uid"]:
            uid = pod["metadata"]["uid"]
            why = f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {uid}"
        elif pod["metadata"].get("deletionTimestamp"):
            why = f"pod {name} is being deleted, cannot be assigned to a host"
        elif pod["spec"].get("nodeName"):
            why = f'pod {name} is already assigned to node "{pod["spec"]["nodeName"]}"'
        elif pod["spec"].get("schedulingGates"):
            why = f"pod {name} has non-empty .spec.schedulingGates"
        if why:
            raise Conflict(
                f'Operation cannot be fulfilled on pods/binding "{name}": {why}',
                details={"name": name, "kind": "pods/binding"},
            )
        pod["spec"]["nodeName"] = node
        for key in ("annotations", "labels"):
            if meta.get(key):
                pod["metadata"][key] = {**(pod["metadata"].get(key) or {}), **meta[key]}
        status = pod.setdefault("status", {})
        status.pop("nominatedNodeName", None)
        status["conditions"] = _with_condition(status.get("conditions"), "PodScheduled", now)
        return pod

    await core.pipeline.write_raw(call, kind, name, namespace, make)
    return dict(SUCCESS)


def _with_condition(conditions: Any, kind: str, now: str, *, reason: str = "", message: str = "") -> list[Obj]:
    """Set to True; without empty reason and message, as the Go types leave them out."""
    made = with_condition(list(conditions or ()), kind, "True", now=now, reason=reason, message=message)
    return [{key: value for key, value in one.items() if value != "" or key == "status"} for one in made]


async def evict(core: Core, call: Call, kind: Kind, name: str, namespace: str | None, body: Any) -> Obj:
    """`pods/eviction`: delete a pod if its disruption budget lets it. Raises TooManyRequests when it does not."""
    eviction = _named(body, name, EVICTION)
    options_body = eviction.get("deleteOptions") or {}
    options = delete_options_of(options_body, {})
    if options_body.get("dryRun"):
        call.dry_run = True
    pod = core.pipeline.view(kind, core.pipeline.read(kind, name, namespace))
    phase = (pod.get("status") or {}).get("phase")
    free = phase in ("Succeeded", "Failed", "Pending") or bool(pod["metadata"].get("deletionTimestamp"))
    if not free:
        await _spend_budget(core, call, pod, namespace)
    if not call.dry_run:
        now = rfc3339(core.clock.now())

        async def mark(current: Obj) -> Obj:
            if options.uid and options.uid != current["metadata"]["uid"]:
                return current
            status = current.setdefault("status", {})
            status["conditions"] = _with_condition(
                status.get("conditions"),
                "DisruptionTarget",
                now,
                reason="EvictionByEvictionAPI",
                message="Eviction API: evicting",
            )
            return current

        await core.pipeline.write_raw(call, kind, name, namespace, mark)
        options = DeleteOptions(
            grace_period_seconds=options.grace_period_seconds, uid=options.uid, propagation=options.propagation
        )
    await core.pipeline.remove(call, kind, name, namespace, options)
    return dict(SUCCESS)


async def _spend_budget(core: Core, call: Call, pod: Obj, namespace: str | None) -> None:
    budgets = core.kind_of(PDBS)
    labels = pod["metadata"].get("labels") or {}
    matching = [
        one
        for one in core.pipeline.every(budgets, namespace)
        if (one.get("spec") or {}).get("selector") is not None
        and label_selector_of(one["spec"]["selector"]).matches(labels)
    ]
    if not matching:
        return
    if len(matching) > 1:
        raise ApiError(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
            status=500,
            reason="InternalError",
        )
    first = matching[0]
    if not is_condition_true(pod, "Ready"):
        status = first.get("status") or {}
        if (first["spec"].get("unhealthyPodEvictionPolicy")) == "AlwaysAllow":
            return
        wanted = status.get("desiredHealthy", 0)
        if wanted > 0 and status.get("currentHealthy", 0) >= wanted:
            return
    name = first["metadata"]["name"]
    now = rfc3339(core.clock.now())

    async def spend(budget: Obj) -> Obj:
        status = budget.setdefault("status", {})
        if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
            raise _too_many(f"The disruption budget {name} is still being processed by the server.", wait=10)
        if status.get("disruptionsAllowed", 0) <= 0:
            raise _too_many(
                f"The disruption budget {name} needs {status.get('desiredHealthy', 0)} healthy pods and has"
                f" {status.get('currentHealthy', 0)} currently"
            )
        status["disruptionsAllowed"] -= 1
        status["disruptedPods"] = {**(status.get("disruptedPods") or {}), pod["metadata"]["name"]: now}
        return budget

    await core.pipeline.write_raw(call, budgets, name, namespace, spend)


def _too_many(cause: str, wait: int = 0) -> TooManyRequests:
    details: Obj = {"causes": [{"reason": "DisruptionBudget", "message": cause}]}
    if wait:
        details["retryAfterSeconds"] = wait
    return TooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", details=details)


async def logs(
    core: Core, call: Call, name: str, namespace: str | None, **options: Any
) -> AsyncIterator[bytes] | None:
    """The stream of `pods/log`; the node agent is asked through `core.log_source`. None: the pod has no node."""
    kind = core.kind_of(PODS)
    core.pipeline.authorise(call, "get", kind, namespace, name, "log")
    pod = core.pipeline.view(kind, core.pipeline.read(kind, name, namespace))
    containers = [one["name"] for one in pod["spec"].get("containers") or ()]
    every = [one["name"] for one in pod["spec"].get("initContainers") or ()] + containers
    container = options.get("container")
    if container is None:
        wanted = (pod["metadata"].get("annotations") or {}).get("kubectl.kubernetes.io/default-container")
        if wanted in every:
            container = wanted
        elif len(containers) == 1:
            container = containers[0]
        else:
            raise BadRequest(
                f"a container name must be specified for pod {name}, choose one of: [{' '.join(containers)}]"
            )
    if container not in every:
        raise BadRequest(f"container {container} is not valid for pod {name}")
    node = pod["spec"].get("nodeName")
    if not node:
        return None
    if core.log_source is None or core.pipeline.peek(core.kind_of(NODES), node) is None:
        raise not_found(kind.resource, node)  # pods, as the real server says
    since = options.get("since_seconds")
    if since is None and options.get("since_time"):
        try:
            moment = parse_rfc3339(options["since_time"])
        except ValueError as error:
            raise BadRequest(str(error)) from None
        since = max(1, int((core.clock.now() - moment).total_seconds()) + 1)
    for key in ("tail_lines", "limit_bytes"):
        value = options.get(key)
        if value is not None and value < (1 if key == "limit_bytes" else 0):
            errors = FieldErrors()
            errors.invalid(_camel(key), value, "must be greater than or equal to 0")
            errors.raise_if_any(Resource("", "v1", "pods", "PodLogOptions"), name)
    source = core.log_source(
        pod,
        container,
        follow=options.get("follow", False),
        tail_lines=options.get("tail_lines"),
        since_seconds=since,
        timestamps=options.get("timestamps", False),
        previous=options.get("previous", False),
        limit_bytes=options.get("limit_bytes"),
    )
    return await _primed(source)


def _camel(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(part.capitalize() for part in rest)


async def _primed(source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Ask for the first piece, so that an error becomes an answer and not a broken stream.

    A source that has nothing yet is not waited for: only what it does before its first wait counts.
    """
    iterator = source.__aiter__()
    first = asyncio.ensure_future(anext(iterator))
    await asyncio.wait({first}, timeout=0.05)

    async def rest() -> AsyncIterator[bytes]:
        try:
            try:
                yield await first
            except StopAsyncIteration:
                return
            async for chunk in iterator:
                yield chunk
        finally:
            first.cancel()
            closing = getattr(iterator, "aclose", None)
            if closing is not None and first.done():
                await closing()

    if first.done() and (error := first.exception()) is not None and not isinstance(error, StopAsyncIteration):
        raise error
    return rest()


# --- scale


def scale_of(kind: Kind, obj: Obj) -> Obj:
    """The `autoscaling/v1` Scale of an object."""
    paths = kind.scale_paths
    meta = obj["metadata"]
    replicas = _at(obj, paths.get("specReplicasPath", ".spec.replicas"))
    status: Obj = {"replicas": _at(obj, paths.get("statusReplicasPath", ".status.replicas")) or 0}
    if kind.custom:
        selector = _at(obj, paths["labelSelectorPath"]) if paths.get("labelSelectorPath") else None
        if selector:
            status["selector"] = selector
    elif (obj.get("spec") or {}).get("selector"):
        selector = obj["spec"]["selector"]
        if "matchLabels" not in selector and "matchExpressions" not in selector:
            selector = {"matchLabels": selector}
        status["selector"] = str(label_selector_of(selector))
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: meta[key] for key in kept if key in meta},
        "spec": {"replicas": replicas} if replicas is not None else {},
        "status": status,
    }


async def set_scale(core: Core, call: Call, kind: Kind, name: str, namespace: str | None, scale: Any) -> Obj:
    """Write `spec.replicas` through a Scale."""
    scale = _read(scale, SCALE)
    check_namespace(kind.resource, meta_of(scale), namespace)
    wanted = (scale.get("spec") or {}).get("replicas", 0)
    errors = FieldErrors()
    if wanted < 0:
        errors.invalid("spec.replicas", wanted, "must be greater than or equal to 0")
    errors.raise_if_any(SCALE.resource, name)
    version = (scale.get("metadata") or {}).get("resourceVersion")
    path = kind.scale_paths.get("specReplicasPath", ".spec.replicas")

    async def make(obj: Obj) -> Obj:
        inner = obj
        *parents, last = path.strip(".").split(".")
        for key in parents:
            inner = inner.setdefault(key, {})
            if not isinstance(inner, dict):
                raise BadRequest(f"{path} cannot be set: {key} of the object is not an object")
        inner[last] = wanted
        if version:
            obj["metadata"]["resourceVersion"] = version
        else:
            obj["metadata"].pop("resourceVersion", None)
        return obj

    return scale_of(kind, await core.pipeline.write(call, kind, name, namespace, make, decode=True))


def _at(obj: Obj, path: str) -> Any:
    value: Any = obj
    for key in path.strip(".").split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


# --- namespaces


async def finalize(core: Core, call: Call, kind: Kind, name: str, body: Any) -> Obj:
    """`namespaces/finalize`: replace `spec.finalizers`; the last one gone, the namespace goes."""
    body = _read(body, NAMESPACE)
    wanted = (body.get("spec") or {}).get("finalizers") or []
    version = (body.get("metadata") or {}).get("resourceVersion")

    async def make(namespace: Obj) -> Obj:
        given = body.get("metadata") or {}
        for key in ("labels", "annotations"):  # they are replaced with the rest, as by the real server
            if given.get(key):
                namespace["metadata"][key] = given[key]
            else:
                namespace["metadata"].pop(key, None)
        kind.rules.default(namespace)
        spec = namespace.setdefault("spec", {})
        if wanted:
            spec["finalizers"] = wanted
        else:
            spec.pop("finalizers", None)
        if version:
            namespace["metadata"]["resourceVersion"] = version
        return namespace

    return await core.pipeline.write_raw(call, kind, name, None, make)


# --- tokens and reviews


async def create_token(core: Core, call: Call, kind: Kind, name: str, namespace: str | None, body: Any) -> Obj:
    """`serviceaccounts/token`: a TokenRequest answered with a bearer token that this server accepts."""
    body = _read(body, TOKEN_REQUEST)
    account = core.pipeline.view(kind, core.pipeline.read(kind, name, namespace))
    spec = body.get("spec") or {}
    seconds = spec.get("expirationSeconds", TOKEN_SECONDS)
    errors = FieldErrors()
    if seconds < TOKEN_SECONDS_MIN:
        errors.invalid("spec.expirationSeconds", seconds, "may not specify a duration less than 10 minutes")
    elif seconds > TOKEN_SECONDS_MAX:
        errors.invalid("spec.expirationSeconds", seconds, "may not specify a duration larger than 2^32 seconds")
    errors.raise_if_any(TOKEN_REQUEST.resource, "")
    audiences = list(spec.get("audiences") or (ISSUER,))
    now = core.clock.now()
    expires = now + timedelta(seconds=seconds)
    bound: Obj = {"namespace": namespace, "serviceaccount": {"name": name, "uid": account["metadata"]["uid"]}}
    reference = spec.get("boundObjectRef")
    if reference:
        bound |= _bound(core, reference, namespace)
    if call.dry_run:
        token = ""
    else:
        token = core.tokens.sign(
            {
                "iss": ISSUER,
                "sub": f"system:serviceaccount:{namespace}:{name}",
                "aud": audiences,
                "iat": int(now.timestamp()),
                "nbf": int(now.timestamp()),
                "exp": int(expires.timestamp()),
                "kubernetes.io": bound,
            }
        )
    out_spec: Obj = {"audiences": audiences, "expirationSeconds": seconds}
    if reference:
        out_spec["boundObjectRef"] = reference
    return {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"name": name, "namespace": namespace, "creationTimestamp": rfc3339(now)},
        "spec": out_spec,
        "status": {"token": token, "expirationTimestamp": rfc3339(expires)},
    }


def _bound(core: Core, reference: Mapping[str, Any], namespace: str | None) -> Obj:
    kind_name = reference.get("kind", "")
    kind = core.kinds.by_kind("v1", kind_name) if kind_name in ("Pod", "Secret", "Node") else None
    if kind is None:
        raise BadRequest(f"cannot bind token to object of type {reference.get('apiVersion')}, Kind={kind_name}")
    name = reference.get("name", "")
    obj = core.pipeline.view(kind, core.pipeline.read(kind, name, namespace if kind.resource.namespaced else None))
    uid = reference.get("uid")
    if uid and uid != obj["metadata"]["uid"]:
        raise Conflict(
            f'Operation cannot be fulfilled on {kind.resource.plural} "{name}": the UID in the'
            " bound object reference"
            f" ({uid}) does not match the UID in record. The object might have been deleted and then recreated",
        )
    return {kind_name.lower(): {"name": name, "uid": obj["metadata"]["uid"]}}


def authenticate(core: Core, token: str, audiences: tuple[str, ...] = ()) -> User | None:
    """The user of a bearer token, None when it is not good (any more) here."""
    user = core.tokens.fixed(token)
    if user is not None:
        return user
    claims = core.tokens.claims(token)
    if claims is None or claims.get("iss") != ISSUER:
        return None
    if not set(audiences or (ISSUER,)) & set(claims.get("aud") or ()):
        return None
    now = core.clock.now()
    try:
        expires = datetime.fromtimestamp(claims["exp"], UTC)
        starts = datetime.fromtimestamp(claims.get("nbf", 0), UTC)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    if not starts - timedelta(minutes=1) <= now < expires:
        return None
    bound = claims.get("kubernetes.io") or {}
    namespace = bound.get("namespace") or ""
    account = bound.get("serviceaccount") or {}
    found = core.pipeline.peek(core.kind_of(SERVICEACCOUNTS), account.get("name", ""), namespace)
    if found is None or found["metadata"]["uid"] != account.get("uid"):
        return None
    extra: dict[str, tuple[str, ...]] = {}
    if secret := bound.get("secret"):
        kept = core.pipeline.peek(core.kind_of(SECRETS), secret.get("name", ""), namespace)
        if kept is None or kept["metadata"]["uid"] != secret.get("uid"):
            return None
    pod = bound.get("pod")
    if pod:
        held = core.pipeline.peek(core.kind_of(PODS), pod.get("name", ""), namespace)
        if held is None or held["metadata"]["uid"] != pod.get("uid"):
            return None
        extra["authentication.kubernetes.io/pod-name"] = (pod["name"],)
        extra["authentication.kubernetes.io/pod-uid"] = (pod["uid"],)
    return service_account_user(namespace, account["name"], account["uid"], extra)


def review(core: Core, call: Call, kind: Kind, obj: Obj, namespace: str | None) -> Obj:
    """Answer TokenReview, SelfSubjectReview and the access reviews; nothing is stored."""
    obj = {**obj, "metadata": {**(obj.get("metadata") or {})}}
    spec = obj.get("spec") or {}
    match kind.resource.plural:
        case "tokenreviews":
            audiences = tuple(spec.get("audiences") or ())
            user = authenticate(core, str(spec.get("token") or ""), audiences)
            if user is None:
                obj["status"] = {"user": {}, "error": "invalid bearer token"}
            else:
                obj["status"] = {
                    "authenticated": True,
                    "user": user.to_obj(),
                    "audiences": list(audiences or (ISSUER,)),
                }
            return obj
        case "selfsubjectreviews":
            obj["metadata"]["creationTimestamp"] = rfc3339(core.clock.now())
            obj["status"] = {"userInfo": call.user.to_obj()}
            return obj
        case "selfsubjectrulesreviews":
            rules = core.authorizer.rules_for(call.user, str(spec.get("namespace") or ""))
            obj["status"] = {
                "resourceRules": [rule.to_obj() for rule in rules if not rule.paths],
                "nonResourceRules": [rule.to_obj() for rule in rules if rule.paths],
                "incomplete": False,
            }
            return obj
        case "selfsubjectaccessreviews":
            user = call.user
        case _:
            groups = tuple(spec.get("groups") or ())
            errors = FieldErrors()
            if not spec.get("resourceAttributes") and not spec.get("nonResourceAttributes"):
                errors.invalid(
                    "spec.resourceAttributes",
                    None,
                    "exactly one of nonResourceAttributes or resourceAttributes must be specified",
                )
            if not spec.get("user") and not groups:
                errors.invalid("spec.user", "", "at least one of user or group must be specified")
            errors.raise_if_any(replace(kind.resource, kind=""), "")
            user = User(
                name=spec.get("user") or "", groups=groups or (UNAUTHENTICATED,), uid=spec.get("uid") or ""
            )
    wanted, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if (not path) == (not wanted):
        raise BadRequest("exactly one of spec.resourceAttributes and spec.nonResourceAttributes must be set")
    if path:
        asked = Attributes(verb=path.get("verb", ""), path=path.get("path", ""))
    else:
        wanted = wanted or {}
        asked = Attributes(
            verb=wanted.get("verb", ""),
            group=wanted.get("group", ""),
            version=wanted.get("version", ""),
            resource=wanted.get("resource", ""),
            subresource=wanted.get("subresource", ""),
            namespace=namespace or wanted.get("namespace", ""),
            name=wanted.get("name", ""),
        )
    decision = core.pipeline.authorizer.authorize(user, asked)
    obj["status"] = {"allowed": decision.allowed} | ({"reason": decision.reason} if decision.reason else {})
    return obj


__all__ = ["NotFound", "authenticate", "bind", "create_token", "evict", "finalize", "logs", "not_found", "review"]
