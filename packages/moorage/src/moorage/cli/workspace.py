"""`moor workspace`: run JupyterLab, code-server or another application, and open it in a browser."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

import click
import msgspec

from moorage.actions import workspaces
from moorage.actions.objects import get_object
from moorage.api.explain import Explanation
from moorage.api.workspaces import Address, NewWorkspace, Workspace, WorkspaceList
from moorage.cli import console
from moorage.cli.browser import open_browser
from moorage.cli.listing import Listing, watch_option
from moorage.cli.names import complete
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.cli.tunnel import open_through
from moorage.cli.use import ask_use, use_lines
from moorage.cli.watching import Source, follow
from moorage.model.names import PROCESS_RUNTIME
from moorage.model.workspace import DEFAULT_CPU, DEFAULT_MEMORY, FAILED, RUNNING, STOPPED, WAITING, WORKSPACES
from moorage_kube.errors import ApiError, Forbidden, MoorageError, NotReady, ServerError, Unauthorized, UsageError
from moorage_kube.moments import format_duration, rfc3339
from moorage_kube.resources import NODES, Obj

HEADERS = ("NAME", "TYPE", "PHASE", "OWNER", "ON", "URL", "AGE")
WAIT_SECONDS = 600.0
POLL_SECONDS = 0.5


@console.group(
    examples={
        "moor workspace create lab --gpus 1 --wait": "start JupyterLab with a GPU",
        "moor workspace open lab": "open it in the browser",
        "moor workspace stop lab": "stop it; its files remain",
    }
)
def workspace() -> None:
    """JupyterLab, code-server or another application, in a browser."""


@workspace.command(
    examples={
        "moor workspace create lab --wait": "start JupyterLab",
        "moor workspace create code --type codeserver --cpu 4 --memory 16Gi": "start VS Code in the browser",
        "moor workspace create lab --gpus 1 --gpu-type a100 --volume data:/data:ro": "with a GPU and a volume",
        "moor workspace create lab --start '0 8 * * 1-5' --stop '0 20 * * *'": "on working days only",
    }
)
@click.argument("name")
@click.option(
    "--type",
    "kind",
    default="jupyterlab",
    show_default=True,
    help="jupyterlab, codeserver or another type that your administrator offers.",
    shell_complete=complete("workspace_types"),
)
@click.option(
    "--machine",
    default=None,
    metavar="GROUP/TYPE",
    help="A machine, as `moor machines` lists them.",
    shell_complete=complete("machines"),
)
@click.option("--cpu", default=None, help="CPUs, such as 4 or 500m (default 1).")
@click.option("--memory", default=None, help="Memory limit, such as 8Gi (default 4Gi).")
@click.option("--gpus", type=click.IntRange(0), default=0, help="Number of GPUs.")
@click.option(
    "--gpu-type",
    default=None,
    help="GPU type, such as a100; `moor gpus` lists them.",
    shell_complete=complete("gpu_types"),
)
@click.option(
    "--gpu-resource", default=None, help="Resource that counts as a GPU, such as a slice: nvidia.com/mig-1g.10gb."
)
@click.option(
    "--gpu-claim",
    default=None,
    metavar="TEMPLATE",
    help="Claim GPUs by this ResourceClaimTemplate, not by number.",
)
@click.option("--queue", default=None, metavar="NAME", help="Queue of Kueue (a LocalQueue) to wait in.")
@click.option("--image", default=None, help="Container image (default: the type's).")
@click.option(
    "--image-pull-secret",
    "image_pull_secrets",
    multiple=True,
    metavar="NAME",
    help="Secret to pull the image with. Repeatable.",
)
@click.option(
    "--env",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Set an environment variable, or pass on your value. Repeatable.",
)
@click.option("--volume", "volumes", multiple=True, metavar="NAME:/PATH[:ro]", help="Mount a volume. Repeatable.")
@click.option(
    "--home",
    default=None,
    metavar="NAME",
    help="Volume of the home folder, created if missing (default: NAME-home).",
)
@click.option("--home-size", default=None, help="Size of a new home volume (default 10Gi).")
@click.option(
    "--access",
    type=click.Choice(["login", "token"]),
    default=None,
    help="login: users who may edit in the namespace; token: all users with its address.",
)
@click.option("--start", default=None, metavar="CRON", help="Start it on this schedule, such as '0 8 * * 1-5'.")
@click.option("--stop", default=None, metavar="CRON", help="Stop it on this schedule.")
@click.option("--time-zone", default=None, metavar="ZONE", help="Time zone of --start and --stop (default UTC).")
@click.option("--running/--stopped", default=True, help="Start it now, or only create it (default: --running).")
@click.option("--wait", is_flag=True, help="Return once it can be opened.")
@click.option(
    "--host-env", is_flag=True, help="On a local cluster: run an image's command in this machine's environment."
)
@click.option("--dry-run", is_flag=True, help="Print the manifest; create nothing.")
@target_options
def create(target: Target, name: str, **options: Any) -> int:
    """Create a workspace, and start it."""

    async def work(session: Session) -> int:
        on_processes = await _on_processes(session)
        request = make_request(name, session.namespace, options, on_processes=on_processes)
        obj = workspaces.plan_workspace(request, on_processes=on_processes)
        await workspaces.create_workspace(session.api, obj, templates=session.api, dry_run=request.dry_run)
        if request.dry_run:
            console.show_text(console.as_yaml(obj).rstrip("\n"))
            return 0
        console.show(name)
        if options["wait"]:
            await _wait(session, name, RUNNING)
        console.say(f"open it: moor workspace open {name}")
        return 0

    return in_session(target, work)


@workspace.command(
    "list",
    examples={
        "moor workspace list": "the workspaces of your namespace",
        "moor workspace list -A": "the workspaces of all namespaces",
    },
)
@click.option("-A", "--all-namespaces", is_flag=True, help="Workspaces of all namespaces.")
@watch_option
@console.output_option
@target_options
def list_(target: Target, all_namespaces: bool, watch: bool, output: str) -> int:
    """List workspaces and their phases."""

    async def read(session: Session) -> Listing:
        listed = await (_listed_everywhere(session) if all_namespaces else _listed(session))
        now = session.clock.now

        def name_of(item: Workspace) -> str:
            return f"{item.namespace}/{item.name}" if all_namespaces else item.name

        def row(item: Workspace) -> list[str]:
            phase = item.phase
            if item.waiting_for and phase in (WAITING, FAILED):
                phase += f" ({item.waiting_for.reason})"
            elif item.idle:
                phase += f" ({item.idle})"
            age = format_duration(now() - item.created) if item.created else ""
            return [name_of(item), item.type, phase, item.owner, size_of(item), item.url, age]

        return Listing(
            headers=HEADERS,
            rows=lambda: [row(item) for item in listed],
            items=[msgspec.to_builtins(item) for item in listed],
            names=[name_of(item) for item in listed],
            nothing=f"no workspaces in namespace {session.namespace}; create one: moor workspace create lab",
        )

    async def work(session: Session) -> int:
        if watch:
            sources = [Source(WORKSPACES, None if all_namespaces else session.namespace)]
            return await follow(session, sources, lambda: read(session), output=output)
        (await read(session)).show(output)
        return 0

    return in_session(target, work)


@workspace.command(
    examples={
        "moor workspace show lab": "its state, and why it waits",
        "moor workspace show lab -o yaml": "the same for a program",
    }
)
@click.argument("name", shell_complete=complete("workspaces"))
@console.output_option
@target_options
def show(target: Target, name: str, output: str) -> int:
    """Show the state of a workspace, why it waits, and its use."""

    async def work(session: Session) -> int:
        item = await workspaces.get_workspace(session.api, session.namespace, name)
        if output == "name":
            console.show(name)
        elif output not in console.TABLES:
            console.print_document(msgspec.to_builtins(item), output)
        else:
            for line in _page(item):
                console.show(line)
            if item.pod and item.phase == WAITING:
                console.show_text(await _explained(session, item.pod), nl=False)
            path = f"/api/v1/workspaces/{quote(session.namespace)}/{quote(name)}"
            for line in use_lines(await ask_use(session, path)):
                console.show(line)
        return 0

    return in_session(target, work)


@workspace.command(
    examples={
        "moor workspace start lab": "start it",
        "moor workspace start lab --wait": "return once it can be opened",
    }
)
@click.argument("name", shell_complete=complete("workspaces"))
@click.option("--wait", is_flag=True, help="Return once it can be opened.")
@click.option("--dry-run", is_flag=True, help="Print the steps; do nothing.")
@target_options
def start(target: Target, name: str, wait: bool, dry_run: bool) -> int:
    """Start a workspace that is stopped."""
    return _switch(target, name, running=True, wait=wait, dry_run=dry_run)


@workspace.command(
    examples={
        "moor workspace stop lab": "stop it; its files remain",
        "moor workspace stop lab --wait": "return once its processes have ended",
    }
)
@click.argument("name", shell_complete=complete("workspaces"))
@click.option("--wait", is_flag=True, help="Return once its processes have ended.")
@click.option("--dry-run", is_flag=True, help="Print the steps; do nothing.")
@target_options
def stop(target: Target, name: str, wait: bool, dry_run: bool) -> int:
    """Stop a workspace. Files on its volumes remain; data in memory are lost."""
    return _switch(target, name, running=False, wait=wait, dry_run=dry_run)


@workspace.command(
    "snooze",
    examples={
        "moor workspace snooze lab --for 4h": "leave it running for four more hours, though it is idle",
        "moor workspace snooze lab --for 1d": "until tomorrow, where the policy allows it",
    },
)
@click.argument("name", shell_complete=complete("workspaces"))
@click.option("--for", "time", required=True, metavar="TIME", help="A span such as 90m, 4h or 1d.")
@target_options
def snooze(target: Target, name: str, time: str) -> int:
    """Put off the suspension of an idle workspace, within the limits of its policy."""
    from moorage.cli.idle import snooze_all

    return snooze_all(target, [f"workspace/{name}"], time)


@workspace.command(
    "open",
    examples={
        "moor workspace open lab": "open it in the browser",
        "moor workspace open lab --print": "print its address",
        "moor workspace open lab --tunnel --port 8888": "through a tunnel from port 8888 of this machine",
    },
)
@click.argument("name", shell_complete=complete("workspaces"))
@click.option("--print", "only_print", is_flag=True, help="Print the address instead of opening a browser.")
@click.option(
    "--tunnel", is_flag=True, help="Use a tunnel through the server, even if the workspace has an address."
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=None,
    help="Port of this machine where the tunnel begins (default: any free one). Implies --tunnel.",
)
@target_options
def open_(target: Target, name: str, only_print: bool, tunnel: bool, port: int | None) -> int:
    """Open a workspace in the browser; it is started if it is stopped.

    Without a browser, as over SSH, it prints the address. On a cluster without a domain for workspaces it opens a
    tunnel from a port of this machine, and runs until Ctrl-C.
    """

    async def work(session: Session) -> int:
        item = await workspaces.get_workspace(session.api, session.namespace, name)
        if not item.running:
            await workspaces.switch_workspace(session.api, session.namespace, name, running=True)
            console.say(f"starting {name}")
        await _wait(session, name, RUNNING)
        if tunnel or port is not None or not await _has_address(session, name):
            return await open_through(session, name, port=port or 0, only_print=only_print)
        url = await _address(session, name)
        if only_print:
            console.show(url)
            return 0
        if open_browser(url):
            console.say(f"opened {urlsplit(url)._replace(query='').geturl()}")
        else:
            console.say("cannot open a browser here; open this address in yours:")
            console.show(url)
        return 0

    return in_session(target, work)


@workspace.command(
    examples={
        "moor workspace delete lab": "delete it; its home volume stays",
        "moor workspace delete lab --delete-home": "delete its files too",
        "moor workspace delete lab --dry-run": "print the objects that would be deleted",
    }
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete("workspaces"))
@click.option("--delete-home", is_flag=True, help="Also delete the home volumes and all their files.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Print the objects that would be deleted; delete nothing.")
@target_options
def delete(target: Target, names: tuple[str, ...], delete_home: bool, yes: bool, dry_run: bool) -> int:
    """Delete workspaces. Their home volumes remain, unless --delete-home is given."""

    async def work(session: Session) -> int:
        homes = {name: await workspaces.home_of(session.api, session.namespace, name) for name in names}
        if delete_home and not yes and not dry_run:
            console.confirm(f"Delete {', '.join(homes)} and all files in their homes?")
        for name, home in homes.items():
            if not dry_run:
                await workspaces.delete_workspace(session.api, session.namespace, name, delete_home=delete_home)
            console.show(f"{name} {'would be deleted' if dry_run else 'deleted'}")
            if not delete_home:
                console.note(f"its home remains: volume {home}")
        return 0

    return in_session(target, work)


# --- the request


def make_request(name: str, namespace: str, options: Mapping[str, Any], *, on_processes: bool) -> NewWorkspace:
    """The workspace that the options of `create` describe. Raises UsageError."""
    # a machine replaces resources
    spec: Obj = {"type": options["kind"], "running": options["running"]}
    if options["machine"]:
        group, slash, kind = options["machine"].partition("/")
        if not (group and slash and kind):
            raise UsageError(
                f"invalid --machine {options['machine']!r}: use GROUP/TYPE", hint="list them: moor machines"
            )
        spec["machine"] = {"group": group, "type": kind}
    # leave unset fields out, so that the template's defaults apply
    given = {"cpu": options["cpu"], "memory": options["memory"], "gpuType": options["gpu_type"]}
    given |= {"gpuResource": options["gpu_resource"], "gpuClaim": options["gpu_claim"]}
    resources = {key: value for key, value in given.items() if value}
    if options["gpus"]:
        resources["gpus"] = options["gpus"]
    home = {"claimName": options["home"], "size": options["home_size"]}
    schedule = {"start": options["start"], "stop": options["stop"], "timeZone": options["time_zone"]}
    for key, table in (("resources", resources), ("home", home), ("schedule", schedule)):
        if table := {field: value for field, value in table.items() if value}:
            spec[key] = table
    # further fields, each only if it was typed
    if options["image"]:
        spec["image"] = options["image"]
    if options["image_pull_secrets"]:
        spec["imagePullSecrets"] = list(options["image_pull_secrets"])
    if options["access"]:
        spec["access"] = options["access"]
    if options["volumes"]:
        spec["volumes"] = [_volume(text) for text in options["volumes"]]
    # on a local cluster, processes need the user's environment to find their programs
    variables = dict(_variable(text) for text in options["env"])
    if on_processes and (options["host_env"] or not options["image"]):
        variables = workspaces.host_variables(os.environ) | variables
    if variables:
        spec["env"] = [{"name": key, "value": value} for key, value in variables.items()]
    return NewWorkspace(
        name=name,
        namespace=namespace,
        spec=spec,
        host_env=options["host_env"],
        queue=options["queue"] or "",
        dry_run=options["dry_run"],
    )


def _volume(text: str) -> Obj:
    name, _, rest = text.partition(":")
    path, _, mode = rest.partition(":")
    if not name or not path.startswith("/") or mode not in ("", "ro", "rw"):
        raise UsageError(f"invalid --volume {text!r}: use NAME:/PATH or NAME:/PATH:ro")
    return {"claimName": name, "mountPath": path} | ({"readOnly": True} if mode == "ro" else {})


def _variable(text: str) -> tuple[str, str]:
    name, has_value, value = text.partition("=")
    if not has_value:
        if name not in os.environ:
            raise UsageError(f"--env: {name!r} is not set here", hint=f"give it a value: --env {name}=VALUE")
        value = os.environ[name]
    return name, value


def size_of(item: Workspace) -> str:
    """Describe the size of its machine, in a few words."""
    if item.machine:
        return f"{item.machine['group']}/{item.machine['type']}"
    resources = item.resources
    gpus = resources.get("gpus")
    words = [f"{resources.get('cpu') or DEFAULT_CPU} cpu", str(resources.get("memory") or DEFAULT_MEMORY)]
    if claim := resources.get("gpuClaim"):
        words.append(f"claim {claim}")
    return " ".join(words + ([f"{gpus} {resources.get('gpuType') or 'gpu'}"] if gpus else []))


# --- actions


async def _on_processes(session: Session) -> bool:
    """Whether this is a local cluster: by its nodes, or, for users who may not list them, by the server."""
    try:
        nodes = (await session.api.list(NODES, limit=1)).items
    except ApiError:
        from moorage.api.gpus import Gpus

        with contextlib.suppress(MoorageError):
            return (await session.server.ask(Gpus, "GET", "/api/v1/gpus")).process_runtime
        return False
    texts = [
        str(((node.get("status") or {}).get("nodeInfo") or {}).get("containerRuntimeVersion") or "")
        for node in nodes
    ]
    return bool(texts) and texts[0].startswith(PROCESS_RUNTIME)


def _switch(target: Target, name: str, *, running: bool, wait: bool, dry_run: bool) -> int:
    async def work(session: Session) -> int:
        await workspaces.get_workspace(session.api, session.namespace, name)
        word = "start" if running else "stop"
        if dry_run:
            console.show(f"{name} would {word}")
            return 0
        await workspaces.switch_workspace(session.api, session.namespace, name, running=running)
        if wait:
            await _wait(session, name, RUNNING if running else STOPPED)
        console.show(f"{name} {'started' if running else 'stopped'}" if wait else f"{name} will {word}")
        return 0

    return in_session(target, work)


async def _wait(session: Session, name: str, phase: str) -> None:
    """Return once it is in that phase; meanwhile print why it waits.

    Raises NotReady when it cannot reach the phase.
    """
    deadline, printed = session.clock.monotonic() + WAIT_SECONDS, ""
    while True:
        workspace = await get_object(session.api, workspaces.WORKSPACE, session.namespace, name)
        status = workspace.get("status") or {}
        current = status.get("observedGeneration") == workspace["metadata"].get("generation")
        if current and status.get("phase") == phase:
            return
        message = str((status.get("waitingFor") or {}).get("message") or "")
        if current and status.get("phase") == FAILED:
            raise NotReady(f"workspace {name} failed: {message}", hint=f"moor workspace show {name}")
        if message and message != printed:
            printed = message
            console.say(message)
        if session.clock.monotonic() > deadline:
            raise NotReady(f"workspace {name} is not {phase} after {WAIT_SECONDS:g} s: {message}")
        await session.clock.sleep(POLL_SECONDS)


async def _has_address(session: Session, name: str) -> bool:
    return bool((await workspaces.get_workspace(session.api, session.namespace, name)).url)


async def _address(session: Session, name: str) -> str:
    """The address that opens the workspace in a browser: valid once, or with the workspace's token."""
    path = f"/api/v1/workspaces/{session.namespace}/{name}/open"
    way: workspaces.WayIn | Address
    try:
        way = await workspaces.way_in(session.api, session.namespace, name)
    except Forbidden as refused:  # the server gives its token to its owner
        try:
            way = await session.server.ask(Address, "POST", path, body={})
        except NotReady:
            raise refused from None
    if isinstance(way, workspaces.WayIn) and way.by_login:
        try:
            return (await session.server.ask(Address, "POST", path, body={})).url
        except Forbidden:  # it does not act for this user: its page asks who they are
            return way.url
    if way.password:
        console.say(f"its password is {way.password}")
    return way.url


async def _listed(session: Session) -> Sequence[Workspace]:
    return (await workspaces.list_workspaces(session.api, session.namespace))[0]


async def _listed_everywhere(session: Session) -> Sequence[Workspace]:
    """The workspaces of all namespaces.

    If the user may not list those, the server lists the permitted namespaces.
    """
    try:
        return (await workspaces.list_workspaces(session.api, None))[0]
    except Forbidden as refused:
        try:
            return (await session.server.ask(WorkspaceList, "GET", "/api/v1/workspaces")).workspaces
        except (NotReady, ServerError, Unauthorized, Forbidden):
            raise refused from None


async def _explained(session: Session, pod: str) -> str:
    try:
        answer = await session.server.ask(Explanation, "GET", f"/api/v1/explain/{session.namespace}/{pod}")
    except MoorageError:
        return ""
    return "\n" + answer.text.rstrip("\n") + "\n"


def _page(item: Workspace) -> list[str]:
    lines = [
        f"Workspace: {item.namespace}/{item.name}",
        f"Type:      {item.type}" + (f" ({item.image})" if item.image else ""),
        f"Owner:     {item.owner or '-'}",
        f"Phase:     {item.phase}",
    ]
    if item.waiting_for:
        lines.append(f"Waits for: {item.waiting_for.message}")
    if item.idle:
        lines.append(f"Idle:      {item.idle}" + (f": {item.idle_why}" if item.idle_why else ""))
    if item.url:
        lines.append(f"Address:   {item.url} (by {item.access})")
    lines.append(f"On:        {size_of(item)}" + (f", node {item.node}" if item.node else ""))
    lines.append(f"Home:      {item.home or '-'}")
    if item.volumes:
        lines.append(f"Volumes:   {', '.join(item.volumes)}")
    for at, word in ((item.next_start, "Starts:"), (item.next_stop, "Stops:")):
        if at is not None:
            lines.append(f"{word:<10} {rfc3339(at)}")
    return lines
