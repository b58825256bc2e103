"""The volumes of pods: made ready before a pod starts, and updated while it runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta

from moorage_kube.errors import ApiError, MoorageError
from moorage_kube.meta import is_deleting, key_of
from moorage_kube.resources import CONFIGMAPS, PVCS, PVS, SECRETS, SERVICEACCOUNTS, Obj, Resource
from moorage_local.nodeagent import volumes
from moorage_local.nodeagent.context import Context, uid_of
from moorage_local.nodeagent.environment import Ref, Room
from moorage_local.nodeagent.environment import references as env_references
from moorage_local.nodeagent.podfolder import PodFolder

log = logging.getLogger(__name__)

REFRESH_SECONDS = 60.0  # how often volumes made of ConfigMaps, Secrets and tokens are brought up to date
TOKEN_REFRESH_PART = 0.8  # of a token's life, after which it is replaced

_RESOURCES: dict[str, Resource] = {"ConfigMap": CONFIGMAPS, "Secret": SECRETS, "PersistentVolumeClaim": PVCS}


class PodVolumes:
    """Reads the objects that volumes and variables refer to, and writes them into the pods' folders."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def lookup(self, pod: Obj) -> dict[Ref, Obj | None]:
        """Return the objects that the pod refers to; None for those that do not exist."""
        namespace = pod["metadata"].get("namespace") or "default"
        wanted = sorted(env_references(pod["spec"]) | volumes.references(pod["spec"]))
        return {ref: await self._context.get(_RESOURCES[ref.kind], ref.name, namespace) for ref in wanted}

    async def make_ready(
        self, pod: Obj, folder: PodFolder, lookup: Mapping[Ref, Obj | None]
    ) -> dict[str, tuple[str, bool]]:
        """Prepare all volumes; return name → (path on this machine, read-only). Raises VolumeError."""
        tokens = await self._service_tokens(pod)
        out: dict[str, tuple[str, bool]] = {}
        room = Room(volumes.FILES_MAX)
        for volume in pod["spec"].get("volumes") or ():
            path = folder.path / "volumes" / volume["name"]
            files = volumes.render(volume, pod, lookup, tokens, self._context.offers(), room)
            if files is not None:
                volumes.write_files(path, files)
                out[volume["name"]] = (str(path), True)
            elif volume.get("emptyDir") is not None:
                path.mkdir(parents=True, exist_ok=True)
                path.chmod(0o777)
                out[volume["name"]] = (str(path), False)
            else:
                persistent: dict[str, Obj | None] = {}
                claim = volume.get("persistentVolumeClaim")
                stored = lookup.get(Ref("PersistentVolumeClaim", claim["claimName"])) if claim else None
                if stored is not None and (bound := (stored.get("spec") or {}).get("volumeName")):
                    persistent[bound] = await self._context.get(PVS, bound)
                where, read_only = volumes.host_path(volume, lookup, persistent)
                volumes.make_ready(volume, where)
                out[volume["name"]] = (where, read_only)
        return out

    async def _service_tokens(self, pod: Obj) -> dict[volumes.TokenRequest, str]:
        """Return tokens for projected volumes; each is renewed after four fifths of its life."""
        uid, meta, now = uid_of(pod), pod["metadata"], self._context.clock.now()
        known = self._context.state_of(uid).tokens
        out = {}
        for request in volumes.token_requests(pod["spec"]):
            token, until = known.get(request, ("", now))
            if not token or now >= until:
                body: Obj = {
                    "apiVersion": "authentication.k8s.io/v1",
                    "kind": "TokenRequest",
                    "spec": {
                        "audiences": [request.audience] if request.audience else [],
                        "expirationSeconds": request.seconds,
                        "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": uid},
                    },
                }
                account = pod["spec"].get("serviceAccountName") or "default"
                namespace = meta.get("namespace") or "default"
                try:
                    answer = await self._context.api.create_subresource(
                        SERVICEACCOUNTS, account, "token", body, namespace
                    )
                except ApiError as error:
                    raise volumes.VolumeError(
                        f'MountVolume.SetUp failed for volume "{request.volume}" : failed to fetch token: {error}'
                    ) from error
                token = answer["status"]["token"]
                until = now + timedelta(seconds=TOKEN_REFRESH_PART * request.seconds)
                known[request] = (token, until)
            out[request] = token
        return out

    async def refresh(self, pod: Obj, folder: PodFolder) -> None:
        """Once a minute, update volumes made from the API; a deleted source changes nothing."""
        uid, now = uid_of(pod), self._context.clock.monotonic()
        state = self._context.state_of(uid)
        if state.refreshed is None:
            state.refreshed = now
        if now - state.refreshed < REFRESH_SECONDS or is_deleting(pod):
            return
        state.refreshed = now
        if not volumes.is_refreshed(pod["spec"]):
            return
        try:
            admission = self._context.admission_of(uid)
            addressed = with_address(pod, admission.address) if admission else pod
            await self.make_ready(addressed, folder, await self.lookup(pod))
        except MoorageError as error:
            log.warning("volumes not refreshed", extra={"pod": str(key_of(pod)), "error": str(error)})


def with_address(pod: Obj, address: str) -> Obj:
    """Return the pod with the address that it has while it runs, for the downward API."""
    return {**pod, "status": {**(pod.get("status") or {}), "podIP": address, "podIPs": [{"ip": address}]}}
