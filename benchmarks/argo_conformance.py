"""Runs Argo's own manifests and compares what comes out with what must: phases, pods, nodes, outputs.

    python benchmarks/argo_conformance.py --corpus FOLDER [--only TEXT] [--at-once 4]
        [--kill SECONDS [--kills 300] [--seed 1]] [--results FILE] [--undisturbed FILE] [--real]

FOLDER has `expected.json` and `manifests/`. A local cluster is started for it, on which the images of the
manifests are processes of this machine with root file systems of their own (`benchmarks/argo_images`). Printed is
each entry, with why it failed or was refused, then per tier how many passed, failed and were refused, and the
time. What the manifests find at `minio:9000` is an S3 server of this process.

With `--kill`, the operator is killed with SIGKILL at random moments, and with it webhook, extender and server:
beside the local cluster they are one process. The supervisor starts them again at once (`quick_restarts.py`). The
moments are counted from when they are ready, but for one kill in four, which may come before that. Rounds through
the corpus follow, each on a new cluster, until `--kills` were done.

In every round each command of a step counts its own starts, in a file of this machine: more than one for an
attempt fails the entry. So does a node that goes on when its workflow has ended. `--results FILE` keeps type,
phase and exit code of every node. `--undisturbed FILE` names such a file of a round without kills: an entry that
gives something else fails.

With `--real` the manifests run on the cluster that MOORAGE_TEST_KUBECONFIG names, as tests do. Its nodes
must have the images, which are not pulled. A container without a command gets that of the table of images.

Exit code 1 when an entry failed. The fields of `expected.json` are explained in its `_meta`.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import logging
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from moorage.model.argo import (
    CLUSTER_WORKFLOW_TEMPLATES,
    CRON_WORKFLOWS,
    WORKFLOW_LABEL,
    WORKFLOW_TEMPLATES,
    WORKFLOWS,
)
from moorage.model.manifests import RBAC, ROLEBINDINGS
from moorage_kube.errors import AlreadyExists, ApiError, MoorageError, NotFound
from moorage_kube.remote.client import KubeClient
from moorage_kube.remote.config import load_connection
from moorage_kube.resources import CONFIGMAPS, NODES, PODS, PRIORITYCLASSES, PVCS, SECRETS
from moorage_testing.cluster import start_cluster
from moorage_workflows.controllers.workflow.checks import faults_of
from moorage_workflows.decide.workflows.normalise import normalise
from moorage_workflows.decide.workflows.templates import TemplateKey, missing
from moorage_workflows.model.workflow import RESUME_ANNOTATION, NodeRecord
from moorage_workflows.workflows.records import LocalRecords

HERE = Path(__file__).resolve().parent
ARGOSAY = Path("/argosay")
KINDS = {
    resource.kind: resource
    for resource in (WORKFLOWS, WORKFLOW_TEMPLATES, CLUSTER_WORKFLOW_TEMPLATES, CRON_WORKFLOWS, CONFIGMAPS, PVCS)
}
RESTARTED = "supervisor: services ended"
FINAL = ("Succeeded", "Failed", "Error")
STARTS = "/starts"  # where pods see the folder in which commands count themselves
PATIENCE_SECONDS = 900.0  # the longest takes 260 s when nothing is killed
# what no manifest of the corpus brings, and some need
BUCKETS = ("my-bucket", "my-bucket-2", "my-bucket-3")
STORE_ADDRESS = "minio:9000"  # of the S3 server, as the manifests write it
NOT_FOUND = "https://github.com/argoproj/argo-workflows/not-found"  # needs a network: our server answers 404, too
STORE_KEYS = {"accesskey": "admin", "secretkey": "password"}  # of the Secret my-minio-cred
REPOSITORY = {
    "s3": {
        "bucket": "my-bucket",
        "endpoint": STORE_ADDRESS,
        "insecure": True,
        "accessKeySecret": {"name": "my-minio-cred", "key": "accesskey"},
        "secretKeySecret": {"name": "my-minio-cred", "key": "secretkey"},
    }
}
REPOSITORIES = ("my-key", "default-v1-s3-artifact-repository")
FIXTURES = (
    (SECRETS, {"metadata": {"name": "my-secret"}, "stringData": {"mypassword": "S00perS3cretPa55word"}}),
    (SECRETS, {"metadata": {"name": "my-minio-cred"}, "stringData": STORE_KEYS}),
    (CONFIGMAPS, {"metadata": {"name": "my-config"}, "data": {"workflow": "1", "template": "2"}}),
    (PRIORITYCLASSES, {"metadata": {"name": "lowest"}, "value": -1000}),
    (  # resource templates act as this account
        ROLEBINDINGS,
        {
            "metadata": {"name": "steps"},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "edit"},
            "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}],
        },
    ),
    (
        PVCS,
        {
            "metadata": {"name": "my-existing-volume"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        },
    ),
)
# what a person does in the manifests that wait for one: nodes to resume, with output parameters
PEOPLE = {
    "suspend-template.yaml": {"selector": "displayName=approve"},
    "intermediate-parameters.yaml": {"selector": "displayName=approval", "parameters": {"approve": "YES"}},
    "suspend-template-outputs.yaml": {"selector": "displayName=approve", "parameters": {"message": "go on"}},
    "suspend-dag-template.yaml": {"selector": "displayName=approve"},
}


@dataclass(slots=True)
class Outcome:
    """What came of one entry. `word`: passed, failed, refused."""

    entry: str
    tier: int
    word: str
    reasons: list[str] = field(default_factory=list)
    seconds: float = 0.0
    result: dict[str, Any] = field(default_factory=dict)  # of the run and each of its nodes
    commands: int = 0  # that counted themselves


@dataclass(slots=True)
class Site:
    """A running cluster, and where its records are. `store`: host and port of the S3 server.

    `is_real`: its nodes run containers, of images that are there.
    """

    api: KubeClient
    data: Path
    corpus: Path
    templates: dict[TemplateKey, Any]
    store: str
    is_real: bool = False
    kills: int = 0

    @property
    def starts(self) -> Path:
        """The folder where commands note that they start."""
        return self.data.parent / "starts"

    def read(self, entry: str) -> list[dict[str, Any]]:
        """The documents of an entry, which name the S3 server of this run."""
        text = (self.corpus / "manifests" / entry).read_text().replace(STORE_ADDRESS, self.store)
        text = text.replace(NOT_FOUND, f"http://{self.store}/none/not-found")
        documents = [document for document in yaml.safe_load_all(text) if document]
        if self.is_real:
            with_commands(documents)
            return documents
        for document in documents:
            count_starts(document.get("spec"), self.starts)
        return documents


def count_starts(value: Any, folder: Path) -> None:
    """Let each command in the templates below note its start: a line with its pod and its container."""
    if isinstance(value, list):
        for inner in value:
            count_starts(inner, folder)
    if not isinstance(value, dict):
        return
    named = [(kind, value[kind]) for kind in ("container", "script") if isinstance(value.get(kind), dict)]
    rows = [("main", container) for _, container in named if container.get("image")]
    rows += [(str(row.get("name")), row) for row in (value.get("containerSet") or {}).get("containers") or ()]
    for name, container in rows:
        if not is_program(container.get("command") or []):
            continue  # it cannot start, and nothing is to be counted
        image = image_of(str(container.get("image")))
        command = container.get("command") or image.get("entrypoint") or []
        if not container.get("command") and not container.get("args"):
            container["args"] = image.get("cmd") or []
        if isinstance(command, list):
            note = f'echo "$STARTED_POD {name}" >>{STARTS}/starts; exec "$0" "$@"'
            container["command"] = ["/bin/sh", "-c", note, *command]
            pod = {"name": "STARTED_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
            container["env"] = [*(container.get("env") or ()), pod]
            mount = {"name": "starts", "mountPath": STARTS}
            container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]
    if rows:
        volume = {"name": "starts", "hostPath": {"path": str(folder), "type": "Directory"}}
        value["volumes"] = [*(value.get("volumes") or ()), volume]
    for inner in value.values():
        count_starts(inner, folder)


def is_program(command: Any) -> bool:
    """Whether a command names a program of this machine, as far as it names one."""
    first = str(command[0]) if isinstance(command, list) and command else "/"
    return (
        "/" in first
        or "{" in first
        or shutil.which(first, path=f"{os.environ['PATH']}:{HERE / 'argo_images'}") is not None
    )


def image_of(image: str) -> dict[str, Any]:
    """The row of the table of images that is meant by a name, with its tag or without."""
    rows = {row["image"]: row for row in image_table()}
    return rows.get(image) or rows.get(image.partition(":")[0]) or rows["*"]


def starts_of(folder: Path, pods: set[str]) -> collections.Counter[str]:
    """How often each command of these pods started, as it counted itself, by "POD CONTAINER"."""
    file = folder / "starts"
    lines = file.read_text().splitlines() if file.exists() else []
    return collections.Counter(line for line in lines if line.partition(" ")[0] in pods)


def with_commands(value: Any) -> None:
    """Give the containers in a document the command of their image, and do not pull it: there is no registry."""
    if isinstance(value, dict):
        if isinstance(value.get("image"), str):
            value.setdefault("imagePullPolicy", "IfNotPresent")
            row = next(row for row in image_table() if is_named(value["image"], row["image"]))
            if not value.get("command") and "source" not in value:
                words = list(row.get("entrypoint", ())) or list(row.get("cmd", ()))
                value["command"] = [f"/{Path(word).name}" if "/argo_images/" in word else word for word in words]
        for inner in value.values():
            with_commands(inner)
    elif isinstance(value, list):
        for inner in value:
            with_commands(inner)


def is_named(image: str, pattern: str) -> bool:
    """Whether a row of the table is for an image, which may have a tag more."""
    return pattern == "*" or image == pattern or image.startswith(f"{pattern}:")


async def status_of(site: Site, name: str, uid: str) -> dict[str, Any]:
    """The object's status; where its TTL is over, what its record says."""
    try:
        return dict((await site.api.get(WORKFLOWS, name, "default")).get("status") or {})
    except NotFound:
        records = LocalRecords(site.data / "workflows.db")
        try:
            record = await records.run(uid)
        finally:
            records.close()
        if record is None:
            raise
        return {"phase": record.phase, "message": record.message}


async def read_nodes(site: Site, uid: str) -> list[NodeRecord]:
    """The rows of a run, as the store has them; reading changes nothing."""
    records = LocalRecords(site.data / "workflows.db")
    try:
        return await records.do(lambda store: list(store.nodes(uid, limit=100_000).nodes))
    finally:
        records.close()


def referred_to(document: dict[str, Any], templates: dict[TemplateKey, Any]) -> dict[TemplateKey, Any]:
    """The templates that a workflow needs: faults of others are not its own."""
    needed: dict[TemplateKey, Any] = {}
    while wanted := (missing(document, needed) & templates.keys()) - needed.keys():
        needed |= {key: templates[key] for key in wanted}
    return needed


async def play(site: Site, entry: str, expected: dict[str, Any]) -> Outcome:
    """Run one entry in a namespace of its own and compare."""
    tier = int(expected.get("tier") or 1)
    started = time.monotonic()
    outcome = Outcome(entry, tier, "passed")
    documents = site.read(entry)
    template = {"kind": "Workflow", "metadata": {}, "spec": {}, "apiVersion": WORKFLOWS.api_version}
    reference = {"name": documents[-1]["metadata"].get("name")}
    if documents[-1]["kind"].startswith("Cluster"):
        reference["clusterScope"] = True
    template["spec"] = {"workflowTemplateRef": reference}
    document = next((row for row in documents if row["kind"] in ("Workflow", "CronWorkflow")), template)
    if document["kind"] == "CronWorkflow":
        spec = normalise(document)["spec"]["workflowSpec"]
        document = {"apiVersion": document["apiVersion"], "kind": "Workflow", "metadata": {}, "spec": spec}
    name = re.sub(r"[^a-z0-9]+", "-", entry.removesuffix(".yaml").lower()).strip("-")[-50:].strip("-")
    meta = document["metadata"]
    meta.pop("generateName", None)
    meta["name"], meta["namespace"] = meta.get("name") or name, "default"
    try:
        with_refusal = faults_of(normalise(document), referred_to(normalise(document), site.templates))
        if with_refusal:
            raise MoorageError("; ".join(with_refusal))
        created = await site.api.create(WORKFLOWS, normalise(document), "default")
    except (ApiError, MoorageError) as error:
        outcome.word = "refused"
        outcome.reasons.append(error.message)
        return outcome
    name, uid = created["metadata"]["name"], created["metadata"]["uid"]
    most, asked = 0, False
    while True:
        status = await status_of(site, name, uid)
        pods = (await site.api.list(PODS, "default", label_selector=f"{WORKFLOW_LABEL}={name}")).items
        most = max(most, sum((pod.get("status") or {}).get("phase") == "Running" for pod in pods))
        if status.get("phase") in FINAL:
            break
        person = PEOPLE.get(Path(entry).name)
        if person and not asked:
            nodes = await read_nodes(site, uid)
            if any(
                node.type == "Suspend" and f"displayName={node.display_name}" == person["selector"]
                for node in nodes
            ):
                patch = {"metadata": {"annotations": {RESUME_ANNOTATION: json.dumps([person])}}}
                await site.api.patch(WORKFLOWS, name, patch, "default")
                asked = True
        if time.monotonic() - started > PATIENCE_SECONDS:
            outcome.reasons.append(f"not ended after {PATIENCE_SECONDS:g} s: {status}")
            break
        await asyncio.sleep(0.3)
    outcome.seconds = time.monotonic() - started
    nodes = await read_nodes(site, uid)
    outcome.reasons += compare(name, status, nodes, expected, most)
    if status.get("phase") in FINAL:
        outcome.reasons += [
            f"node {node.name} is {node.phase}, and the workflow has ended"
            for node in nodes
            if not node.phase.is_fulfilled
        ]
    starts = starts_of(site.starts, {node.pod_name for node in nodes if node.pod_name})
    outcome.commands = sum(starts.values())
    outcome.reasons += [f"{key}: its command started {count} times" for key, count in starts.items() if count > 1]
    outcome.result = {
        "": str(status.get("phase")),
        **{f"WF{node.name.removeprefix(name)}": facts_of(node) for node in nodes},
    }
    outcome.word = "failed" if outcome.reasons else "passed"
    return outcome


def facts_of(node: NodeRecord) -> list[str]:
    """What must be the same, whatever was killed meanwhile."""
    outputs = node.outputs
    code = "" if outputs is None or outputs.exit_code is None else outputs.exit_code
    is_ended_by_signal = node.phase == "Failed" and code in ("137", "143")
    return [str(node.type), str(node.phase), "" if is_ended_by_signal else code]


def compare(
    name: str, status: dict[str, Any], nodes: list[NodeRecord], expected: dict[str, Any], most: int
) -> list[str]:
    """What differs, each as one line."""
    reasons = []
    phases = [expected["phase"]] if "phase" in expected else expected.get("phaseOneOf") or FINAL
    if status.get("phase") not in phases:
        reasons.append(f"phase {status.get('phase')}, expected {' or '.join(phases)}: {status.get('message', '')}")
    pods = sum(1 + node.infrastructure_retries for node in nodes if node.type == "Pod" and not node.is_memoized)
    least, top = (
        expected.get("podsMin", expected.get("pods", 0)),
        expected.get("podsMax", expected.get("pods", pods)),
    )
    if not least <= pods <= top:
        reasons.append(f"{pods} pods, expected {least} to {top}")
    if "maxParallelPods" in expected and most > expected["maxParallelPods"]:
        reasons.append(f"{most} pods at once, expected at most {expected['maxParallelPods']}")
    wanted = expected.get("nodes") or {}
    # the table leaves the containers of container sets out
    known = {f"WF{node.name.removeprefix(name)}": node for node in nodes if node.type != "Container"}
    if not wanted:
        return reasons
    for key in sorted(set(wanted) | set(known)):
        node, want = known.get(key), wanted.get(key)
        if node is None or want is None:
            reasons.append(f"node {key} {'is missing' if node is None else 'was not expected'}")
            continue
        if (str(node.type), str(node.phase)) != (want["type"], want["phase"]):
            reasons.append(
                f"node {key} is {node.type} {node.phase}, expected {want['type']} {want['phase']}: {node.message}"
            )
        outputs = node.outputs
        if "exitCode" in want and (outputs is None or outputs.exit_code != str(want["exitCode"])):
            reasons.append(f"node {key}: exit code {outputs and outputs.exit_code}, expected {want['exitCode']}")
        values = dict(outputs.parameters) if outputs is not None else {}
        if want.get("outputParameters") and values != want["outputParameters"]:
            reasons.append(f"node {key}: outputs {values}, expected {want['outputParameters']}")
    return reasons


def judge_invalid(site: Site, entry: str, expected: dict[str, Any]) -> Outcome:
    """Entries that must be refused: parsed and checked, never started."""
    outcome = Outcome(entry, 1, "passed")
    from moorage_workflows.actions.workflowcheck import check_documents

    text = (site.corpus / "manifests" / entry).read_text()
    try:
        findings = [str(finding) for finding in check_documents(text)]
    except MoorageError as error:
        findings = [error.message]
    if not findings:
        outcome.word, outcome.reasons = "failed", ["nothing was found wrong with it"]
    del expected
    return outcome


async def put_fixtures(site: Site, entries: dict[str, Any]) -> None:
    repository = json.dumps(REPOSITORY).replace(STORE_ADDRESS, site.store)
    repositories = {
        "metadata": {"name": "artifact-repositories"},
        "data": dict.fromkeys(REPOSITORIES, repository),
    }
    for resource, document in (*FIXTURES, (CONFIGMAPS, repositories)):
        try:
            await site.api.create(resource, document, "default" if resource.namespaced else None)
        except AlreadyExists:
            continue
    node_labels = {"metadata": {"labels": {"beta.kubernetes.io/arch": "amd64"}}}
    for node in (await site.api.list(NODES)).items:
        await site.api.patch(NODES, node["metadata"]["name"], node_labels)
    for entry, expected in entries.items():
        if expected["determinism"] == "invalid":
            continue
        for document in site.read(entry):
            resource = KINDS.get(document.get("kind", ""))
            if resource is None or document["kind"] in ("Workflow", "CronWorkflow"):
                continue
            document = normalise(document) if "argoproj" in resource.group else document
            namespace = "default" if resource.namespaced else None
            try:
                await site.api.create(resource, document, namespace)
            except AlreadyExists:
                pass
            if document["kind"].endswith("WorkflowTemplate"):
                key = TemplateKey(document["kind"].startswith("Cluster"), document["metadata"]["name"])
                site.templates[key] = document


def services_of(data: Path) -> list[int]:
    """The process of Moorage's services of a data folder, which may have ended."""
    file = data / "run" / "services.pid"
    return [int(file.read_text())] if file.exists() else []


async def kill_services(site: Site, every: float, chance: random.Random) -> None:
    """SIGKILL to the services at random moments, until cancelled."""
    while True:
        if chance.random() < 0.75:
            await until_ready(site)
        await asyncio.sleep(chance.uniform(0, 2 * every))
        for pid in services_of(site.data):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                site.kills += 1


async def until_ready(site: Site) -> None:
    """Return when the services have said that they are ready again; after 30 s in any case."""
    for _ in range(150):
        log = (site.data.parent / "up.log").read_text(errors="replace")
        if log.rfind("moorage.services ready") > log.rfind(RESTARTED):
            return
        await asyncio.sleep(0.2)


@contextlib.contextmanager
def s3_server(address: str) -> Iterator[str]:
    """Host and port of an S3 server of this process at an address, with the buckets that manifests name."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address=address, port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"aws_access_key_id": STORE_KEYS["accesskey"], "aws_secret_access_key": STORE_KEYS["secretkey"]}
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1", **keys)
    for bucket in BUCKETS:
        client.create_bucket(Bucket=bucket)
    try:
        yield f"{host}:{port}"
    finally:
        server.stop()


@dataclass(slots=True)
class Round:
    """One pass through the corpus."""

    outcomes: list[Outcome]
    kills: int


async def run(
    corpus: Path,
    data: Path,
    kubeconfig: Path,
    only: str,
    at_once: int,
    kill: float,
    store: str,
    seed: int,
    calm: dict[str, dict[str, Any]],
    *,
    is_real: bool,
) -> Round:
    """`calm`: of each entry the result that it gives when nothing is killed; none where that is not known."""
    entries = json.loads((corpus / "expected.json").read_text())["files"]
    gate = asyncio.Semaphore(at_once)
    async with KubeClient(load_connection(kubeconfig)) as api:
        site = Site(api, data, corpus, {}, store, is_real)
        await put_fixtures(site, entries)

        async def guarded(entry: str, expected: dict[str, Any]) -> Outcome:
            async with gate:
                try:
                    outcome = await play(site, entry, expected)
                except (NotFound, ApiError, StopIteration, KeyError) as error:
                    outcome = Outcome(entry, int(expected.get("tier") or 1), "failed", [repr(error)])
            if expected["determinism"] == "deterministic" and outcome.word == "passed" and entry in calm:
                outcome.reasons += differences(calm[entry], outcome.result)
                outcome.word = "failed" if outcome.reasons else "passed"
            after = f"  ({site.kills} kills)" if kill else ""
            print(f"{outcome.word:8} {outcome.seconds:6.1f} s  {entry}{after}", flush=True)
            for reason in outcome.reasons[:12]:
                print(f"           {reason[:300]}", flush=True)
            return outcome

        chosen = {entry: row for entry, row in entries.items() if only in entry}
        runs = {
            entry: row
            for entry, row in chosen.items()
            if row["determinism"] in ("deterministic", "random", "interactive")
        }
        killer = asyncio.create_task(kill_services(site, kill, random.Random(seed))) if kill else None
        longest_first = sorted(runs.items(), key=lambda item: -float(item[1].get("approxSeconds") or 0))
        outcomes = list(await asyncio.gather(*(guarded(entry, row) for entry, row in longest_first)))
        if killer is not None:
            killer.cancel()
        for entry, row in chosen.items():
            if row["determinism"] == "invalid":
                outcomes.append(judge_invalid(site, entry, row))
                print(f"{outcomes[-1].word:8}           {entry} (must be refused)")
        return Round(outcomes, site.kills)


def differences(calm: dict[str, Any], result: dict[str, Any]) -> list[str]:
    """What is not as it was when nothing was killed, each as one line."""
    names = sorted(calm.keys() | result.keys())
    return [
        f"{name or 'the workflow'} is {result.get(name)}, and was {calm.get(name)} when nothing was killed"
        for name in names
        if calm.get(name) != result.get(name)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--only", default="", help="entries whose path has this text")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--kill", type=float, default=0.0, help="mean seconds between two kills of the services")
    parser.add_argument("--kills", type=int, default=1, help="rounds follow until so many were done")
    parser.add_argument("--seed", type=int, default=1, help="of the moments of the kills")
    parser.add_argument("--results", type=Path, help="file for what came of each entry that passed")
    parser.add_argument(
        "--undisturbed", type=Path, help="what must come of each entry: results of an earlier call"
    )
    parser.add_argument("--keep", action="store_true", help="leave the cluster up, and say where")
    parser.add_argument("--real", action="store_true", help="run on the cluster of MOORAGE_TEST_KUBECONFIG")
    chosen = parser.parse_args()
    started = time.monotonic()
    made = not chosen.real and make_argosay()
    calm = json.loads(chosen.undisturbed.read_text()) if chosen.undisturbed else {}
    try:
        rounds: list[Round] = []
        while not rounds or (chosen.kill and sum(row.kills for row in rounds) < chosen.kills):
            if chosen.real:
                rounds.append(on_real_cluster(chosen, calm))
            else:
                rounds.append(play_round(chosen, seed=chosen.seed + len(rounds), calm=calm))
    finally:
        if made and not chosen.keep:
            ARGOSAY.unlink()
    print()
    for number, row in enumerate(rounds):
        show_round(number, row)
    kills = sum(row.kills for row in rounds)
    if chosen.kill:
        passed = sum(row.word == "passed" for each in rounds for row in each.outcomes)
        print(f"{kills} kills; {passed} of {sum(len(each.outcomes) for each in rounds)} passed")
    if chosen.results:
        results = {row.entry: row.result for each in rounds for row in each.outcomes if row.word == "passed"}
        chosen.results.write_text(json.dumps(results, indent=1))
    print(f"{time.monotonic() - started:.0f} s")
    return int(any(row.word == "failed" for each in rounds for row in each.outcomes))


def on_real_cluster(chosen: argparse.Namespace, calm: dict[str, dict[str, Any]]) -> Round:
    """Run the entries on the cluster that the environment names; the services are a process of this machine."""
    if not os.environ.get("MOORAGE_TEST_KUBECONFIG") or not os.environ.get("MOORAGE_TEST_ADDRESS"):
        sys.exit("--real: set MOORAGE_TEST_KUBECONFIG and MOORAGE_TEST_ADDRESS, see CONTRIBUTING.md")
    if chosen.kill or chosen.keep:
        sys.exit("--real: the services end with this process: use it without --kill and --keep")
    with (
        tempfile.TemporaryDirectory(prefix="argo-conformance-") as folder,
        start_cluster(Path(folder)) as cluster,
        s3_server(cluster.address) as store,
    ):
        words = (chosen.corpus, cluster.home, cluster.kubeconfig, chosen.only, chosen.at_once)
        return asyncio.run(run(*words, 0.0, store, 0, calm, is_real=True))


def play_round(chosen: argparse.Namespace, *, seed: int, calm: dict[str, dict[str, Any]]) -> Round:
    """Run the corpus once on a cluster of its own."""
    folder = Path(tempfile.mkdtemp(prefix="argo-conformance-"))
    data = folder / "data"
    data.mkdir()
    (folder / "starts").mkdir()
    (data / "images.json").write_text(json.dumps(image_table()))
    moor = [sys.executable, "-m", "moorage.cli.main"]
    with (folder / "up.log").open("wb") as log:
        up = subprocess.Popen(
            [
                sys.executable,
                str(HERE / "quick_restarts.py"),
                "up",
                "--foreground",
                "--data",
                str(data),
                "--port",
                "0",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        asyncio.run(wait_ready(data, up))
        with s3_server("127.0.0.1") as store:
            words = (chosen.corpus, data, data / "kubeconfig", chosen.only, chosen.at_once)
            return asyncio.run(run(*words, chosen.kill, store, seed, calm, is_real=False))
    finally:
        if chosen.keep:
            print(f"kept: {data}")
        else:
            subprocess.run([*moor, "down", "--data", str(data)], check=False, stdout=subprocess.DEVNULL)
            up.wait()


async def wait_ready(data: Path, up: subprocess.Popen[bytes]) -> None:
    """Return when the cluster takes workflows."""
    while up.poll() is None:
        await asyncio.sleep(0.5)
        if (data / "kubeconfig").exists():
            with contextlib.suppress(ApiError, MoorageError, OSError):
                async with KubeClient(load_connection(data / "kubeconfig")) as api:
                    await api.list(WORKFLOWS, "default")
                    if (await api.list(NODES)).items:
                        return
    raise SystemExit(f"moor up ended; see {data.parent / 'up.log'}")


def show_round(number: int, row: Round) -> None:
    table: collections.Counter[tuple[int, str]] = collections.Counter(
        (each.tier, each.word) for each in row.outcomes
    )
    commands = sum(each.commands for each in row.outcomes)
    print(f"round {number}: {row.kills} kills, {commands} commands started")
    for tier in sorted({each.tier for each in row.outcomes}):
        words = ", ".join(f"{table[tier, word]} {word}" for word in ("passed", "failed", "refused"))
        print(f"tier {tier}: {words}")


def image_table() -> list[dict[str, Any]]:
    """What the images of the manifests are on a machine without a registry."""
    cowsay = [str(HERE / "argo_images")]
    return [
        {"image": "argoproj/argosay:v2", "entrypoint": [str(HERE / "argo_images" / "argosay")]},
        {"image": "argoproj/argosay:v1", "cmd": ["cowsay"], "path": cowsay},
        {"image": "docker/whalesay", "cmd": ["cowsay"], "path": cowsay},
        {"image": "alpine", "cmd": ["/bin/sh"]},
        {"image": "busybox", "cmd": ["sh"]},
        {"image": "debian", "cmd": ["bash"]},
        {"image": "ubuntu", "cmd": ["bash"]},
        {"image": "python", "cmd": ["python3"]},
        {"image": "node", "cmd": ["node"]},
        {"image": "stedolan/jq", "entrypoint": ["jq"]},
        {"image": "*", "cmd": ["sh"]},
    ]


def make_argosay() -> bool:
    """Put the program where manifests name it by its path; whether it was put there."""
    if ARGOSAY.exists() or os.geteuid() != 0:
        return False
    ARGOSAY.symlink_to(HERE / "argo_images" / "argosay")
    return True


if __name__ == "__main__":
    sys.exit(main())
