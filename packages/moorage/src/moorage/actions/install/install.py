"""Install or upgrade: read, plan, apply phase by phase, wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from moorage.actions.install.cluster import (
    RESOURCES,
    InstallApi,
    apply,
    check_rights,
    conflicts,
    read,
    read_record,
    refuse_local_cluster,
    several,
    try_all,
)
from moorage.actions.install.waiting import Progress, wait_for_definitions, wait_for_rollouts, wait_for_webhook
from moorage.actions.people import create_local_account, first_password, list_accounts, password_hash, set_password
from moorage.api.people import NewAccount
from moorage.decide.install.record import DONE, REMOVED, UNDER_WAY, InstallRecord, Ref, make_record, refs_of
from moorage.decide.install.steps import (
    InstallPlan,
    Phase,
    check_kubernetes,
    needed_rights,
    phase_of,
    plan_install,
    rollout_groups,
    to_apply,
)
from moorage.decide.install.values import InstallValues, adopted
from moorage.model.definitions import is_anothers
from moorage.model.manifests import USAGE_CLAIM, make_admin_binding
from moorage.model.names import INFO_CONFIGMAP, SYSTEM_NAMESPACE
from moorage.model.people import LOCAL
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.errors import Conflict, NotFound, Problems
from moorage_kube.meta import annotations_of
from moorage_kube.resources import CONFIGMAPS, DEPLOYMENTS, PVCS, SECRETS, STORAGECLASSES, Obj

DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
DEFINITION_SECONDS = 60.0


class Standing(Struct, frozen=True, kw_only=True):
    """The present installation.

    `kept` is None if not by `moor install`; `values` are then those of `kubectl apply`.
    """

    kubernetes: str
    kept: InstallRecord | None
    values: Mapping[str, Any]
    version: str  # empty: nothing is installed
    written: tuple[Ref, ...] = ()

    @property
    def is_installed(self) -> bool:
        return bool(self.version) and (self.kept is None or self.kept.state != REMOVED)


class FirstAdmin(Struct, frozen=True, kw_only=True):
    """An account that the installation creates for the first login."""

    name: str
    password: str


async def look(api: InstallApi) -> Standing:
    """The present installation on the cluster. Raises NotReady if Moorage cannot be installed on it."""
    kubernetes = str((await api.version()).get("gitVersion") or "")
    check_kubernetes(kubernetes)
    await refuse_local_cluster(api)
    kept = await read_record(api)
    info = await _data(api, INFO_CONFIGMAP)
    if kept is not None:
        return Standing(
            kubernetes=kubernetes, kept=kept, values=kept.values, version=kept.version, written=kept.objects
        )
    values = adopted(info, await _image(api)) if info else {}
    return Standing(kubernetes=kubernetes, kept=None, values=values, version=info.get("version", ""))


async def prepare(
    api: InstallApi, wanted: Sequence[Obj], values: InstallValues, standing: Standing, *, force: bool
) -> InstallPlan:
    """The plan, from the present objects. Nothing is written.

    Raises Forbidden for missing rights, and Problems with all other obstacles.
    """
    plurals = {kind: resource.plural for kind, resource in RESOURCES.items()}
    await check_rights(api, needed_rights(wanted, plurals, removing=False))
    live = await read(api, (*refs_of(wanted), *standing.written))
    wanted = [obj for obj in wanted if not is_anothers(live.get(Ref.of(obj)), obj)]
    await _check_cluster(api, wanted, values, live)
    objects = [to_apply(obj, live.get(Ref.of(obj)), values.replicas) for obj in wanted]
    tried = await try_all(api, [obj for obj in objects if Ref.of(obj) in live], force=force)
    return plan_install(objects, live, tried, standing.written)


async def carry_out(
    api: InstallApi,
    plan: InstallPlan,
    kept: InstallRecord,
    *,
    progress: Progress,
    clock: Clock = SYSTEM,
    timeout: float,
    force: bool = False,
    wait: bool = True,
    rolling: bool = False,
) -> None:
    """Write the plan. Safe to interrupt: the same command finishes it. `rolling`: one Deployment after the other.

    `kept.objects` are the objects of earlier installations; they stay on record until the end.
    """
    phases = {phase: [obj for obj in plan.write if phase_of(obj) is phase] for phase in Phase}
    await _apply_all(api, phases[Phase.NAMESPACES], force=force)
    everything = (*kept.objects, *refs_of(plan.write))
    await _keep(api, kept, everything, UNDER_WAY)
    definitions = phases[Phase.DEFINITIONS]
    await _apply_all(api, definitions, force=force)
    names = [obj["metadata"]["name"] for obj in definitions]
    await wait_for_definitions(api, names, clock=clock, timeout=DEFINITION_SECONDS)
    progress(f"{len(definitions)} kinds are served")
    await _apply_all(api, phases[Phase.RIGHTS], force=force)
    progress(f"{len(phases[Phase.RIGHTS])} objects are there: accounts, rights, configuration, network")
    for group in rollout_groups(phases[Phase.SERVICES], plan.made, rolling=rolling):
        await _apply_all(api, group, force=force)
        if wait:
            names = [obj["metadata"]["name"] for obj in group]
            await wait_for_rollouts(api, names, clock=clock, timeout=timeout, progress=progress)
    await _apply_all(api, phases[Phase.REGISTRATIONS], force=force)
    if wait:
        await wait_for_webhook(api, clock=clock, timeout=timeout)
        progress("the webhook answers")
    for ref in plan.removed:
        await delete(api, ref)
    await _keep(api, kept, refs_of(plan.write), DONE)


async def delete(api: InstallApi, ref: Ref) -> bool:
    """Delete an object; return whether it existed."""
    try:
        await api.delete(RESOURCES[ref.kind], ref.name, ref.namespace or None, propagation="Background")
    except NotFound:
        return False
    return True


async def ensure_first_admin(api: InstallApi, name: str) -> FirstAdmin | None:
    """An account with all rights and a new password; None if there are accounts already.

    An account without a password, left by an installation that was interrupted, gets one.
    """
    accounts = await list_accounts(api)
    is_half_made = [(account.name, account.source) for account in accounts] == [(name, LOCAL)]
    if is_half_made:
        is_half_made = not await password_hash(api, name)
    if accounts and not is_half_made:
        return None
    await apply(api, make_admin_binding(name))  # first: an account that is there has its rights
    password = first_password()
    if is_half_made:
        await set_password(api, name, password)
    else:
        await create_local_account(api, NewAccount(name=name, password=password, groups=[]))
    return FirstAdmin(name=name, password=password)


async def _apply_all(api: InstallApi, objects: Sequence[Obj], *, force: bool) -> None:
    async def write(obj: Obj) -> None:
        try:
            await apply(api, obj, force=force)
        except Conflict as error:  # it was changed since the dry run
            raise Problems(conflicts(obj, error)) from error

    await several(write(obj) for obj in objects)


async def _keep(api: InstallApi, kept: InstallRecord, objects: Sequence[Ref], state: str) -> None:
    record = InstallRecord(values=kept.values, version=kept.version, objects=tuple(objects), state=state)
    await apply(api, make_record(record), force=True)  # only installations write it


async def _check_cluster(
    api: InstallApi, wanted: Sequence[Obj], values: InstallValues, live: Mapping[Ref, Obj]
) -> None:
    """Raise Problems for conditions under which the services cannot start."""
    problems: list[tuple[str, str | None]] = []
    claim = Ref("v1", PVCS.kind, SYSTEM_NAMESPACE, USAGE_CLAIM)
    if claim in refs_of(wanted) and claim not in live:  # servers that share a database have none
        classes = (await api.list(STORAGECLASSES)).items
        names = sorted(str(each["metadata"]["name"]) for each in classes)
        listed = ", ".join(names) or "none"
        if values.storage_class and values.storage_class not in names:
            problems.append((f"StorageClass {values.storage_class!r} not found", f"there are: {listed}"))
        elif not values.storage_class and not any(
            annotations_of(each).get(DEFAULT_CLASS) == "true" for each in classes
        ):
            hint = f"choose a class: --storage-class NAME; there are: {listed}"
            problems.append(("the cluster has no default StorageClass, and the server needs a volume", hint))
    for name in (values.database_secret, *values.image_pull_secrets):
        if name and not await _has_secret(api, name):
            problems.append(
                (
                    f"Secret {SYSTEM_NAMESPACE}/{name} not found",
                    f"create it first: kubectl create namespace {SYSTEM_NAMESPACE};"
                    f" kubectl -n {SYSTEM_NAMESPACE} create secret …",
                )
            )
    if problems:
        raise Problems(problems)


async def _has_secret(api: InstallApi, name: str) -> bool:
    try:
        await api.get(SECRETS, name, SYSTEM_NAMESPACE)
    except NotFound:
        return False
    return True


async def _data(api: InstallApi, name: str) -> dict[str, str]:
    try:
        return dict((await api.get(CONFIGMAPS, name, SYSTEM_NAMESPACE)).get("data") or {})
    except NotFound:
        return {}


async def _image(api: InstallApi) -> str:
    """The image of the running operator; "" if there is no operator."""
    try:
        deployment = await api.get(DEPLOYMENTS, "moorage-operator", SYSTEM_NAMESPACE)
    except NotFound:
        return ""
    return str(deployment["spec"]["template"]["spec"]["containers"][0]["image"])
