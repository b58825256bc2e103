"""Shared parts of the pages with forms and lists: frames, errors as pages, namespaces where a user has
rights.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlencode

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from moorage.api.idle import IdleWork
from moorage.decide.runs.state import RunView
from moorage.model.names import WORKSPACE_LABEL, is_dns_label
from moorage.present.forbidden import plain
from moorage.server.context import Context
from moorage.server.identity.auth import User
from moorage.server.inputs import read_bytes
from moorage.server.pages.clusterpages import framed, templates
from moorage.server.pages.daycosts import DayCosts
from moorage.server.pages.rights import Allowed, allowed
from moorage.server.pages.texts import say
from moorage.server.pages.usehistory import History
from moorage.server.pages.weekcost import WeekCost
from moorage.server.problems import Problem, as_problem, problem_of
from moorage_kube.api import Api
from moorage_kube.errors import ApiError, MoorageError, UsageError
from moorage_kube.meta import key_of, labels_of
from moorage_kube.moments import rfc3339
from moorage_kube.resources import NAMESPACES, Resource

log = logging.getLogger(__name__)

FORM_BYTES = 16 * 1024
NAMESPACES_ASKED = 500  # at most so many are checked for a user's rights
ASKED_AT_ONCE = 16
NAMESPACES_SECONDS = 10.0  # namespaces are listed again after that
RUNS_SECONDS = 2.0
NAME = re.compile(r"[A-Za-z0-9@._+:-]{1,253}")  # that a page repeats from an address
SYSTEM = ("kube-", "moorage-")  # namespaces that forms do not offer

Row = TypeVar("Row")
Handler = Callable[["Site", Request], Awaitable[Response]]


class Page(Struct, frozen=True, kw_only=True):
    """A row of a table of pages. `live`: a part that an open page asks for again and again.

    `controls`: the page only asks before an action; a user who may do none of these actions gets no such
    page.
    """

    method: str
    path: str
    handler: Handler
    live: bool = False
    controls: tuple[str, ...] = ()


class Tick(Struct, frozen=True, kw_only=True):
    """A checkbox on a page that asks for confirmation."""

    name: str
    words: str
    ticked: bool = False


class Question(Struct, frozen=True, kw_only=True):
    """A page that asks for confirmation before an action, or for one value."""

    title: str
    lines: tuple[str, ...] = ()
    button: str = ""  # empty: there is nothing to send
    action: str = ""
    back: str
    danger: bool = False
    ticks: tuple[Tick, ...] = ()
    entry: tuple[str, str, str] | None = None  # name, label, value of one input
    link: tuple[str, str] | None = None  # address, words
    hidden: tuple[tuple[str, str], ...] = ()  # names and values that the form sends back


class Site:
    """The pages of one server: their frame, routes and rights, and caches that they share."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.history = History(context)
        self.week_cost = WeekCost(context)
        self.day_costs = DayCosts(context)
        self.idle_work: tuple[float, tuple[IdleWork, ...]] | None = None  # and when it was found
        self._namespaces: tuple[float, list[str]] | None = None  # and when they were listed
        self._runs: tuple[int, float, tuple[RunView, ...]] | None = None  # of a cluster's version, and when

    def page(
        self, request: Request, template: str, here: str, *, problem: Problem | None = None, live: bool = True,
        inputs: Mapping[str, str] | None = None, **more: Any,
    ) -> Response:  # fmt: skip
        """A page in its frame, with a problem or the outcome of the last action at its top.

        `inputs`: the input of a problem's field, where `input_of` has another name.
        """
        field = (problem.field if problem is not None else None) or ""
        now = rfc3339(self.context.now()) if live else ""
        frame = framed(here, request, now) | {"problem": problem, "did": outcome(request)}
        frame["wrong"] = (inputs or {}).get(field) or input_of(field)
        html = templates().get_template(template).render(**(frame | more))
        return HTMLResponse(html, problem.status if problem else 200, problem.headers if problem else None)

    def ask(self, request: Request, here: str, question: Question, problem: Problem | None = None) -> Response:
        return self.page(request, "ask.html", here, problem=problem, live=False, question=question)

    def routes(self, pages: Iterable[Page]) -> list[Route]:
        """Convert the table of pages to routes."""
        return [Route(page.path, self._endpoint(page), methods=[page.method]) for page in pages]

    def _endpoint(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        @functools.wraps(page.handler)
        async def guarded(request: Request) -> Response:
            try:
                await self._check(request, page.controls)
                return await page.handler(self, request)
            except ApiError as error:
                raise as_problem(error) from error  # the caller's own: rights of the cluster decided

        return guarded

    async def _check(self, request: Request, controls: Sequence[str]) -> None:
        """Raises Problem 403 if the user may use none of the controls; users without an account are refused
        later.
        """
        if not controls or not request.state.user.account:
            return
        namespace = request.path_params.get("namespace", "")
        rights = await self.allowed(request, controls, [namespace] if namespace else [])
        if not any(rights.may(control, namespace) for control in controls):
            where = f" in namespace {namespace}" if namespace else ""
            hint = "an administrator can give you a role that allows it"
            raise Problem(403, "forbidden", f"you may not {controls[0]}s{where}", hint)

    async def places(self, user: User, verb: str, resource: Resource) -> list[str] | None:
        """The namespaces in which the user may do this; None for all namespaces. Raises ApiError."""
        auth = self.context.auth
        if await auth.may(user, verb, resource.plural, group=resource.group):
            return None
        gate = asyncio.Semaphore(ASKED_AT_ONCE)

        async def may(namespace: str) -> bool:
            async with gate:
                return await auth.may(user, verb, resource.plural, group=resource.group, namespace=namespace)

        known = await self.namespaces()
        answers = await asyncio.gather(*(may(namespace) for namespace in known))
        return [namespace for namespace, is_allowed in zip(known, answers, strict=True) if is_allowed]

    async def allowed(self, request: Request, controls: Iterable[str], namespaces: Iterable[str] = ()) -> Allowed:
        """The controls that the caller may use, in those namespaces."""
        return await allowed(self.context.auth, request.state.user, controls, namespaces)

    async def everywhere(
        self, user: User, resource: Resource, list_: Callable[[str | None], Awaitable[list[Row]]]
    ) -> list[Row]:
        """The objects that `list_` returns for all namespaces in which the user may list. Raises Problem for a
        user who may only read.
        """
        self.context.acting(user)
        places = await self.places(user, "list", resource)
        lists = await asyncio.gather(*(list_(namespace) for namespace in ([None] if places is None else places)))
        return [row for rows in lists for row in rows]

    async def places_to_make(self, user: User, resource: Resource) -> list[str]:
        """The namespaces that a form for a new object offers; "default" comes first."""
        namespaces = await self.places(user, "create", resource)
        if namespaces is None:
            namespaces = [name for name in await self.namespaces() if not name.startswith(SYSTEM)]
        return sorted(namespaces, key=lambda name: (name != "default", name))

    async def namespaces(self) -> list[str]:
        """The first NAMESPACES_ASKED namespaces; if they cannot be listed, the namespaces with work."""
        now, kept = self.context.clock.monotonic(), self._namespaces
        if kept is not None and now - kept[0] < NAMESPACES_SECONDS:
            return kept[1]
        try:
            known = {
                namespace["metadata"]["name"] for namespace in (await self.context.api.list(NAMESPACES)).items
            }
        except ApiError:
            known = {key_of(pod).namespace for pod in self.context.cluster.pods.all()} | {"default"}
        names = sorted(known)[:NAMESPACES_ASKED]
        self._namespaces = (now, names)
        return names

    async def runs(self) -> tuple[RunView, ...]:
        """All runs, newest first. Cached until the cluster changes, at most for RUNS_SECONDS."""
        cluster, now = await self.context.ready(), self.context.clock.monotonic()
        kept = self._runs
        if kept is not None and kept[0] == cluster.version and now - kept[1] < RUNS_SECONDS:
            return kept[2]
        runs = cluster.runs()
        self._runs = (cluster.version, now, runs)
        return runs

    def address_of(self, namespace: str, name: str) -> str:
        """The page of a volume's user: a run, a workspace by its name or pod; empty: it has no page."""
        context = self.context
        if context.cluster.jobs_of_run(namespace, name):
            return f"/jobs/{namespace}/{name}"
        pod = context.cluster.pods.get(name, namespace)
        workspace = labels_of(pod).get(WORKSPACE_LABEL, "") if pod is not None else name
        is_known = bool(workspace) and context.gateway.workspaces.get(workspace, namespace) is not None
        return f"/workspaces/{namespace}/{workspace}" if is_known else ""

    def on_processes(self) -> bool:
        """Whether this is a local cluster, where pods are processes of this machine."""
        return self.context.cluster.on_processes()


DONE = {
    "created": "{} is created.",
    "changed": "{} is changed.",
    "started": "{} is submitted.",
    "starting": "{} starts.",
    "stopping": "{} stops. Its volumes stay.",
    "snoozed": "{} is snoozed.",
    "deleted": "{} is deleted.",
    "uploaded": "The files are on {}.",
    "deleted-file": "It is deleted from {}.",
    "closed-files": "The files of {} are closed.",
    "resized": "{} is being made larger.",
    "cancelled": "{} is cancelled.",
    "enabled": "{} is enabled.",
    "disabled": "{} is disabled. Sessions and tokens are revoked.",
    "groups": "The groups of {} are changed.",
    "cordoned": "{} is cordoned: no new pods start there.",
    "uncordoned": "{} is uncordoned: new pods may start there.",
    "draining": "{} is being drained. Its pods end within their grace periods.",
    "members": "The people of {} are changed.",
    "ended": "A session of {} is ended.",
    "filling": "{} is being filled again.",
    "shared": "The readers of {} are changed.",
    "backup": "A backup of {} has begun.",
    "restoring": "A backup is being brought onto {}.",
    "paused": "{} is paused: running items end, and no other begins.",
    "resumed": "{} is resumed.",
    "retried": "The failed items of {} run again.",
    "suspended": "{} is suspended: running steps end, and no other begins.",
    "step-failed": "A step of {} is failed.",
    "stopped-workflow": "{} is being stopped.",
    "retried-workflow": "Steps of {} run again.",
    "suspended-cron": "{} is suspended: its slots are skipped.",
    "resumed-cron": "{} runs again at its next slot.",
    "resized-workers": "The number of workers of {} is changed.",
}


async def change(
    site: Site,
    request: Request,
    what: str,
    act: Callable[[Api, str, str], Awaitable[object]],
    *,
    again: Callable[[Site, Request, Problem], Awaitable[Response]],
    back: str,
    outcome: str,
) -> Response:
    """Do the action of a form to the object of the path, as its user: `act` gets namespace and name.

    Then redirect to the list; after a failure the page is shown `again`, with the problem. `what`: for
    the audit log.
    """
    namespace, name = key_in(request)
    site.context.audit(request, what, f"{namespace}/{name}")
    try:
        await act(site.context.acting(request.state.user), namespace, name)
    except (Problem, MoorageError) as error:
        return await again(site, request, problem_to_show(error))
    return done(back, outcome, f"{namespace}/{name}")


def done(here: str, verb: str, what: str) -> Response:
    """Redirect to the list, which shows the outcome."""
    return RedirectResponse(f"{here}?{urlencode({'done': verb, 'what': what})}", 303)


def outcome(request: Request) -> str:
    """The message about the last action, from fixed texts and the name of a thing or a user."""
    words, what = DONE.get(request.query_params.get("done", "")), request.query_params.get("what", "")
    parts = what.split("/")
    if words is None or len(parts) > 2 or not all(NAME.fullmatch(part) for part in parts):
        return ""
    return say(words).format(what)


def input_of(field: str) -> str:
    """The input of a field of the spec: "spec.quietHours.spans[0].days" has the input `quietHours`."""
    return field.removeprefix("metadata.").removeprefix("spec.").partition("[")[0].partition(".")[0]


def problem_to_show(error: Exception) -> Problem:
    """The problem as a page shows it: 422 for a wrong value; failures of the server are logged."""
    problem = as_problem(error) if isinstance(error, ApiError) else problem_of(error)
    if problem.status == 400 and isinstance(error, UsageError):
        problem.status, problem.code = 422, "invalid"
    problem.message = plain(problem.message)
    if problem.status >= 500:
        log.warning("an action of a page failed", extra={"error": problem.message})
    return problem


async def read_form(request: Request, most: int = FORM_BYTES) -> Mapping[str, str]:
    """Read the fields of a form, stripped; if a name comes twice, the last value. Raises Problem."""
    body = await read_bytes(request, most)
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=50)
    except ValueError as error:
        raise Problem(400, "bad_request", f"the form cannot be read: {error}") from error
    return {name: values[-1].strip() for name, values in fields.items()}


def checked_name(form: Mapping[str, str]) -> str:
    """The field `name`. Raises Problem 422 if Kubernetes does not accept the name."""
    name = form.get("name", "")
    if not is_dns_label(name):
        raise Problem(
            422,
            "invalid",
            f"invalid name {name[:70]!r}: use at most 63 of a-z, 0-9 and '-', with a letter or digit at both ends",
            field="name",
        )
    return name


def deletion(what: str, namespace: str, name: str, here: str, loss: str, users: Sequence[str]) -> Question:
    """The page that asks before an object is deleted that others may use."""
    ticks = (Tick(name="force", words="Delete it although it is in use"),) if users else ()
    lines = (say("In use by {users}: they break.", users=", ".join(users)),) if users else ()
    return Question(
        title=say("Delete {what} {name}?", what=say(what), name=name),
        lines=(say("It is in namespace {namespace}.", namespace=namespace) + " " + say(loss), *lines),
        button="Delete",
        action=f"{here}/{namespace}/{name}/delete",
        back=here,
        danger=True,
        ticks=ticks,
    )


def key_in(request: Request) -> tuple[str, str]:
    return request.path_params["namespace"], request.path_params["name"]
