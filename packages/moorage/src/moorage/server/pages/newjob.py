"""The page /jobs/new: a form that checks or starts a run, and the equivalent `moor run` command."""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Mapping
from contextlib import suppress

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from moorage.actions.explain import pod_to_be
from moorage.actions.runfacts import or_none
from moorage.actions.runinputs import remote_caller
from moorage.actions.runs import jobs_of_run
from moorage.actions.submit import Submitted, pack_stored, request_of, stored_code, submit_run
from moorage.actions.volumefiles import VolumeFiles, helper_of
from moorage.api.errors import ErrorCode
from moorage.api.explain import PodQuestion
from moorage.api.jobs import NewJob
from moorage.cluster.serverurl import server_url
from moorage.decide.explain.types import Explanation
from moorage.decide.runs.code import code_of
from moorage.decide.runs.scripts import script_of
from moorage.decide.runs.state import attempt_of
from moorage.model.names import RUN_LABEL
from moorage.present.codetext import code_text
from moorage.present.commandlines import run_line
from moorage.present.explanation import explanation_view
from moorage.server.codeupload import PACKED, UPLOAD, Upload, pack_upload, read_upload_form
from moorage.server.context import Context
from moorage.server.explaining import explained_new
from moorage.server.idempotency import mark_of
from moorage.server.identity.auth import User
from moorage.server.multipart import is_multipart
from moorage.server.pages.formpages import KEY, around, form_page, namespaces_for, refused
from moorage.server.pages.forms import BadForm, Form, Verdict
from moorage.server.pages.jobform import CODE, SENT, given_of, job_fields, missing_notes, read_job
from moorage.server.pages.site import Page, Site, done, read_form
from moorage.server.problems import Problem
from moorage.server.runfacts import nodes_of
from moorage_kube.api import Api
from moorage_kube.errors import MoorageError, UsageError
from moorage_kube.meta import labels_of
from moorage_kube.resources import JOBS

HERE = "/jobs"
NEW = f"{HERE}/new"
PREFILLED = ("namespace", "workingDir")
_TONES = {"fits": "good", "never": "bad"}


async def show_form(site: Site, request: Request) -> Response:
    """The form of a new run; `from=NAMESPACE/NAME`: filled in with the values of that run.

    `workingDir` and `namespace`: a folder of a volume has the code.
    """
    namespace, _, name = request.query_params.get("from", "").partition("/")
    given = {name: text for name in PREFILLED if (text := request.query_params.get(name))}
    notes: tuple[str, ...] = ()
    if namespace and name:
        given, notes = await _given_of_run(site.context, request.state.user, namespace, name)
    form = await _form(site, request.state.user, given | {"key": secrets.token_urlsafe(18)})
    return form_page(site, request, HERE, replace(form, remarks=notes))


async def submit(site: Site, request: Request) -> Response:
    """Check the run of a form, or start it."""
    given, files = await read_upload_form(request) if is_multipart(request) else (await read_form(request), ())
    context, user = site.context, request.state.user
    is_check, notes = given.get("do") == "check", list[str]()
    form = await _form(site, user, given)
    try:
        upload = await pack_upload(given, files)
        if upload is not None:
            kept = f"{code_text(upload.code)} are uploaded: choose files again only to replace them"
            notes += [kept, *upload.notes]
            form = replace(form, given={**given, PACKED: upload.text}, remarks=tuple(notes))
        body = read_job(given, dry_run=is_check, has_upload=upload is not None)
        form = replace(form, line=run_line(body))
        request_name = f"{body.namespace}/{body.name or ''}"
        context.audit(request, "check run" if is_check else "start run", request_name)
        api = context.acting(user)
        await _check_script(site, user, api, body, upload, notes)
        submitted = await _submit(context, user, api, body, given.get("key", ""), upload, notes)
        if is_check:
            verdict = await _verdict(context, api, submitted, body.namespace)
            return form_page(site, request, HERE, replace(form, verdict=verdict, remarks=tuple(notes)))
    except (BadForm, Problem, MoorageError) as error:
        return refused(site, request, HERE, form, error)
    name = labels_of(submitted.jobs[0])[RUN_LABEL]
    context.audit(request, "start run", f"{body.namespace}/{name}")
    return done(f"{HERE}/{body.namespace}/{name}", "started", f"{body.namespace}/{name}")


PAGES = (
    Page(method="GET", path=NEW, handler=show_form),
    Page(method="POST", path=NEW, handler=submit),
)


async def _form(site: Site, user: User, given: Mapping[str, str]) -> Form:
    namespaces = await namespaces_for(site, user, JOBS)
    place = await around(site, user, given.get("namespace") or (namespaces[0] if namespaces else ""), namespaces)
    fields, folded = job_fields(place)
    return Form(
        title="New job",
        action=NEW,
        back=HERE,
        button="Start",
        can_check=True,
        can_send=bool(namespaces),
        fields=(KEY, CODE, SENT, *fields),
        folded=folded,
        given=given,
    )


async def _check_script(
    site: Site, user: User, api: Api, body: NewJob, upload: Upload | None, notes: list[str]
) -> None:
    """Refuse a command whose file is missing, where that is known; `notes` gets the doubts. Raises Problem 422."""
    script = script_of(body.command)
    if not script or body.git is not None or body.code_of is not None:
        return
    if upload is not None:
        if script not in upload.names:
            hint = "choose files that have it, or change the command"
            raise Problem(422, "invalid", f"the upload has no file {script}", hint, field=UPLOAD)
        return
    if body.working_dir is None:
        if site.on_processes():
            hint = "upload it, give a git address or a folder of a volume, or write its full path"
            raise Problem(
                422, "invalid", f"the file {script} is missing: the run has no code", hint, field="command"
            )
        notes.append(f"the image must have the file {script}: the run has no code")
        return
    claim, _, folder = body.working_dir.partition(":")
    helper = await or_none(helper_of(api, body.namespace, claim, user.name))
    if helper is None or not helper.is_ready:
        notes.append(f"volume {claim} must have the file {script}: its files are not open on this page")
        return
    try:
        path = posixpath.join(folder.strip("/"), script)
        async with VolumeFiles(api, body.namespace, helper).reading(path, most=0):
            return
    except UsageError as error:
        if error.code == ErrorCode.NOT_FOUND:
            place = f"folder {folder} of volume {claim}" if folder.strip("/") else f"volume {claim}"
            hint = "upload it there, on the page of the volume, or change the command"
            raise Problem(422, "invalid", f"{place} has no file {script}", hint, field="workingDir") from error
    except MoorageError:
        notes.append(f"volume {claim} must have the file {script}: its files cannot be read now")


async def _submit(
    context: Context, user: User, api: Api, body: NewJob, key: str, upload: Upload | None, notes: list[str]
) -> Submitted:
    """Start the run, like `POST /api/v1/jobs`. If the same form is sent twice, one run starts."""
    digest = upload.code.digest if upload else ""
    mark = mark_of(user.name, f"form\0{key}\0{digest}", body) if key and not body.dry_run else ""
    request = request_of(body)
    async with context.turns.turn(mark):
        return await submit_run(
            api,
            request,
            remote_caller(user.name, body, salt=mark),
            cluster_nodes=nodes_of(context, request),
            url=server_url(context.api),
            note=notes.append,
            mark=mark,
            dry_run=body.dry_run,
            pack=await pack_stored(api, body) if upload is None else lambda _: (upload.code, upload.archive),
        )


async def _verdict(context: Context, api: Api, submitted: Submitted, namespace: str) -> Verdict | None:
    """Where the run would start now, or why it would wait; None if it cannot be computed."""
    plan, job = submitted.plan, submitted.jobs[0]
    if plan is None:
        return None
    pod, refusal = await pod_to_be(api, job, namespace)
    seen = submitted.facts
    claims = [*seen.claims, *plan.claims] if seen.facts.claims is not None else None
    try:
        explanation = await explained_new(context, PodQuestion(pod=pod, claims=claims, refused=refusal))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return verdict_of(explanation, plan.name)


def verdict_of(explanation: Explanation, name: str) -> Verdict:
    """The explanation of a pod that does not exist yet, for the form's verdict."""
    view = explanation_view(replace(explanation, run=name, name=name))
    lines = [*view.advice]
    for section in view.sections:
        lines += section.lines if not section.heading else ()
    return Verdict(
        tone=_TONES.get(explanation.state, "wait"),
        headline=view.headline,
        lines=tuple(line.replace("`", "") for line in lines),
    )


async def _given_of_run(
    context: Context, user: User, namespace: str, name: str
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The form of an existing run, read as its user, and notes on parts that cannot be repeated. Raises
    NotFound.
    """
    jobs = await jobs_of_run(context.acting(user), namespace, name)
    first = min(jobs, key=attempt_of)
    given, notes = given_of(first), missing_notes(first)
    with suppress(UsageError):
        stored_code(code_of(first))
        given[CODE.name] = f"{namespace}/{name}"
        notes = ("It starts in a new copy of the code of that run.", *notes)
    return given, notes
