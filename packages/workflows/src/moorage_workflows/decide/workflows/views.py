"""Views of a workflow: its phase, its nodes as a tree, and both in the format of Argo's API.

If Argo runs the workflow, the object has `status.nodes`. If Moorage runs it, the nodes are rows of the server's
store; `workflow_object` puts them into `status.nodes`, where Argo's clients read them.
https://argo-workflows.readthedocs.io/en/latest/fields/#workflowstatus
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct, field

from moorage.model.argo import CRON_LABEL, SCHEDULED_ANNOTATION, WORKFLOWS, is_ours, step_path
from moorage.model.names import OWNER_ANNOTATION
from moorage_kube.documents import parse_json
from moorage_kube.errors import DocumentError
from moorage_kube.meta import annotations_of, labels_of
from moorage_kube.moments import moment
from moorage_kube.resources import Obj
from moorage_kube.selectors import parse_field_selector
from moorage_workflows.model.workflow import Artifact, NodePhase, NodeRecord, NodeType, Outputs, WorkflowRecord

PENDING, RUNNING, SUCCEEDED, FAILED, ERROR = "Pending", "Running", "Succeeded", "Failed", "Error"
PHASES = (PENDING, RUNNING, SUCCEEDED, FAILED, ERROR)  # of a workflow; none yet counts as Pending
ENDED = (SUCCEEDED, FAILED, ERROR)
NODES_BYTES_MAX = 64 * 1024 * 1024  # of unpacked nodes; etcd holds 1.5 MB of packed ones
CREATOR_LABEL = "workflows.argoproj.io/creator"  # set by Argo's server
NO_OUTPUTS = Outputs()
_WITHIN = frozenset({NodeType.STEP_GROUP})  # nodes that the tree does not show: their children take their place
_IN_GROUP = re.compile(r"\[(\d+)\]\.[^\[\]]*$")
_ITEM = re.compile(r"\((?:[^()]|\([^()]*\))*\)$")
_NUMBERS = re.compile(r"(\d+)")
_OF_TEMPLATE = " "  # prefix of the key of steps of one template; names of loops never begin so

ITEMS_SHOWN = 20  # sibling items of a loop, before similar ones are counted instead
STEPS_SHOWN = 100  # the same for steps of one template, which have different names
LIKE_SHOWN = 20  # of these, that are shown all the same, in each phase
FINISHED_ITEMS_SHOWN = 3  # the same of items that succeeded or were left out
_WELL = (NodePhase.SUCCEEDED, NodePhase.SKIPPED, NodePhase.OMITTED)


class WorkflowView(Struct, frozen=True, kw_only=True):
    """One run of a workflow. `unreadable`: why its nodes cannot be shown; "" if they can."""

    namespace: str
    name: str
    uid: str
    phase: str
    message: str = ""
    owner: str = ""
    cron: str = ""
    template: str = ""  # the WorkflowTemplate that it refers to, "cluster/" before that of a cluster
    created: datetime | None = None
    started: datetime | None = None
    finished: datetime | None = None
    scheduled: str = ""  # the slot of its CronWorkflow, RFC 3339
    done: int = 0
    total: int = 0
    is_suspended: bool = False
    shutdown: str = ""  # "", Stop or Terminate
    is_gone: bool = False  # only its record exists
    gone_at: str = ""  # when its object was deleted, RFC 3339; empty: unknown
    is_ours: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, str] = field(default_factory=dict)
    outputs: Outputs = NO_OUTPUTS
    nodes: tuple[NodeRecord, ...] = ()
    unreadable: str = ""

    @property
    def has_ended(self) -> bool:
        return self.phase in ENDED

    @property
    def is_cut_off(self) -> bool:
        """Whether the object was deleted before the workflow ended."""
        return self.is_gone and not self.has_ended

    @property
    def progress(self) -> str:
        """The progress in Argo's format: pods that have ended / all pods so far."""
        return f"{self.done}/{self.total}"

    def duration(self, now: datetime) -> timedelta | None:
        """How long it has run, or ran; None: it has not started, or the time of its deletion is unknown."""
        end = self.finished or (_moment(self.gone_at) if self.is_cut_off else now)
        return None if self.started is None or end is None else max(timedelta(), end - self.started)


class TreeRow(Struct, frozen=True):
    """A node in the tree. `depth` 0: the workflow itself or its exit handler; `guides`: drawn before the name.

    `more`: if above 0, the row represents so many similar nodes of one phase, and `node` is the first of them.
    """

    node: NodeRecord
    depth: int
    guides: str
    more: int = 0


# -- reading


def view_workflow(obj: Mapping[str, Any]) -> WorkflowView:
    """The view of a Workflow object; fields that are missing or of another type read as absent."""
    meta, spec, status = (_mapping(obj.get(key)) for key in ("metadata", "spec", "status"))
    labels, notes = labels_of({"metadata": meta}), annotations_of({"metadata": meta})
    reference = _mapping(spec.get("workflowTemplateRef"))
    nodes, unreadable = nodes_of(status)
    done, _, total = str(status.get("progress") or "0/0").partition("/")
    return WorkflowView(
        namespace=str(meta.get("namespace") or ""),
        name=str(meta.get("name") or ""),
        uid=str(meta.get("uid") or ""),
        phase=str(status.get("phase") or PENDING),
        message=str(status.get("message") or ""),
        owner=notes.get(OWNER_ANNOTATION) or labels.get(CREATOR_LABEL) or "",
        cron=labels.get(CRON_LABEL, ""),
        template=("cluster/" if reference.get("clusterScope") else "") + str(reference.get("name") or ""),
        created=_moment(meta.get("creationTimestamp")),
        started=_moment(status.get("startedAt")),
        finished=_moment(status.get("finishedAt")),
        scheduled=notes.get(SCHEDULED_ANNOTATION, ""),
        done=_count(done),
        total=_count(total),
        is_suspended=spec.get("suspend") is True,
        shutdown=str(spec.get("shutdown") or ""),
        is_gone=bool(status.get("gone") or status.get("goneAt")),
        gone_at=str(status.get("goneAt") or ""),
        is_ours=is_ours({"metadata": meta}),
        labels=dict(labels),
        arguments=_parameters(_mapping(spec.get("arguments")).get("parameters")),
        outputs=_outputs(status.get("outputs")) or NO_OUTPUTS,
        nodes=nodes,
        unreadable=unreadable,
    )


def nodes_of(status: Mapping[str, Any]) -> tuple[tuple[NodeRecord, ...], str]:
    """Return the nodes of a status by start time, and a reason if it has nodes that cannot be read."""
    nodes, packed = status.get("nodes"), status.get("compressedNodes")
    if not nodes and packed:
        try:
            nodes = unpack_nodes(str(packed))
        except DocumentError as error:
            return (), f"the nodes in status.compressedNodes cannot be read: {error.message}"
    if not nodes and status.get("offloadNodeStatusVersion"):
        return (), "Argo keeps the nodes of this workflow in its own database: only Argo's server can show them"
    records = [_node(identity, _mapping(node)) for identity, node in _mapping(nodes).items()]
    parents: dict[str, list[str]] = {}
    for identity, node in _mapping(nodes).items():
        for child in _list(_mapping(node).get("children")):
            parents.setdefault(str(child), []).append(str(identity))
    linked = [_with_parents(record, tuple(parents.get(record.id, ()))) for record in records]
    return tuple(sorted(linked, key=lambda record: (record.started_at or "~", _natural(record.name)))), ""


def unpack_nodes(text: str) -> Mapping[str, Any]:
    """Decode `status.compressedNodes`: base64 of gzip.

    Raises DocumentError for other formats and for too much data.

    Argo 4.1 can also compress with zstd or brotli; these are not supported here.
    """
    try:
        packed = base64.b64decode(text, validate=True)
        unpacking = zlib.decompressobj(wbits=31)  # gzip's header alone
        data = unpacking.decompress(packed, NODES_BYTES_MAX)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise DocumentError(f"they are not gzip in base64 ({error})") from None
    if unpacking.unconsumed_tail:
        raise DocumentError(f"they have more than {NODES_BYTES_MAX} bytes")
    return _mapping(parse_json(data, bytes_max=NODES_BYTES_MAX))


def _node(identity: str, node: Mapping[str, Any]) -> NodeRecord:
    inputs = _mapping(node.get("inputs"))
    reference = _mapping(node.get("templateRef"))
    return NodeRecord(
        id=str(node.get("id") or identity),
        name=str(node.get("name") or identity),
        display_name=str(node.get("displayName") or node.get("name") or identity),
        type=_word(NodeType, node.get("type"), NodeType.POD),
        phase=_word(NodePhase, node.get("phase"), NodePhase.PENDING),
        template=str(node.get("templateName") or reference.get("template") or ""),
        template_ref=("cluster/" if reference.get("clusterScope") else "") + str(reference.get("name") or ""),
        boundary_id=str(node.get("boundaryID") or ""),
        started_at=str(node.get("startedAt") or ""),
        finished_at=str(node.get("finishedAt") or ""),
        message=str(node.get("message") or ""),
        pod_name=str(node.get("podName") or ""),
        host=str(node.get("hostNodeName") or ""),
        inputs={"parameters": _parameters(inputs.get("parameters"))} if inputs.get("parameters") else {},
        outputs=_outputs(node.get("outputs")),
        is_daemon=node.get("daemoned") is True,
        is_memoized=_mapping(node.get("memoizationStatus")).get("hit") is True,
        resources_seconds={
            str(name): _count(seconds) for name, seconds in _mapping(node.get("resourcesDuration")).items()
        },
    )


def _with_parents(record: NodeRecord, parents: tuple[str, ...]) -> NodeRecord:
    return msgspec.structs.replace(record, parents=parents) if parents else record


def _outputs(value: Any) -> Outputs | None:
    if not isinstance(value, Mapping):
        return None
    artifacts = [_artifact(_mapping(artifact)) for artifact in _list(value.get("artifacts"))]
    result, code = value.get("result"), value.get("exitCode")
    return Outputs(
        parameters=_parameters(value.get("parameters")),
        artifacts=tuple(artifact for artifact in artifacts if artifact.name),
        result=None if result is None else str(result),
        exit_code=None if code is None else str(code),
    )


def _artifact(value: Mapping[str, Any]) -> Artifact:
    places = {kind: value[kind] for kind in ("s3", "gcs", "http", "git", "raw") if kind in value}
    keys = (str(place["key"]) for place in places.values() if isinstance(place, Mapping) and "key" in place)
    return Artifact(
        name=str(value.get("name") or ""),
        key=str(value.get("key") or next(keys, "")),
        size_bytes=_count(value.get("sizeBytes")),
        files=_count(value.get("files")),
        digest=str(value.get("digest") or ""),
        location=places,
        is_deleted=value.get("deleted") is True,
    )


# -- writing


def workflow_object(
    record: WorkflowRecord, nodes: Iterable[NodeRecord], live: Mapping[str, Any] | None = None
) -> Obj:
    """A Workflow object with the nodes of its record, as Argo's API has it; `live`: the object, while it
    exists.

    The end in the record is newer than in the object: the record is written first.
    """
    # the base is the object while it exists, because labels may change
    document = record.document
    base = live if live is not None else document
    meta = dict(_mapping(base.get("metadata")))
    meta |= {"namespace": record.namespace, "name": record.name, "uid": record.uid}
    # facts that only the record has
    if record.created_at and not meta.get("creationTimestamp"):
        meta["creationTimestamp"] = record.created_at
    if record.owner and OWNER_ANNOTATION not in annotations_of({"metadata": meta}):
        meta["annotations"] = {**annotations_of({"metadata": meta}), OWNER_ANNOTATION: record.owner}
    if record.cron and CRON_LABEL not in labels_of({"metadata": meta}):
        meta["labels"] = {**labels_of({"metadata": meta}), CRON_LABEL: record.cron}
    # the record's status wins, where it has a value
    status = dict(_mapping(_mapping(live).get("status")))
    known = {
        "phase": record.phase or status.get("phase") or PENDING,
        "message": record.message,
        "startedAt": record.started_at,
        "finishedAt": record.finished_at,
        "progress": f"{record.done}/{record.total}",
        "goneAt": record.gone_at,
    }
    status |= {key: value for key, value in known.items() if value}
    if record.parameters or record.artifacts:
        status["outputs"] = outputs_object(Outputs(parameters=record.parameters, artifacts=record.artifacts))
    if argo := argo_nodes(nodes):
        status["nodes"] = argo
    spec = dict(_mapping(base.get("spec")))
    return {
        "apiVersion": WORKFLOWS.api_version,
        "kind": WORKFLOWS.kind,
        "metadata": meta,
        "spec": spec,
        "status": status,
    }


def argo_nodes(nodes: Iterable[NodeRecord]) -> dict[str, Obj]:
    """Return nodes in the format of `status.nodes`. `children` come from the parents in the records."""
    records = list(nodes)
    children: dict[str, list[str]] = {}
    for record in records:
        for parent in record.parents or ((record.boundary_id,) if record.boundary_id else ()):
            children.setdefault(parent, []).append(record.id)
    return {record.id: _argo_node(record, children.get(record.id, [])) for record in records}


def _argo_node(record: NodeRecord, children: Sequence[str]) -> Obj:
    node: Obj = {
        "id": record.id,
        "name": record.name,
        "displayName": record.display_name,
        "type": str(record.type),
        "phase": str(record.phase),
    }
    inputs: Obj = {}
    if parameters := _mapping(record.inputs.get("parameters")):
        inputs["parameters"] = _named_values(parameters)
    more: Obj = {
        "templateName": record.template if not record.template_ref else "",
        "boundaryID": record.boundary_id,
        "startedAt": record.started_at,
        "finishedAt": record.finished_at,
        "message": record.message,
        "podName": record.pod_name,
        "hostNodeName": record.host,
        "children": list(children),
        "daemoned": record.is_daemon or None,
        "memoizationStatus": {"hit": True, "key": "", "cacheName": ""} if record.is_memoized else None,
        "inputs": inputs,
        "outputs": None if record.outputs is None else outputs_object(record.outputs),
        "resourcesDuration": dict(record.resources_seconds),
        "failedPodRestarts": record.infrastructure_retries,
    }
    if record.template_ref:
        cluster, _, name = record.template_ref.rpartition("cluster/")
        is_cluster = record.template_ref.startswith("cluster/") and not cluster
        more["templateRef"] = {"name": name or record.template_ref, "template": record.template} | (
            {"clusterScope": True} if is_cluster else {}
        )
    return node | {key: value for key, value in more.items() if value}


def outputs_object(outputs: Outputs) -> Obj:
    """Return outputs in the format of Argo's API."""
    written: Obj = {}
    if outputs.parameters:
        written["parameters"] = _named_values(outputs.parameters)
    if outputs.artifacts:
        written["artifacts"] = [_artifact_object(artifact) for artifact in outputs.artifacts]
    if outputs.result is not None:
        written["result"] = outputs.result
    if outputs.exit_code is not None:
        written["exitCode"] = outputs.exit_code
    return written


def _artifact_object(artifact: Artifact) -> Obj:
    place = dict(artifact.location) or ({"s3": {"key": artifact.key}} if artifact.key else {})
    written = {"name": artifact.name, "sizeBytes": artifact.size_bytes, "digest": artifact.digest}
    written |= {"files": artifact.files}
    return (
        {key: value for key, value in written.items() if value}
        | place
        | ({"deleted": True} if artifact.is_deleted else {})
    )


def _named_values(parameters: Mapping[str, Any]) -> list[Obj]:
    return [{"name": name, "value": str(value)} for name, value in parameters.items()]


def as_gone(obj: Mapping[str, Any]) -> Obj:
    """A record without an object, whether its deletion was observed or not."""
    return {**obj, "status": {**_mapping(obj.get("status")), "gone": True}}


# -- the tree


def tree_of(nodes: Sequence[NodeRecord], *, whole: bool = True) -> tuple[TreeRow, ...]:
    """Nodes in the order of a tree: each below the template, the loop or the retry that it belongs to.

    Groups of steps are replaced by their steps. Unless `whole`, many sibling items of a loop, or sibling
    steps of one template, are counted instead, with all that is below them.
    """
    # the node above each node, and the nodes below each
    by_id = {node.id: node for node in nodes}
    by_name = {node.name: node for node in nodes}
    above: dict[str, str] = {}
    for node in nodes:
        above[node.id] = _above(node, by_id, by_name)
    below: dict[str, list[NodeRecord]] = {}
    for node in nodes:
        if node.type not in _WITHIN:
            below.setdefault(above[node.id], []).append(node)
    # walk from the top with a stack: trees may be thousands of nodes deep
    rows: list[TreeRow] = []
    roots = sorted(below.get("", ()), key=_root_order, reverse=True)
    waiting: list[tuple[Sequence[NodeRecord], int, str, str]] = [((node,), 0, "", "") for node in roots]
    shown: set[str] = set()
    while waiting:
        alike, depth, guides, rest = waiting.pop()
        node = alike[0]
        # counted nodes are one row, and all below them is hidden
        if len(alike) > 1:
            rows.append(TreeRow(node, depth, guides, len(alike)))
            inside = list(alike)
            while inside:
                hidden = inside.pop()
                if hidden.id not in shown:
                    shown.add(hidden.id)
                    inside += below.get(hidden.id, ())
            continue
        if node.id in shown:
            continue  # names that form a circle
        # a node's row, then its children with the guides of the tree
        shown.add(node.id)
        rows.append(TreeRow(node, depth, guides))
        inner = _in_order(below.get(node.id, ()))
        places = [(child,) for child in inner] if whole else _counted(inner)
        for place, row in reversed(list(enumerate(places))):
            is_last = place == len(places) - 1
            waiting.append(
                (row, depth + 1, rest + ("└ " if is_last else "├ "), rest + ("  " if is_last else "│ "))
            )
    # nodes in circles of damaged records come last
    rows += [TreeRow(node, 0, "") for node in nodes if node.id not in shown and node.type not in _WITHIN]
    return tuple(rows)


def _counted(siblings: Sequence[NodeRecord]) -> list[Sequence[NodeRecord]]:
    """Sibling nodes by rows: one that is shown, or several of one phase that are counted."""
    families = [_family(node) for node in siblings]
    sizes = Counter(families)
    last = {family: at for at, family in enumerate(families)}
    shown: Counter[tuple[str, NodePhase]] = Counter()
    hidden: dict[str, dict[NodePhase, list[NodeRecord]]] = {}
    rows: list[Sequence[NodeRecord]] = []
    for at, (node, family) in enumerate(zip(siblings, families, strict=True)):
        is_item = not family.startswith(_OF_TEMPLATE)
        most = FINISHED_ITEMS_SHOWN if is_item and node.phase in _WELL else LIKE_SHOWN
        is_large = sizes[family] > (ITEMS_SHOWN if is_item else STEPS_SHOWN)
        if is_large and shown[family, node.phase] >= most:
            hidden.setdefault(family, {}).setdefault(node.phase, []).append(node)
        else:
            shown[family, node.phase] += 1
            rows.append((node,))
        if last[family] == at:
            rows += hidden.get(family, {}).values()
    return rows


def _family(node: NodeRecord) -> str:
    """The key that similar siblings share: the name of their loop, or their template."""
    if node.name.endswith(")") and ":" in node.display_name:
        return node.name.partition("(")[0]
    return f"{_OF_TEMPLATE}{node.template} {node.template_ref}"


def _above(node: NodeRecord, by_id: Mapping[str, NodeRecord], by_name: Mapping[str, NodeRecord]) -> str:
    """The id of the node that this one is shown below; empty: none.

    The name of an attempt, or of an item of a loop, is the name of its owner and a part in parentheses.
    """
    at = node.name.rfind("(") if node.name.endswith(")") else -1
    while at > 0:
        owner = by_name.get(node.name[:at])
        if owner is not None and owner.id != node.id and owner.type not in _WITHIN:
            return owner.id
        at = node.name.rfind("(", 0, at)
    boundary, seen = node.boundary_id, set[str]()
    while boundary in by_id and by_id[boundary].type in _WITHIN and boundary not in seen:
        seen.add(boundary)
        boundary = by_id[boundary].boundary_id
    return boundary if boundary in by_id and boundary != node.id else ""


def _root_order(node: NodeRecord) -> tuple[bool, str, tuple[object, ...]]:
    return node.name.endswith(".onExit"), node.started_at or "~", _natural(node.name)


def _in_order(nodes: Iterable[NodeRecord]) -> list[NodeRecord]:
    """Sort nodes by groups of steps, then by start time.

    Items of a loop stay together, in the order of their numbers.
    """
    siblings = list(nodes)
    starts: dict[str, str] = {}
    for node in siblings:
        base = _base(node.name)
        starts[base] = min(starts.get(base, "~"), node.started_at or "~")

    def place(node: NodeRecord) -> tuple[object, ...]:
        base = _base(node.name)
        group = _IN_GROUP.search(base)
        return int(group[1][:18]) if group else -1, starts[base], _natural(base), _natural(node.name)

    return sorted(siblings, key=place)


def _base(name: str) -> str:
    """The name without the part that distinguishes items of a loop, or attempts."""
    return name.partition("(")[0] if name.endswith(")") and name.count("(") == 1 else _ITEM.sub("", name)


def _natural(text: str) -> tuple[object, ...]:
    """Return a sort key that sorts numbers in a string by their value."""
    return tuple(int(part[:18]) if at % 2 else part for at, part in enumerate(_NUMBERS.split(text)))


def with_step_names(text: str, view: WorkflowView) -> str:
    """Replace the ids of nodes in a message by the names of their steps."""
    for node in view.nodes:
        if node.id != view.name and node.id in text:
            text = text.replace(node.id, step_path(node.name, view.name))
    return text


# -- choosing


def matching_nodes(nodes: Iterable[NodeRecord], selector: str) -> tuple[NodeRecord, ...]:
    """Return the nodes that Argo's `--node-field-selector` selects; "" selects all. Raises SelectorError.

    Fields: displayName, templateName, phase, name, id, templateRef.name, templateRef.template, and
    inputs.parameters.NAME.value. https://argo-workflows.readthedocs.io/en/latest/node-field-selector/
    """
    matches = parse_field_selector(selector)
    return tuple(node for node in nodes if matches(_fields(node)))


def _fields(node: NodeRecord) -> Obj:
    reference = node.template_ref.removeprefix("cluster/")
    parameters = _mapping(node.inputs.get("parameters"))
    return {
        "displayName": node.display_name,
        "templateName": node.template,
        "phase": str(node.phase),
        "name": node.name,
        "id": node.id,
        "type": str(node.type),
        "templateRef": {"name": reference, "template": node.template if reference else ""},
        "inputs": {"parameters": {str(name): {"value": str(value)} for name, value in parameters.items()}},
    }


def is_suspended_node(node: NodeRecord) -> bool:
    """Whether it waits for a user to resume it."""
    return node.type is NodeType.SUSPEND and node.phase is NodePhase.RUNNING


# -- small things


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _parameters(value: Any) -> dict[str, str]:
    """Return named values as a mapping. Entries without a value are left out."""
    return {
        str(parameter["name"]): _any_string(parameter["value"])
        for parameter in _list(value)
        if isinstance(parameter, Mapping) and parameter.get("name") and parameter.get("value") is not None
    }


def _any_string(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _count(value: Any) -> int:
    try:
        return max(0, int(value))
    except (TypeError, ValueError, OverflowError):
        return 0


def _moment(value: Any) -> datetime | None:
    try:
        return moment(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _word(kind: type[Any], value: Any, otherwise: Any) -> Any:
    """Return a string as a member of an enumeration.

    `otherwise` replaces unknown strings, which a newer Argo may send.
    """
    try:
        return kind(str(value))
    except ValueError:
        return otherwise
