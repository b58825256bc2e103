"""`moor up`, `moor down`, `moor status`: the local cluster and Moorage's services on this machine."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from moorage.cli import console
from moorage.cli.datafolder import DEFAULT_PORTS, OPTIONS, Config, DataFolder, listening
from moorage.cli.localports import port_holder
from moorage.client.datafolder import default_folder
from moorage_kube.errors import AlreadyRunning, DataFolderError, DocumentError, MoorageError, NotReady, UsageError
from moorage_kube.quantity import counted

SLOW_SECONDS = (
    30.0  # a loaded laptop needs about 3 s; after each of these the start reports the process it waits for
)
STOP_SECONDS = 120.0  # pods get their grace period first
GIVE_UP_SECONDS = 900.0  # a machine with much to do may need minutes; this only bounds a hang
SIMULATED_CPUS = 16  # capacity of a simulated node; CPU is promised, not enforced, on this machine
ENDED = "ended with exit code"  # how the supervisor reports a child that gave no reason
DEATHS = 3  # of one child, after which a start has failed; one may be killed for memory while others start
PARTS = {
    "services": "services",
    "admission": "admission",
    "ingress": "ingress",
    "localcluster": "local cluster with its pods",
}

data_option = click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Data folder (default: $MOORAGE_DATA or ~/.local/share/moorage).",
)


@console.command(
    examples={
        "moor up": "this machine as one node, with its GPUs",
        "moor up --nodes 2 --gpus 4 --gpu-type a100": "two simulated nodes",
        "moor up --data /tmp/try --port 9090": "a cluster to throw away, on another port",
        "moor up --foreground": "with the logs, until Ctrl-C",
    }
)
@click.option("--nodes", type=click.IntRange(1, 100), default=None, help="Number of simulated nodes.")
@click.option("--gpus", type=click.IntRange(0, 64), default=None, help="Simulated GPUs of each node.")
@click.option("--gpu-type", default=None, help="Type label of the simulated GPUs, such as a100.")
@click.option("--node-cpu", default=None, help="CPUs each simulated node offers (default 16).")
@click.option("--node-memory", default=None, help="Memory each simulated node offers (default: an equal share).")
@click.option(
    "--node-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=None,
    help="YAML list of nodes: name, count, cpu, memory, gpus, gpuType, gpuMemory, labels, taints.",
)
@click.option(
    "--port", type=int, default=None, help="Port of the web page and REST API (default 8080, or a free one)."
)
@click.option(
    "--api-port", type=int, default=None, help="Port of the Kubernetes API (default 6443, or a free one)."
)
@click.option("--ingress-port", type=int, default=None, help="Port of the ingress (default 8081, or a free one).")
@click.option("--extender/--no-extender", default=None, help="Pack GPUs by the scheduler extender (default on).")
@click.option("--foreground", is_flag=True, help="Stay in the foreground and print the logs until Ctrl-C.")
@data_option
def up(
    nodes: int | None,
    gpus: int | None,
    gpu_type: str | None,
    node_cpu: str | None,
    node_memory: str | None,
    node_file: Path | None,
    port: int | None,
    api_port: int | None,
    ingress_port: int | None,
    extender: bool | None,
    foreground: bool,
    data: Path | None,
) -> None:
    """Start the local cluster and Moorage's services on this machine.

    Without node options, it starts the nodes of the last start, or this machine as one node with its GPUs.

    It does not start with a damaged file in the data folder; `moor restore` brings the file back.
    """
    # an existing folder is locked before its files are read
    folder = DataFolder(data.absolute() if data else default_folder())
    folder.check_version()
    with contextlib.ExitStack() as held:
        lock = None
        if folder.path.exists():  # a new folder is made only once the options are known to be right
            from moorage.cli.folderhealth import refuse_damage

            lock = held.enter_context(folder.locked())
            stop_leftovers(folder)
            refuse_damage(folder)
        # the nodes: from a file, from options, from the last start, or this machine
        config = folder.load_config() if folder.exists() else None
        config = config or Config()
        simulated = (nodes, gpus, gpu_type, node_cpu, node_memory)
        if node_file is not None:
            if any(value is not None for value in simulated):
                raise UsageError(
                    "--node-file describes all nodes; it cannot be used with --nodes, --gpus or --gpu-type"
                )
            config.nodes = nodes_of_file(node_file)
        elif any(value is not None for value in simulated):
            config.nodes = simulated_nodes(
                nodes or 1, gpus or 0, gpu_type, node_cpu=node_cpu, node_memory=node_memory
            )
        elif not config.nodes:
            config.nodes = [{"name": "", "real": True}]
        config.user = config.user or _user()
        if extender is not None:
            config.extender = extender
        # only now create the folder: the options are valid
        asked = {"server": port, "api": api_port, "ingress": ingress_port}
        folder.prepare()
        if lock is None:
            lock = held.enter_context(folder.locked())
        # a port that was not asked for may give way to a free one
        ports = {
            name: chosen if (chosen := asked.get(name)) is not None else config.ports.get(name, usual)
            for name, usual in DEFAULT_PORTS.items()
        }
        yielding = frozenset(name for name in DEFAULT_PORTS if asked.get(name) is None)
        with listening(ports, yielding=yielding) as sockets:
            # write the files that commands read: config, tokens, kubeconfig
            config.ports = {name: sock.getsockname()[1] for name, sock in sockets.items()}
            _say_other_ports(ports, config.ports)
            folder.save_config(config)
            tokens = folder.tokens(config.user)
            _write_access(folder, config, tokens)
            (folder.run / "stop-pods").unlink(missing_ok=True)
            # children inherit the sockets and the lock
            fds = {name: sock.fileno() for name, sock in sockets.items()}
            for fd in [*fds.values(), lock]:
                os.set_inheritable(fd, True)
            page = f"http://127.0.0.1:{config.ports['server']}/?token={tokens['page']}"
            # in the foreground this process is the supervisor itself
            if foreground:
                from moorage.cli.supervisor import supervise

                console.say(f"web page: {page}", "stop with Ctrl-C")
                with contextlib.chdir("/"):
                    supervise(folder.path, fds, None, log_to_stderr=True)
                return
            started = time.monotonic()
            _start_and_wait(folder, fds, lock)
    _report(folder, config, page, time.monotonic() - started)


def _say_other_ports(wanted: Mapping[str, int], taken: Mapping[str, int]) -> None:
    """Report ports that differ from the usual ones, or from those of the last start."""
    for name, noun in (("server", "web page"), ("api", "Kubernetes API"), ("ingress", "ingress")):
        if wanted[name] not in (0, taken[name]):
            holder = port_holder(wanted[name])
            console.note(
                f"port {wanted[name]} is taken{f' by {holder}' * bool(holder)}: the {noun} uses {taken[name]};"
                f" {OPTIONS[name]} chooses another"
            )


def _write_access(folder: DataFolder, config: Config, tokens: Mapping[str, str]) -> None:
    """Write certificates, kubeconfig and scheduler configuration: the files that both children read at start."""
    from moorage.cli.embedded import embedded
    from moorage.model.monitoring.local import scrape_configuration
    from moorage.model.monitoring.rules import rule_groups
    from moorage.model.schedulerconfig import derived_token, local_scheduler_configuration

    pki = embedded().ensure_pki(folder.path / "pki")
    folder.write_kubeconfig(
        port=config.ports["api"], user=config.user, token=tokens["admin"], ca_pem=pki.ca_pem.encode()
    )
    prometheus = scrape_configuration(config.ports, token=tokens["page"], folder=folder.path, ca=pki.ca)
    folder.write("prometheus.yml", json.dumps(prometheus, indent=2) + "\n")  # JSON is YAML
    folder.write("prometheus-rules.yml", json.dumps({"groups": rule_groups()}, indent=2) + "\n")
    if config.extender:
        address = f"http://127.0.0.1:{config.ports['extender']}"
        made = local_scheduler_configuration(address, token=derived_token(tokens["extender"]))
        folder.write("scheduler.json", json.dumps(made, indent=2) + "\n")
    else:
        (folder.path / "scheduler.json").unlink(missing_ok=True)


def _start_and_wait(folder: DataFolder, fds: dict[str, int], lock: int) -> None:
    """Start the detached supervisor; return when its children have reported that they are ready."""
    ready_read, ready_write = os.pipe()
    os.set_inheritable(ready_write, True)
    log = (folder.log / "supervisor.log").open("ab")
    process = subprocess.Popen(
        [sys.executable, "-m", "moorage.cli.supervisor", str(folder.path), json.dumps(fds), str(ready_write)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=[*fds.values(), lock, ready_write],
        start_new_session=True,
        cwd="/",
    )
    log.close()
    os.close(ready_write)
    problem: str | None = "interrupted"
    try:
        problem = wait_ready(ready_read, folder.log)
    finally:
        os.close(ready_read)
        if problem:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
            process.wait()
    if problem:
        raise NotReady(
            f"the cluster did not start and was stopped: {problem}", hint=f"see the logs in {folder.log}"
        )


def _is_readable(fd: int, seconds: float) -> bool:
    return bool(select.select([fd], [], [], seconds)[0])


def wait_ready(
    ready: int,
    log: Path,
    *,
    monotonic: Callable[[], float] = time.monotonic,
    is_readable: Callable[[int, float], bool] = _is_readable,
) -> str | None:
    """Return None once all awaited children have reported on the pipe that they are ready, else the failure."""
    waiting, received, deaths = {"localcluster", "services", "admission"}, b"", Counter[str]()
    began = monotonic()
    noted = began
    while waiting:
        now = monotonic()
        names = " and ".join(sorted(waiting))
        if now - began >= GIVE_UP_SECONDS:
            return f"{names} not ready after {GIVE_UP_SECONDS:g} s"
        if now - noted >= SLOW_SECONDS:
            noted = now
            are = "are" if len(waiting) > 1 else "is"
            console.note(f"{names} {are} still starting after {now - began:.0f} s; Ctrl-C stops it; logs: {log}")
        if not is_readable(ready, noted + SLOW_SECONDS - now):
            continue
        chunk = os.read(ready, 4096)
        if not chunk:
            return f"{names} ended while starting"
        received += chunk
        *lines, received = received.split(b"\n")
        for line in lines:
            name, _, word = line.decode().partition(" ")
            if word == "ready":
                waiting.discard(name)
                continue
            deaths[name] += word.startswith(ENDED)
            if not word.startswith(ENDED) or deaths[name] >= DEATHS:
                return f"{name}: {word}"
            console.note(f"{name} {word} while starting; it is started again")
    return None


def _report(folder: DataFolder, config: Config, page: str, seconds: float) -> None:
    gpus = sum(int(node.get("gpus", 0)) for node in config.nodes)
    shown = "this machine as one node"
    if not config.nodes[0].get("real"):
        shown = f"{len(config.nodes)} simulated node{'s'[: len(config.nodes) != 1]}"
    if gpus:
        shown += f" with {gpus} GPU{'s'[: gpus != 1]}"
    console.say(f"ready in {seconds:.1f} s: {shown}")
    console.show(f"web page:   {page}")
    ingress = config.ports["ingress"]
    console.show(f"ingress:    http://127.0.0.1:{ingress} and http://NAME.localhost:{ingress}")
    console.show(f"kubectl:    KUBECONFIG={folder.kubeconfig} kubectl get nodes")
    if folder.path != default_folder():
        shown = shlex.quote(str(folder.path))
        console.show(f"commands:   export MOORAGE_DATA={shown}, or add --data {shown} to each")
    from moorage.cli.embedded import embedded

    try:
        gap = embedded().try_fence(folder.path).gap
    except MoorageError as error:  # no pod starts before it is known
        console.say(f"warning: pods do not start yet: {error.message}")
    else:
        if gap:
            console.say(f"warning: pods can read this cluster's folder and the administrator's token ({gap})")
    data = "" if folder.path == default_folder() else f" --data {folder.path}"
    console.show("next:")
    for command, comment in (
        (f"moor run --follow{data} -- python3 -c 'print(\"hello\")'", "your first run"),
        (f"moor status{data}", "addresses, nodes, disk"),
        (f"moor down{data}", "stop; runs and volumes stay"),
    ):
        console.show(f"  {command:<52}  # {comment}")


@console.command(
    examples={
        "moor down": "stop the cluster; jobs continue at the next start",
        "moor down --keep-pods": "leave running pods alone",
        "moor down --data /tmp/try": "stop another one",
        "moor down --erase": "stop it, and remove its runs, volumes, accounts and logs",
    }
)
@click.option("--keep-pods", is_flag=True, help="Leave running pods alone; the next `moor up` adopts them.")
@click.option(
    "--erase", is_flag=True, help="Remove the data folder: runs, volumes with their files, accounts, logs."
)
@click.option("--yes", is_flag=True, help="With --erase: do not ask.")
@data_option
def down(keep_pods: bool, erase: bool, yes: bool, data: Path | None) -> None:
    """Stop the local cluster. Running jobs are stopped, and continue at the next `moor up`.

    The data folder remains: runs, volumes, workspaces, accounts and logs. --erase removes it.
    """
    folder = DataFolder(data.absolute() if data else default_folder())
    folder.check_version()
    if erase and keep_pods:
        raise UsageError("--erase and --keep-pods cannot be used together: pods need the data folder")
    if erase and not folder.exists():
        console.say(f"nothing to erase: {folder.path} does not exist")
        return
    if erase and not yes:
        console.confirm(f"Stop the cluster and remove {folder.path} with all its runs, volumes and files?")
    _stop(folder, keep_pods=keep_pods)
    if erase:
        with folder.locked():
            erase_folder(folder.path)
        console.say(f"removed: {folder.path}")
    elif folder.exists():
        option = "" if folder.path == default_folder() else f" --data {folder.path}"
        console.say(
            f"runs, volumes and accounts remain in {folder.path}",
            f"start again: moor up{option}   remove all: moor down --erase{option}",
        )


def erase_folder(path: Path) -> None:
    """Remove a data folder. Raises DataFolderError when a part of it cannot be removed."""
    try:
        shutil.rmtree(path.resolve())
        if path.is_symlink():
            path.unlink()
    except OSError as error:
        raise DataFolderError(
            f"cannot remove {error.filename or path}: {error.strerror or error}",
            hint=f"remove it yourself: rm -rf {shlex.quote(str(path))}",
        ) from error


def _stop(folder: DataFolder, *, keep_pods: bool) -> None:
    """Stop the cluster of a folder, and print the result. Raises MoorageError when it does not stop."""
    from moorage.sdk.progress import PATIENCE_SECONDS, Bar

    # without a supervisor, stop only the leftovers of a killed one
    with contextlib.ExitStack() as held, contextlib.suppress(AlreadyRunning):
        if folder.run.is_dir():
            held.enter_context(folder.locked())
        stop_leftovers(folder)
        stopped = 0 if keep_pods else _stop_pods(folder)
        extra = (
            f"; {counted(stopped, 'pod')} that {'was' if stopped == 1 else 'were'} left running stopped"
            if stopped
            else ""
        )
        console.say(f"there is no running cluster in {folder.path}{extra}")
        return
    pid = folder.pid("supervisor")
    if pid is None:
        raise MoorageError(
            f"the data folder {folder.path} is locked, but the process that holds it is unknown",
            hint="another `moor up` may just be starting; try again in a moment",
        )
    # the control plane stops the pods itself when it finds this file
    if keep_pods:
        (folder.run / "stop-pods").unlink(missing_ok=True)
    else:
        with contextlib.suppress(OSError):  # a full disk: the pods are stopped below
            folder.write("run/stop-pods", "")
    # the supervisor stops its children
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    # wait for the release of the lock
    deadline = time.monotonic() + STOP_SECONDS
    with Bar(after=PATIENCE_SECONDS) as bar:
        while folder.is_running() and (left := deadline - time.monotonic()) > 0:
            bar.show(stopping_line(_processes(folder), left))
            time.sleep(0.05)
    if folder.is_running():
        raise MoorageError(
            f"the cluster did not stop within {STOP_SECONDS:g} s (process {pid})", hint=f"see {folder.log}"
        )
    if not keep_pods:
        _stop_pods(folder)  # of a control plane that could not read its store, or was killed on the way
    console.say("stopped; running pods were left alone" if keep_pods else "stopped")


def simulated_nodes(
    count: int, gpus: int, gpu_type: str | None, *, node_cpu: str | None, node_memory: str | None
) -> list[dict[str, Any]]:
    """Node specs for `--nodes`, each with an equal share of this machine's memory by default."""
    from moorage_kube.quantity import parse_count, parse_milli

    cpu = parse_milli(node_cpu) if node_cpu else 1000 * max(SIMULATED_CPUS, os.cpu_count() or 1)
    memory = parse_count(node_memory) if node_memory else _machine_memory() // count
    if gpu_type and not gpus:
        raise UsageError(f"--gpu-type {gpu_type} without GPUs", hint="add --gpus N")
    return [
        {
            "name": f"node-{index}",
            "cpu_milli": cpu,
            "memory_bytes": memory,
            "gpus": gpus,
            "gpu_type": (gpu_type or "simulated") if gpus else "",
        }
        for index in range(1, count + 1)
    ]


def nodes_of_file(path: Path) -> list[dict[str, Any]]:
    """Read a node file. Raises UsageError naming the entry, the field and the allowed values."""
    from moorage_kube.documents import parse_document
    from moorage_kube.quantity import parse_count, parse_milli

    allowed = {"name", "count", "cpu", "memory", "gpus", "gpuType", "gpuMemory", "labels", "taints"}
    try:
        entries = parse_document(path.read_bytes())
    except DocumentError as error:
        raise UsageError(f"{path} is not valid YAML: {error.located}") from error
    # a list, or a document with the field `nodes`
    if isinstance(entries, dict) and set(entries) == {"nodes"}:
        entries = entries["nodes"]
    if not isinstance(entries, list) or not entries:
        raise UsageError(f"{path} has no list of nodes", hint="write `- {name: gpu, count: 2, gpus: 4}`")
    # check each entry, and expand its count into single nodes
    nodes: list[dict[str, Any]] = []
    for at, entry in enumerate(entries):
        where = f"{path}, entry {at + 1}"
        if not isinstance(entry, dict) or not entry.get("name"):
            raise UsageError(f"{where}: no name", hint="each node needs at least a name")
        if unknown := sorted(set(entry) - allowed):
            raise UsageError(
                f"{where}: unknown field {unknown[0]!r}", hint=f"allowed: {', '.join(sorted(allowed))}"
            )
        if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", str(entry["name"])):
            raise UsageError(f"{where}: {entry['name']!r} is not a node name (a-z, 0-9, '-', '.')")
        # the whole numbers, each within its range
        numbers = {}
        for field, usual, low, high in (("count", 1, 1, 100), ("gpus", 0, 0, 64)):
            value = entry.get(field, usual)
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise UsageError(f"{where}: {field} is {value!r}; allowed are {low} to {high}")
            numbers[field] = value
        # the fields of the local cluster's NodeSpec
        count, gpus = numbers["count"], numbers["gpus"]
        spec = {
            "cpu_milli": parse_milli(entry.get("cpu", SIMULATED_CPUS)),
            "memory_bytes": parse_count(entry["memory"]) if "memory" in entry else _machine_memory(),
            "gpus": gpus,
            "gpu_type": str(entry.get("gpuType") or ("simulated" if gpus else "")),
            "labels": {str(k): str(v) for k, v in (entry.get("labels") or {}).items()},
            "taints": entry.get("taints") or [],
        }
        if "gpuMemory" in entry:
            spec["gpu_memory_bytes"] = parse_count(entry["gpuMemory"])
        names = [entry["name"]] if count == 1 else [f"{entry['name']}-{n}" for n in range(1, count + 1)]
        nodes += [spec | {"name": name} for name in names]
    # names must be unique across entries
    seen: set[str] = set()
    for node in nodes:
        if node["name"] in seen:
            raise UsageError(f"{path}: two nodes are named {node['name']}")
        seen.add(node["name"])
    return nodes


def stop_leftovers(folder: DataFolder) -> None:
    """Kill the children that a killed supervisor left. They also end on their own soon; this ensures it."""
    deadline = time.monotonic() + 10
    while (pids := folder.pids(PARTS)) and time.monotonic() < deadline:
        for pid in pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _stop_pods(folder: DataFolder) -> int:
    from moorage.cli.embedded import embedded

    return embedded().stop_all(folder.path / "nodes")


def _processes(folder: DataFolder) -> list[str]:
    """The parts of the cluster that still run."""
    pids = folder.pids(PARTS)
    return [name for name in PARTS if name in pids]


def stopping_line(processes: Sequence[str], seconds_left: float) -> str:
    """Return one line with the processes that a stop waits for."""
    waited_for = ", ".join(PARTS[name] for name in processes) or "supervisor"
    return f"stopping: waiting for {waited_for}; at most {seconds_left:.0f} s more"


def _machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"
