"""The actions of a resource template as requests, and the meaning of the answers.

Each may be interrupted at any moment and begin again. An object that `create` made has a mark of the
step's attempt: a later pod that finds the name taken and the same mark knows that this attempt has made
the object.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from moorage_kube.errors import DocumentError
from moorage_kube.resources import Obj, Resource
from moorage_kube.yamldocuments import parse_yaml_documents
from moorage_workflows.decide.workflows.resources.flags import Flags
from moorage_workflows.executor.errors import Passing, StepError
from moorage_workflows.executor.resource.cluster import Asks, Lost, Refused
from moorage_workflows.executor.resource.kinds import Kinds
from moorage_workflows.executor.retrying import Retrying

MARK = "moorage.dev/created-by-step"  # annotation: which attempt of which step created the object
FIELD_MANAGER = "moorage-workflow"
PATCH_TYPES = {
    "strategic": "application/strategic-merge-patch+json",
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
}
APPLY_TYPE = "application/apply-patch+yaml"
MANIFEST_BYTES = 3 * 1024 * 1024
NAMES_MAX = 8  # generated names that are tried
CONFLICTS_MAX = 5  # of a replacement with a concurrent write
GONE_FIRST_SECONDS, GONE_MOST_SECONDS = 0.2, 5.0  # between two looks whether an object is deleted
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"  # letters of generated names, as the API server has them
_SUFFIX_LENGTH = 5
_BASE_MAX = 58
_VALIDATION = {"strict": "Strict", "true": "Strict", "warn": "Warn", "ignore": "Ignore", "false": "Ignore"}
_CASCADE = {"background": "Background", "true": "Background", "foreground": "Foreground", "orphan": "Orphan",
            "false": "Orphan"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The action of one step. `mark`: the same for every pod of one attempt. `owner`: a reference, or None."""

    action: str
    namespace: str
    mark: str
    manifest: str = ""
    merge_strategy: str = "strategic"
    flags: Flags = field(default_factory=Flags)
    owner: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """An object after the action. `path`: the address to read it again."""

    obj: Obj
    path: str

    @property
    def title(self) -> str:
        """`Job lab/train-1`."""
        meta = self.obj.get("metadata") or {}
        where = f"{meta['namespace']}/" if meta.get("namespace") else ""
        return f"{self.obj.get('kind')} {where}{meta.get('name')}"


class Actions:
    """`say`: prints progress for users. `pause`: waits so many seconds."""

    def __init__(
        self,
        cluster: Asks,
        retrying: Retrying,
        *,
        say: Callable[[str], None] = print,
        pause: Callable[[float], None],
    ) -> None:
        self._cluster, self._retrying, self._say, self._pause = cluster, retrying, say, pause
        self._kinds = Kinds(self.read)

    def read(self, path: str) -> Obj:
        """GET. Raises Refused."""
        return self._retrying.call(f"GET {path}", lambda: self._cluster.ask("GET", path))

    def run(self, task: Task) -> list[Done]:
        """Run the action. Returns the objects that exist afterwards. Raises StepError with the object's name."""
        match task.action:
            case "get":
                return self._get(task)
            case "delete":
                self._delete(task)
                return []
            case "patch":
                return [self._patch(task)]
            case "create" | "apply" | "replace":
                objects = self._objects(task)
                return [self._write(task, obj, number) for number, obj in enumerate(objects)]
        raise StepError(f"action {task.action!r} is not known")

    def count(self, task: Task) -> int:
        """Return the number of objects in the manifest. Raises StepError."""
        return len(objects_of(task.manifest))

    # --- the objects

    def _objects(self, task: Task) -> list[Obj]:
        objects = objects_of(task.manifest)
        if not objects:
            raise StepError(f"the manifest is empty: {task.action} needs an object")
        return [_owned(obj, task.owner) for obj in objects]

    def _place(self, task: Task, obj: Mapping[str, Any]) -> tuple[Resource, str | None]:
        resource = self._kinds.of_kind(str(obj["apiVersion"]), str(obj["kind"]))
        return resource, self._namespace(task, resource, obj)

    def _namespace(self, task: Task, resource: Resource, obj: Mapping[str, Any]) -> str | None:
        if not resource.namespaced:
            return None
        own = str((obj.get("metadata") or {}).get("namespace") or "")
        flag = task.flags.text("namespace")
        if own and flag and own != flag:
            raise StepError(f"the manifest has the namespace {own!r}, and the flag --namespace is {flag!r}")
        return own or flag or task.namespace

    def _named(self, task: Task) -> list[tuple[Resource, str | None, str]]:
        """Return the objects that the manifest and the flags name."""
        named = []
        for obj in objects_of(task.manifest) if task.manifest.strip() else []:
            resource, namespace = self._place(task, obj)
            named.append((resource, namespace, _name_of(obj, task.action)))
        for word, name in task.flags.targets:
            resource = self._kinds.of_word(word)
            namespace = self._namespace(task, resource, {})
            if name:
                named.append((resource, namespace, name))
                continue
            selecting = {
                "labelSelector": task.flags.text("selector"),
                "fieldSelector": task.flags.text("field-selector"),
            }
            query = {key: value for key, value in selecting.items() if value}
            if not query and not task.flags.is_set("all") and task.action == "delete":
                raise StepError(f"flags: {word!r}: name the objects, or use --selector or --all")
            path = resource.path(namespace=namespace)
            rows = self._send("GET", path, f"{resource.kind} objects", query=query).get("items") or []
            named += [(resource, namespace, str(row["metadata"]["name"])) for row in rows]
        return named

    # --- actions

    def _get(self, task: Task) -> list[Done]:
        objects = []
        named = self._named(task)
        if not named and not task.flags.targets:
            raise StepError("get needs a manifest with kind and name, or flags with KIND and NAME")
        for resource, namespace, name in named:
            path = resource.path(namespace=namespace, name=name) + self._subresource(task)
            try:
                objects.append(Done(self._send("GET", path, f"{resource.kind} {name!r}"), path))
            except Refused as error:
                if error.status != 404 or not task.flags.is_set("ignore-not-found"):
                    raise
                self._say(f"{resource.kind} {name} does not exist")
        return objects

    def _write(self, task: Task, obj: Obj, number: int) -> Done:
        resource, namespace = self._place(task, obj)
        if task.action == "create":
            made = self._create(task, resource, namespace, obj, number)
        elif task.action == "apply":
            made = self._apply(task, resource, namespace, obj)
        else:
            made = self._replace(task, resource, namespace, obj, number)
        word = {"create": "created", "apply": "applied", "replace": "replaced"}[task.action]
        done = self._done(made, resource, namespace)
        self._say(f"{word} {done.title}")
        return done

    def _create(self, task: Task, resource: Resource, namespace: str | None, obj: Obj, number: int) -> Obj:
        """Create an object. An earlier pod of this attempt may have created it already."""
        meta = obj["metadata"]
        mark = f"{task.mark}/{number}"
        meta["annotations"] = {**(meta.get("annotations") or {}), MARK: mark}
        base = "" if meta.get("name") else str(meta.get("generateName") or "")
        if not meta.get("name") and not base:
            raise StepError(
                f"the manifest of a {resource.kind} has neither metadata.name nor metadata.generateName"
            )
        query = self._writing(task)
        for chance in range(NAMES_MAX):
            if base:
                meta["name"] = base[:_BASE_MAX] + suffix_of(f"{mark}/{chance}")
            what = f"{resource.kind} {meta['name']!r} cannot be created"
            try:
                return self._send("POST", resource.path(namespace=namespace), what, query=query, body=obj)
            except Refused as error:
                if error.reason != "AlreadyExists" or not meta.get("name"):
                    raise
                there = self._there(resource.path(namespace=namespace, name=meta["name"]))
                if ((there or {}).get("metadata", {}).get("annotations") or {}).get(MARK) == mark:
                    assert there is not None
                    self._say(f"{resource.kind} {meta['name']} was created by an earlier pod of this attempt")
                    return there
                if not base:
                    raise
        raise StepError(f"{resource.kind} {base!r}: the {NAMES_MAX} names that were generated are all taken")

    def _there(self, path: str) -> Obj | None:
        """Return the object; None if it does not exist or may not be read."""
        try:
            return self.read(path)
        except Refused:
            return None

    def _apply(self, task: Task, resource: Resource, namespace: str | None, obj: Obj) -> Obj:
        name = _name_of(obj, "apply")
        obj["metadata"].pop("managedFields", None)
        query = {**self._writing(task), "force": "true"}
        what = f"{resource.kind} {name!r} cannot be applied"
        path = resource.path(namespace=namespace, name=name)
        return self._send("PATCH", path, what, query=query, body=obj, content_type=APPLY_TYPE)

    def _replace(self, task: Task, resource: Resource, namespace: str | None, obj: Obj, number: int) -> Obj:
        name = _name_of(obj, "replace")
        path = resource.path(namespace=namespace, name=name)
        what = f"{resource.kind} {name!r} cannot be replaced"
        if task.flags.is_set("force"):
            self._remove(task, resource, namespace, name)
            return self._create(task, resource, namespace, obj, number)
        is_fixed = bool(obj["metadata"].get("resourceVersion"))
        for chance in range(CONFLICTS_MAX):
            if not is_fixed:
                stored = self._send("GET", path, what)
                obj["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"]
            try:
                where = path + self._subresource(task)
                return self._send("PUT", where, what, query=self._writing(task), body=obj)
            except Refused as error:
                if error.status != 409 or is_fixed or chance == CONFLICTS_MAX - 1:
                    raise
        raise AssertionError("the last conflict is raised")

    def _patch(self, task: Task) -> Done:
        # the patch: one document of the form that the strategy needs
        strategy = task.flags.text("type") or task.merge_strategy or "strategic"
        content_type = PATCH_TYPES.get(strategy)
        if content_type is None:
            raise StepError(f"mergeStrategy is {strategy!r}: use one of {', '.join(PATCH_TYPES)}")
        documents = _documents(task.manifest)
        if len(documents) != 1:
            raise StepError(f"patch needs a manifest with one document, and it has {len(documents)}")
        patch = documents[0]
        if not isinstance(patch, list if strategy == "json" else dict):
            raise StepError(
                f"the manifest of a {strategy} patch must be a {'list' if strategy == 'json' else 'mapping'}"
            )
        # the object: from flags, else from the manifest
        targets = task.flags.targets
        if targets:
            if len(targets) != 1 or not targets[0][1]:
                raise StepError("flags: patch needs one object: KIND NAME")
            resource, name = self._kinds.of_word(targets[0][0]), targets[0][1]
            if isinstance(patch, dict) and patch.get("kind") not in (None, resource.kind):
                raise StepError(f"flags name a {resource.kind}, and the manifest has the kind {patch['kind']!r}")
            namespace = self._namespace(task, resource, patch if isinstance(patch, dict) else {})
        elif isinstance(patch, list):
            raise StepError("a json patch needs the object in flags: KIND NAME")
        else:
            obj = _checked(patch)
            resource, namespace = self._place(task, obj)
            name = _name_of(obj, "patch")
        # send it; a JSON patch is not repeated, because it may not be idempotent
        path = resource.path(namespace=namespace, name=name) + self._subresource(task)
        what = f"{resource.kind} {name!r} cannot be patched"
        query = self._writing(task)
        query.pop("fieldValidation", None)
        try:
            made = self._send(
                "PATCH", path, what, query=query, body=patch, content_type=content_type, is_once=strategy == "json"
            )
        except Refused as error:
            if error.status == 415 and strategy == "strategic":
                raise StepError(f"{error.message}: use mergeStrategy: merge") from error
            raise
        done = self._done(made, resource, namespace)
        self._say(f"patched {done.title}")
        return done

    def _delete(self, task: Task) -> None:
        named = self._named(task)
        if not named and not task.flags.targets:
            raise StepError("delete needs a manifest with kind and name, or flags with KIND and NAME")
        for resource, namespace, name in named:
            self._remove(task, resource, namespace, name)

    def _remove(self, task: Task, resource: Resource, namespace: str | None, name: str) -> None:
        """Delete one object, and wait until it is deleted."""
        path = resource.path(namespace=namespace, name=name)
        options: Obj = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": _CASCADE[task.flags.text("cascade", "background")],
        }
        period = task.flags.text("grace-period") or ("1" if task.flags.is_set("now") else "")
        if task.action == "delete" and task.flags.is_set("force") and not period:
            period = "0"
        if period and int(period) >= 0:
            options["gracePeriodSeconds"] = int(period)
        if mode := self._dry_run(task):
            options["dryRun"] = [mode]
        try:
            answer = self._send("DELETE", path, f"{resource.kind} {name!r} cannot be deleted", body=options)
        except Refused as error:
            if error.status != 404:
                raise
            self._say(f"{resource.kind} {name} does not exist")
            return
        self._say(f"deleted {resource.kind} {name}")
        if not mode and task.flags.is_set("wait", usual=True):
            self._wait_until_gone(path, _uid_of(answer), f"{resource.kind} {name}", task.flags.seconds)

    def _wait_until_gone(self, path: str, uid: str, what: str, seconds: float | None) -> None:
        waited, pause = 0.0, GONE_FIRST_SECONDS
        while True:
            try:
                there = self.read(path)
            except Refused as error:
                if error.status != 404:
                    self._say(f"{what}: its deletion cannot be observed: {error.message}")
                return
            if uid and there["metadata"].get("uid") != uid:
                return  # another one of this name
            if seconds is not None and waited >= seconds:
                held = ", ".join(there["metadata"].get("finalizers") or ()) or "none"
                raise StepError(f"{what} still exists after {seconds:g} s; its finalizers: {held}")
            self._pause(pause)
            waited += pause
            pause = min(GONE_MOST_SECONDS, pause * 1.5)

    # --- requests

    def _writing(self, task: Task) -> dict[str, str]:
        query = {
            "fieldManager": task.flags.text("field-manager", FIELD_MANAGER),
            "fieldValidation": _VALIDATION[task.flags.text("validate", "strict")],
        }
        return query | ({"dryRun": mode} if (mode := self._dry_run(task)) else {})

    @staticmethod
    def _dry_run(task: Task) -> str:
        return "All" if task.flags.text("dry-run", "none") != "none" else ""

    @staticmethod
    def _subresource(task: Task) -> str:
        name = task.flags.text("subresource")
        if name and not name.isalpha():
            raise StepError(f"flag --subresource is {name!r}: use a name such as status or scale")
        return f"/{name}" if name else ""

    def _done(self, obj: Obj, resource: Resource, namespace: str | None) -> Done:
        meta = obj.get("metadata") or {}
        return Done(obj, resource.path(namespace=namespace, name=str(meta.get("name"))))

    def _send(
        self,
        method: str,
        path: str,
        what: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        is_once: bool = False,
    ) -> Obj:
        """`is_once`: do not send a request again if the API server may have done it already."""

        def ask() -> Obj:
            try:
                return self._cluster.ask(method, path, query=query, body=body, content_type=content_type)
            except Lost as error:
                if not is_once:
                    raise
                raise StepError(
                    f"{error.message}; the API server may have done this request already, so it is not sent again"
                ) from error

        try:
            return self._retrying.call(what, ask)
        except Refused as error:
            raise Refused(f"{what}: {error.message}", status=error.status, reason=error.reason) from error
        except Passing as error:  # pragma: no cover  Retrying raises StepError in its place
            raise StepError(error.message) from error


def objects_of(manifest: str) -> list[Obj]:
    """The objects of a manifest, those in a List too. Raises StepError for a document that is not an object."""
    objects = []
    for document in _documents(manifest):
        obj = _checked(document)
        if str(obj["kind"]).endswith("List") and isinstance(obj.get("items"), list):
            objects += [_checked(item) for item in obj["items"]]
        else:
            objects.append(obj)
    return objects


def suffix_of(text: str) -> str:
    """Return five letters computed from the text."""
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
    letters = []
    for _ in range(_SUFFIX_LENGTH):
        number, rest = divmod(number, len(_SUFFIX))
        letters.append(_SUFFIX[rest])
    return "".join(letters)


def _documents(manifest: str) -> list[Any]:
    try:
        documents = parse_yaml_documents(manifest, bytes_max=MANIFEST_BYTES)
    except DocumentError as error:
        raise StepError(f"the manifest cannot be read: {error.located}") from error
    return [document for document in documents if document is not None]


def _checked(document: Any) -> Obj:
    """Return a copy of the document with `metadata`. Raises StepError for an invalid document."""
    if not isinstance(document, dict):
        raise StepError(
            f"the manifest must be a mapping with apiVersion and kind, and is a {type(document).__name__}"
        )
    missing = [field for field in ("apiVersion", "kind") if not isinstance(document.get(field), str)]
    if missing:
        raise StepError(f"the manifest has no {' and no '.join(missing)}")
    obj: Obj = copy.deepcopy(document)
    if not isinstance(obj.setdefault("metadata", {}), dict):
        raise StepError(f"the manifest of a {obj['kind']} has no mapping in metadata")
    return obj


def _name_of(obj: Mapping[str, Any], action: str) -> str:
    name = (obj.get("metadata") or {}).get("name")
    if not name or not isinstance(name, str):
        raise StepError(f"the manifest of a {obj.get('kind')} has no metadata.name, which {action} needs")
    return name


def _owned(obj: Obj, owner: Mapping[str, Any] | None) -> Obj:
    if owner is not None:
        obj["metadata"]["ownerReferences"] = [*(obj["metadata"].get("ownerReferences") or ()), dict(owner)]
    return obj


def _uid_of(answer: Mapping[str, Any]) -> str:
    """The uid in the answer to a DELETE: a Status, or the object."""
    details: Mapping[str, Any] = answer.get("details") or {}
    meta: Mapping[str, Any] = answer.get("metadata") or {}
    return str(details.get("uid") or meta.get("uid") or "")
