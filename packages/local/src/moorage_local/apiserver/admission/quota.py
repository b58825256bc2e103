"""ResourceQuota admission: a new object is charged to the quotas of its namespace first, or refused.

A charge is a compare-and-swap on the quota's status, so `status.used` never lags behind the admitted objects. All
requests to one namespace that wait at the same time are decided together, with one write per quota. The controller
corrects charges of objects that were not stored: it counts again whenever charges are not under way (`in_flight`).

https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#resourcequota
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from moorage_kube.errors import ApiError, Conflict, NotFound
from moorage_kube.resources import Obj, Resource
from moorage_local.apiserver.auth.users import User
from moorage_local.apiserver.kinds.kind import Kind
from moorage_local.apiserver.pipeline.calls import Admission, Call
from moorage_local.apiserver.pipeline.pipeline import Pipeline
from moorage_local.apiserver.pipeline.refusals import forbidden
from moorage_local.quota import Amounts

QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
ON_UPDATE = frozenset({("", "persistentvolumeclaims"), ("", "services")})
ROUNDS = 10  # of one decision, when others write the same quota


@dataclass(slots=True, eq=False)
class _Waiter:
    asked: Admission
    verdict: asyncio.Future[ApiError | None]


class QuotaAdmission:
    """Implements `pipeline.Admitter`; must be the last one, because a charged object counts as admitted."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._quotas: dict[str, set[str]] = {}  # by namespace
        self._waiting: dict[str, list[_Waiter]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._in_flight: dict[str, int] = {}

    def load(self) -> None:
        """Read the stored quotas."""
        for quota in self._pipeline.every(self._kind()):
            self._quotas.setdefault(quota["metadata"]["namespace"], set()).add(quota["metadata"]["name"])

    def stored(self, kind: Kind, before: Obj | None, after: Obj | None) -> None:
        """Called after every write."""
        if kind.resource != QUOTAS:
            return
        if after is not None:
            self._quotas.setdefault(after["metadata"]["namespace"], set()).add(after["metadata"]["name"])
        elif before is not None:
            namespace = before["metadata"]["namespace"]
            self._quotas.get(namespace, set()).discard(before["metadata"]["name"])
            if not self._quotas.get(namespace):
                self._quotas.pop(namespace, None)

    def in_flight(self, namespace: str) -> int:
        """Return the number of unfinished writes to the namespace that are charged or wait for a decision."""
        return self._in_flight.get(namespace, 0)

    async def mutate(self, asked: Admission) -> Obj | None:  # noqa: ARG002  only `validate` decides
        return None

    async def validate(self, asked: Admission) -> None:
        """Charge the object to the quotas. Raises Forbidden with the real server's message."""
        namespace = asked.namespace
        if not namespace or namespace not in self._quotas or asked.subresource or asked.obj is None:
            return
        where = (asked.kind.resource.group, asked.kind.resource.plural)
        if where[1] == "events" or not (
            asked.operation == "CREATE" or (asked.operation == "UPDATE" and where in ON_UPDATE)
        ):
            return
        self._in_flight[namespace] = self._in_flight.get(namespace, 0) + 1
        asked.settle.append(lambda: self._settled(namespace))
        waiter = _Waiter(asked, asyncio.get_running_loop().create_future())
        waiting = self._waiting.setdefault(namespace, [])
        waiting.append(waiter)
        lock = self._locks.setdefault(namespace, asyncio.Lock())
        try:
            async with lock:
                if not waiter.verdict.done():
                    await self._decide(namespace, list(waiting))
        finally:
            waiting.remove(waiter)
            if not waiting and self._waiting.get(namespace) is waiting:
                del self._waiting[namespace]
                self._locks.pop(namespace, None)
        refusal = waiter.verdict.result()
        if refusal is not None:
            raise refusal

    def _settled(self, namespace: str) -> None:
        left = self._in_flight[namespace] - 1
        if left:
            self._in_flight[namespace] = left
        else:
            del self._in_flight[namespace]

    def _kind(self) -> Kind:
        kind = self._pipeline.kinds.of(QUOTAS)
        assert kind is not None
        return kind

    async def _decide(self, namespace: str, waiting: list[_Waiter]) -> None:
        """Set the verdict of every waiter; the allowed objects are charged when this returns."""
        open_ones = [waiter for waiter in waiting if not waiter.verdict.done()]
        charged: dict[str, set[int]] = {}  # by quota: the waiters that it counts already
        for _ in range(ROUNDS):
            quotas = self._pipeline.every(self._kind(), namespace)
            used = _read_used(quotas)
            verdicts: list[ApiError | None] = []
            for at, waiter in enumerate(open_ones):
                done = {name for name, counted in charged.items() if at in counted}
                taken = _judge(waiter.asked, quotas, used, done, self._pipeline)
                if isinstance(taken, ApiError):
                    verdicts.append(taken)
                    continue
                verdicts.append(None)
                if not waiter.asked.call.dry_run:
                    used |= taken
                    for name in taken:
                        charged.setdefault(name, set()).add(at)
            lost = [quota for quota in quotas if not await self._write(quota, used[quota["metadata"]["name"]])]
            for quota in lost:  # another writer changed it: these charges are not in it
                charged.pop(quota["metadata"]["name"], None)
            if not lost:
                for waiter, verdict in zip(open_ones, verdicts, strict=True):
                    if not waiter.verdict.done():
                        waiter.verdict.set_result(verdict)
                return
        for waiter in open_ones:
            if not waiter.verdict.done():
                waiter.verdict.set_result(Conflict(f"the quotas of {namespace} keep changing"))

    async def _write(self, quota: Obj, used: Amounts) -> bool:
        """Store the current usage; False when the quota changed meanwhile."""
        from moorage_local.quota import read_amounts, write_amounts

        status = quota.get("status") or {}
        if read_amounts(status.get("used")) == used:
            return True
        meta = quota["metadata"]

        async def make(current: Obj) -> Obj:
            if current["metadata"]["resourceVersion"] != meta["resourceVersion"]:
                raise Conflict("the quota changed")
            return {**current, "status": {**status, "used": write_amounts(used)}}

        call = Call(user=User(name="system:apiserver", groups=("system:masters",)))
        try:
            await self._pipeline.write_raw(call, self._kind(), meta["name"], meta["namespace"], make)
        except (Conflict, NotFound):
            return False
        return True


def _read_used(quotas: list[Obj]) -> dict[str, Amounts]:
    from moorage_local.quota import read_amounts

    return {quota["metadata"]["name"]: read_amounts((quota.get("status") or {}).get("used")) for quota in quotas}


def _judge(
    asked: Admission,
    quotas: list[Obj],
    used: Mapping[str, Amounts],
    done: set[str],
    pipeline: Pipeline,
) -> dict[str, Amounts] | ApiError:
    """Return the usage of each quota that the write changes if admitted, or the refusal.

    `done`: quotas that count the write already.
    """
    from moorage_local import quota as q

    resource, obj = asked.kind.resource, asked.obj
    assert obj is not None
    now = pipeline.clock.now()

    def refuse(why: str) -> ApiError:
        meta = obj["metadata"]
        return forbidden(resource, asked.name or meta.get("name") or meta.get("generateName") or "", why)

    # quotas that track something of the object
    matching: list[tuple[str, Obj, list[str]]] = []
    for quota in quotas:
        name, status = quota["metadata"]["name"], quota.get("status") or {}
        hard = status.get("hard") or {}
        names = q.tracked(resource, hard)
        if not names or not q.scopes_match(quota, resource, obj):
            continue
        if resource.plural == "pods" and not resource.group and (missing := q.unsaid(obj, names)):
            return refuse(f"failed quota: {name}: must specify {missing}")
        if any(name not in (status.get("used") or {}) for name in names):
            return refuse(f"status unknown for quota: {name}, resources: {','.join(sorted(names))}")
        matching.append((name, hard, names))
    # the amounts that the write adds
    taken = q.usage(resource, obj, now)
    if asked.old is not None:
        before = q.usage(resource, asked.old, now)
        taken = {
            name: q.Quantity(max(amount.value - before.get(name, q.ZERO).value, q.ZERO.value), amount.binary)
            for name, amount in taken.items()
        }
    # the new usage, unless a quota does not allow it
    out: dict[str, Amounts] = {}
    for name, hard, names in matching:
        wanted = {name: taken[name] for name in names if name in taken and taken[name].value}
        if not wanted or name in done:
            continue
        now_used = q.added(used[name], wanted)
        limits = q.read_amounts({key: hard[key] for key in wanted})
        exceeded = [key for key in wanted if now_used[key].value > limits[key].value]
        if exceeded:
            requested = q.shown({key: wanted[key] for key in exceeded})
            before_it = q.shown({key: used[name][key] for key in exceeded})
            limited = q.shown({key: hard[key] for key in exceeded})
            return refuse(f"exceeded quota: {name}, requested: {requested}, used: {before_it}, limited: {limited}")
        out[name] = now_used
    return out
