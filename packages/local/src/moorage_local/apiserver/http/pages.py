"""Paths that are not resources: health, version, discovery and OpenAPI."""

from __future__ import annotations

from moorage_kube.errors import ServerError, StorageError
from moorage_kube.resources import Obj
from moorage_local.apiserver import discovery, openapi
from moorage_local.apiserver.auth.users import Attributes, User, refuse
from moorage_local.apiserver.http.target import VERBS
from moorage_local.apiserver.kinds.kind import Kinds
from moorage_local.apiserver.operations import Operations
from moorage_local.apiserver.pipeline.refusals import not_allowed
from moorage_local.apiserver.wire.answers import TEXT, Answer, no_page
from moorage_local.apiserver.wire.requests import Request

# kubectl asks for it with an @ in place of the second dot, which is invalid in a Content-Type
OPENAPI_PROTOBUF = b"application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
COPIES_PATH = "/localcluster/copies"


def answer_page(server: Operations, request: Request, user: User, path: str) -> Answer:
    """Answer a path that is not a resource: health, version, discovery, OpenAPI."""
    _authorize(server, request, user, path)
    if request.method not in ("GET", "HEAD"):
        raise not_allowed()
    first = path.split("/")[1]
    if first in ("healthz", "livez", "readyz"):
        if first == "readyz" and not server.ready:
            return Answer(b"not ready", 500, content_type=TEXT)
        return Answer(b"ok", content_type=TEXT)
    if path == "/version":
        return Answer(discovery.version_info())
    kinds = server.kinds
    accept = request.header("accept")
    if path in ("/api", "/apis"):
        if "APIGroupDiscoveryList" in accept and "v=v2;" in accept.replace(" ", "") + ";":
            return Answer(
                discovery.aggregated(kinds, core=path == "/api"),
                content_type=b"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
            )
        return Answer(discovery.api_versions() if path == "/api" else discovery.group_list(kinds))
    if path == "/":
        return Answer({"paths": discovery.root_paths(kinds)})
    if path == "/openapi/v2" and "protobuf" in accept:
        return Answer(openapi.v2_protobuf(), content_type=OPENAPI_PROTOBUF)
    document = _document(kinds, path)
    return no_page() if document is None else Answer(document)


async def answer_copy(server: Operations, request: Request, user: User) -> Answer:
    """Make a copy of the data folder and return its name.

    Takes the right to `create` COPIES_PATH. Raises ApiError.
    """
    _authorize(server, request, user, COPIES_PATH)
    if server.copy_source is None:
        return no_page()
    try:
        return Answer({"name": await server.copy_source()}, 201)
    except (StorageError, OSError) as error:
        raise ServerError(error.message if isinstance(error, StorageError) else str(error)) from error


def _authorize(server: Operations, request: Request, user: User, path: str) -> None:
    attributes = Attributes(verb=VERBS.get(request.method, request.method.lower()), path=path)
    decision = server.pipeline.authorizer.authorize(user, attributes)
    if not decision.allowed:
        raise refuse(user, attributes, decision.reason)


def _document(kinds: Kinds, path: str) -> Obj | None:
    """Return a document of discovery or OpenAPI; None if the path has none."""
    parts = path.split("/")[1:]
    if parts[0] == "api" and len(parts) == 2:
        return discovery.resource_list(kinds, "", parts[1])
    if parts[0] == "apis" and len(parts) == 2:
        return discovery.group(kinds, parts[1])
    if parts[0] == "apis" and len(parts) == 3:
        return discovery.resource_list(kinds, parts[1], parts[2])
    if path == "/openapi/v2":
        return openapi.v2()
    if path == "/openapi/v3":
        return openapi.v3_index(kinds)
    if path.startswith("/openapi/v3/"):
        return openapi.v3(kinds, path.removeprefix("/openapi/v3/"))
    return None
