"""Submit a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from moorage.actions.atomic import AtomicCreate, all_or_none, set_owner
from moorage.actions.objects import is_of
from moorage.actions.runfacts import ClusterNodes, RunFacts, check_problems, env_words, read_facts
from moorage.actions.runs import jobs_of_run
from moorage.api.errors import ErrorCode
from moorage.api.jobs import NewJob
from moorage.decide.runs.code import Code, code_of
from moorage.decide.runs.job import plan_run
from moorage.decide.runs.request import Caller, RunPlan, RunRequest, has_code
from moorage.decide.runs.runfile import stored_request
from moorage.decide.runs.state import attempt_of
from moorage.model.names import DIRECTORY_ANNOTATION, GIT_ANNOTATION, REQUEST_ANNOTATION, RUN_LABEL
from moorage_kube.api import Api
from moorage_kube.errors import AlreadyExists, ApiError, UsageError
from moorage_kube.meta import annotations_of, labels_of, owner_reference
from moorage_kube.resources import JOBS, PVCS, SECRETS, Obj

OWN_TRIES = 3

Pack = Callable[[bool], tuple[Code, bytes | None] | None]
"""Returns the code of a run, and its archive if it is sent to the pod; None: the run has no code.

The argument: whether the command runs on this machine.
"""


class Submitted(Struct, frozen=True, kw_only=True):
    """A stored run: the created Job, or all Jobs of the run that the same request created before."""

    jobs: tuple[Obj, ...]
    plan: RunPlan | None  # None: made before
    facts: RunFacts


async def submit_run(
    api: Api,
    request: RunRequest,
    caller: Caller,
    *,
    cluster_nodes: Awaitable[ClusterNodes],
    url: Awaitable[str],
    note: Callable[[str], None],
    mark: str = "",
    dry_run: bool = False,
    pack: Pack = lambda _: None,
    advise: Callable[[Obj], Awaitable[Iterable[str]]] | None = None,
) -> Submitted:
    """Start a run: read the input of its plan, decide, create.

    `note` gets the defaults that were filled in, and problems after the Job was created. With a `mark`, the same
    request makes one run. `pack` is not called for a request that is refused. `advise` returns remarks about the
    Job; they never delay it. `dry_run`: the API server checks the Job, nothing is created. Raises Problems with
    all that is wrong with the request, ApiError.
    """
    facts = await read_facts(api, request, cluster_nodes=cluster_nodes, url=url)
    # the same request was sent before: return its run
    before = next((job for job in facts.jobs if is_of(job, mark)), None)
    if before is not None:
        run = labels_of(before).get(RUN_LABEL)
        jobs = [job for job in facts.jobs if run and labels_of(job).get(RUN_LABEL) == run] or [before]
        return Submitted(jobs=tuple(jobs), plan=None, facts=facts)
    # pack the directory only for a request that is accepted
    plan = plan_run(request, caller, facts.facts)
    if not plan.problems and has_code(request) and (packed := pack(facts.facts.process_runtime)) is not None:
        code, archive = packed
        plan = plan_run(request, replace(caller, code=code, archive=archive), facts.facts)
    check_problems(plan.problems, plan.name, facts.facts)
    # remarks come before the Job, so that they are shown even if it is refused
    for text in plan.notes:
        note(text)
    if advise is not None:
        for text in await advise(_planned(plan)):
            note(text)
    if dry_run:
        job = await api.create(JOBS, _planned(plan), request.namespace, dry_run=True)
    else:
        # the mark on the Job and its Secret identifies the request when it is repeated
        for obj in (plan.job, plan.secret):
            if obj is not None and mark:
                obj["metadata"].setdefault("annotations", {})[REQUEST_ANNOTATION] = mark
        job = await create_run(api, plan, request.namespace, note=note)
    return Submitted(jobs=(job,), plan=plan, facts=facts)


async def pack_stored(api: Api, body: NewJob) -> Pack:
    """Return the `pack` of a request over REST: the code of the run that it names. Raises NotFound, ApiError."""
    if body.code_of is None:
        return lambda _: None
    namespace, _, name = body.code_of.rpartition("/")
    code = code_of(min(await jobs_of_run(api, namespace or body.namespace, name), key=attempt_of))
    return lambda on_this_machine: (stored_code(code if on_this_machine else None), None)


def stored_code(code: Code | None) -> Code:
    """Check that the code of a run is stored on this machine. Raises UsageError."""
    if code is not None and code.folder and Path(code.folder).is_dir():
        return code
    raise UsageError(
        f"the code of that run was deleted: {code.folder}"
        if code is not None and code.folder
        else "the code of that run is not stored on this machine",
        hint="to run your files as they are now: moor run -- COMMAND",
    )


def request_of(body: NewJob) -> RunRequest:
    """The request of a client. Raises UsageError for an invalid variable name."""
    return RunRequest(
        command=tuple(body.command),
        namespace=body.namespace,
        name=body.name,
        image=body.image,
        user=body.user,
        env=env_words(body.env),
        secrets=tuple(body.secrets),
        labels=tuple(f"{key}={value}" for key, value in body.labels.items()),
        gpus=body.gpus,
        gpu_type=body.gpu_type,
        gpu_resource=body.gpu_resource,
        gpu_claim=body.gpu_claim,
        machine=body.machine,
        cpu=None if body.cpu is None else str(body.cpu),
        memory=body.memory,
        time=body.time,
        volumes=tuple(body.volumes),
        datasets=tuple(body.datasets),
        checkpoint=body.checkpoint,
        working_dir=body.working_dir,
        git=body.git,
        grace_period_seconds=body.grace_period_seconds,
        priority_class=body.priority_class,
        queue=body.queue,
        retries=body.retries,
        restart_limit=body.restart_limit,
        share=body.share,
        host_env=body.host_env,
    )


def _planned(plan: RunPlan) -> Obj:
    if plan.job is None:
        raise ValueError("a plan with problems cannot be submitted")
    return plan.job


async def create_run(api: Api, plan: RunPlan, namespace: str, *, note: Callable[[str], None]) -> Obj:
    """Create claims, Secret and Job, in an order that leaves nothing half-made behind; the Job as stored.

    If the Job is refused, or the caller is interrupted, the objects created before it are removed again. An
    existing checkpoint volume always stays. Raises UsageError for a name that is taken.
    """
    planned = _planned(plan)
    async with all_or_none(api, namespace) as batch:
        for claim in plan.claims:
            with suppress(AlreadyExists):
                await batch.create(PVCS, claim)
        secret = await batch.create(SECRETS, plan.secret) if plan.secret is not None else None
        job = await _create_job(batch, planned, plan.name, namespace)
        if secret is not None:
            await _own(api, secret, job, note)
    return job


async def _create_job(batch: AtomicCreate, job: Obj, run: str, namespace: str) -> Obj:
    try:
        return await batch.create(JOBS, job)
    except AlreadyExists as error:
        raise _taken(run, namespace) from error


async def _own(api: Api, secret: Obj, job: Obj, note: Callable[[str], None]) -> None:
    """Make the Job the owner of the Secret. The run has already started, so a failure is only noted."""
    for left in reversed(range(OWN_TRIES)):
        try:
            await set_owner(api, SECRETS, secret, owner_reference(job))
            return
        except ApiError as error:
            if not left:
                note(f"the Secret {secret['metadata']['name']} will not be deleted with the run: {error.message}")


def _taken(run: str, namespace: str) -> UsageError:
    return UsageError(
        f"the name {run!r} is taken in namespace {namespace}",
        hint=f"choose another, or remove the old run: moor cancel --delete {run}",
        code=ErrorCode.EXISTS,
        field="name",
    )


class Again(Struct, frozen=True):
    """The request that made a run, and its code. `directory`: where it was typed, on a local cluster; empty if
    unknown.
    """

    request: RunRequest
    directory: str
    code: Code | None
    branch: str = ""  # URL[@REF] that was asked for, where `request` has the commit that the run used


async def read_request(api: Api, namespace: str, name: str) -> Again:
    """The request that created a run, without its name.

    Raises NotFound, and UsageError if the run did not store it.
    """
    first = min(await jobs_of_run(api, namespace, name), key=attempt_of)
    request = stored_request(first)
    if request is None:
        raise UsageError(
            f"run {name} cannot be run again: its options were not saved",
            hint=f"see its command with moor show {name}, and type it after moor run",
        )
    notes = annotations_of(first)
    git = notes.get(GIT_ANNOTATION) or request.git
    branch = request.git if git != request.git else None
    directory = notes.get(DIRECTORY_ANNOTATION, "")
    return Again(replace(request, namespace=namespace, git=git), directory, code_of(first), branch or "")
