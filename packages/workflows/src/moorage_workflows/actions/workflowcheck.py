"""Check manifests in Argo's format as text: fields, meaning, and features that Moorage does not support.

The classes of hera, generated from Argo's schema, check the type of every field. They are imported when the
first document is checked (docs/design/0002).
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import yaml
from msgspec import Struct

from moorage.decide.admission.fields import Path, at, mapping, sequence
from moorage.decide.tools.lint import line_of, repeated_keys
from moorage.model.argo import GROUP, VERSION
from moorage_kube.errors import DocumentError
from moorage_kube.resources import Obj
from moorage_kube.yamldocuments import NodeLoader, check_yaml, parse_yaml_documents
from moorage_workflows.decide.workflows.findings import Finding, Severity
from moorage_workflows.decide.workflows.lint import KINDS, check
from moorage_workflows.decide.workflows.normalise import normalise, old_spellings
from moorage_workflows.decide.workflows.support import is_known, unknown_field, unsupported
from moorage_workflows.decide.workflows.templates import TemplateKey

BYTES_MAX = 64 * 1024 * 1024  # of one file

# fields of Kubernetes' types that hera's classes (of Argo v4.0.5) do not have; those of Argo's are in `support`
NEWER_FIELDS: Mapping[str, frozenset[str]] = {
    "EnvVarSource": frozenset(("fileKeyRef",)),
    "VolumeProjection": frozenset(("podCertificate",)),
}
_ANY_FIELDS = frozenset(("Plugin",))  # classes whose fields are their own user's
_TYPES: Mapping[str, str] = {
    "string_type": "must be a string; put it in quotes",
    "int_type": "must be a whole number, without quotes",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number, without quotes",
    "bool_type": "must be true or false, without quotes",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "missing": "is required",
}


class Located(Struct, frozen=True, kw_only=True):
    """A finding in a file. `line` counts from 1; `kind` and `name` are "" if the document has none."""

    file: str
    line: int
    finding: Finding
    kind: str = ""
    name: str = ""


class Report(Struct, frozen=True, kw_only=True):
    """The findings in some files. `checked`: number of documents of Argo's kinds; `skipped`: of other kinds."""

    findings: tuple[Located, ...] = ()
    checked: int = 0
    skipped: int = 0

    def count(self, severity: Severity) -> int:
        return sum(located.finding.severity is severity for located in self.findings)


class _Read(Struct, frozen=True, kw_only=True):
    """A document of a file as written.

    `node`: its YAML, for line numbers; `path`: the place of the object in it.
    """

    file: str
    document: Obj
    node: Any
    path: Path = ()


def check_documents(text: str, *, is_run: bool = False) -> list[Finding]:
    """All findings in the manifests of one text. Its documents may refer to each other.

    Raises nothing: an unreadable document is a finding. `is_run`: as for `decide.workflows.lint.check`.
    """
    return [located.finding for located in check_texts([("", text)], is_run=is_run).findings]


def check_texts(texts: Iterable[tuple[str, str]], *, is_run: bool = False) -> Report:
    """Check (file name, text) pairs. All of them may refer to templates in any of them. Raises nothing.

    A reference to any other template is a warning: it may exist in the cluster.
    """
    findings: list[Located] = []
    documents: list[_Read] = []
    for file, text in texts:
        for item in _read(file, text):
            (documents if isinstance(item, _Read) else findings).append(item)  # type: ignore[arg-type]
    ours = [read for read in documents if _is_ours(read.document)]
    others = {
        TemplateKey(read.document["kind"] == "ClusterWorkflowTemplate", name): normalise(read.document)
        for read in ours
        if read.document["kind"].endswith("Template")
        and isinstance(name := mapping(read.document.get("metadata")).get("name"), str)
    }
    for read in ours:
        meta = mapping(read.document.get("metadata"))
        for finding in check_document(read.document, others, knows_others=False, is_run=is_run):
            findings.append(
                Located(
                    file=read.file,
                    line=line_of(read.node, (*read.path, *finding.path)),
                    finding=finding,
                    kind=str(read.document["kind"]),
                    name=str(meta.get("name") or meta.get("generateName") or ""),
                )
            )
    return Report(findings=tuple(findings), checked=len(ours), skipped=len(documents) - len(ours))


def check_document(
    document: Mapping[str, Any],
    others: Mapping[TemplateKey, Mapping[str, Any]],
    *,
    knows_others: bool = True,
    is_run: bool = False,
) -> list[Finding]:
    """Return all findings in one document as written; `others` are normalised documents.

    `knows_others`: a template that is not in `others` does not exist.
    """
    findings = [
        Finding(
            "version",
            old.path,
            "",
            f"is the spelling of Argo v3; write {old.new}, a list (see `moor workflow convert`)",
        )
        for old in old_spellings(document)
    ]
    plain = normalise(document)
    findings += check(plain, others, is_run=is_run, knows_others=knows_others)
    findings += unsupported(plain)
    seen = {finding.path for finding in findings}
    findings += [finding for finding in check_fields(plain) if finding.path not in seen]
    return list(dict.fromkeys(findings))


def check_fields(document: Mapping[str, Any]) -> Iterator[Finding]:
    """Find unknown fields and values of the wrong type in a normalised document of Argo's kinds."""
    import pydantic
    from hera.workflows import models

    shape = getattr(models, str(document.get("kind")))
    judged = {field: value for field, value in document.items() if field != "status"}
    yield from _unknown_fields(shape, judged, ())
    try:
        shape.model_validate_json(msgspec.json.encode(judged), strict=True)
    except pydantic.ValidationError as error:
        for problem in error.errors(include_url=False, include_context=False):
            path, missing = _path_of(problem["loc"], judged)
            message = _TYPES.get(problem["type"], problem["msg"])
            if problem["type"] == "missing":
                path = (*path, *missing)
            value = at(judged, path)
            shown = "" if value is None or isinstance(value, (dict, list)) else str(value)
            yield Finding("shape", path, shown[:60], message)


# --- unknown fields


def _unknown_fields(annotation: Any, value: Any, path: Path) -> Iterator[Finding]:
    """Find the unknown fields below a value. Its annotation lists the possible classes."""
    shapes = list(_alternatives(annotation))
    if isinstance(value, list):
        inner = [argument for shape in shapes for argument in _arguments(shape, list)]
        for index, entry in enumerate(value):
            for argument in inner[:1]:
                yield from _unknown_fields(argument, entry, (*path, index))
        return
    if not isinstance(value, Mapping):
        return
    model = next((shape for shape in shapes if isinstance(shape, type) and hasattr(shape, "model_fields")), None)
    if model is None:
        for argument in [arguments[-1] for shape in shapes if (arguments := _arguments(shape, dict))][:1]:
            for name, entry in value.items():
                yield from _unknown_fields(argument, entry, (*path, str(name)))
        return
    fields = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
    if model.__name__ in _ANY_FIELDS or "root" in fields:
        return
    for name, entry in value.items():
        if name in fields:
            yield from _unknown_fields(fields[name], entry, (*path, str(name)))
        elif name not in NEWER_FIELDS.get(model.__name__, ()) and not is_known(model.__name__, str(name)):
            yield Finding("field", (*path, str(name)), "", unknown_field(str(name), fields))


def _alternatives(annotation: Any) -> Iterator[Any]:
    """The possible types of a value, without Optional, Annotated and root models."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        yield from _alternatives(typing.get_args(annotation)[0])
    elif origin in (typing.Union, types.UnionType):
        for argument in typing.get_args(annotation):
            yield from _alternatives(argument)
    elif isinstance(annotation, type) and set(getattr(annotation, "model_fields", ())) == {"root"}:
        yield from _alternatives(annotation.model_fields["root"].annotation)  # type: ignore[attr-defined]
    else:
        yield annotation


def _arguments(shape: Any, container: type) -> tuple[Any, ...]:
    return typing.get_args(shape) if typing.get_origin(shape) is container else ()


def _path_of(location: Iterable[Any], document: Any) -> tuple[Path, Path]:
    """Return the existing path of a problem, and the last name after it that does not exist.

    Names of classes are left out.
    """
    path: list[str | int] = []
    beyond: list[str | int] = []
    for step in location:
        is_key = isinstance(document, Mapping) and step in document
        if is_key or (isinstance(document, list) and isinstance(step, int) and step < len(document)):
            document = document[step]
            path.append(step)
        else:
            beyond.append(step)
    return tuple(path), tuple(beyond[-1:])


# --- reading


def _read(file: str, text: str) -> Iterator[_Read | Located]:
    """Yield the documents of a text with their YAML; a finding for an unreadable document."""
    try:
        check_yaml(text, bytes_max=BYTES_MAX)
        documents = parse_yaml_documents(text, bytes_max=BYTES_MAX)
    except DocumentError as error:
        yield _unreadable(file, f"is not valid YAML: {error.message}", error.line or 1)
        return
    nodes = list(_nodes(text))
    for document, node in zip(documents, nodes, strict=False):
        for line, message in repeated_keys(node):
            yield _unreadable(file, message, line)
        yield from _objects(file, document, node, ())


def _nodes(text: str) -> Iterator[Any]:
    loader = NodeLoader(text)
    try:
        while loader.check_node():
            yield loader.get_node()
    finally:
        loader.dispose()


def _objects(file: str, document: Any, node: yaml.Node, path: Path) -> Iterator[_Read | Located]:
    if document is None:
        return
    if not isinstance(document, dict):
        yield _unreadable(file, "is not a Kubernetes object but a list or a plain value", line_of(node, path))
    elif document.get("kind") in ("List", "WorkflowList", "CronWorkflowList", "WorkflowTemplateList"):
        for index, item in enumerate(sequence(document.get("items"))):
            yield from _objects(file, item, node, (*path, "items", index))
    elif document.get("kind") in KINDS and not _is_ours(document):
        version = f"{GROUP}/{VERSION}"
        finding = Finding("shape", ("apiVersion",), str(document.get("apiVersion") or ""), f"must be {version}")
        yield Located(
            file=file, line=line_of(node, (*path, "apiVersion")), finding=finding, kind=str(document["kind"])
        )
    else:
        yield _Read(file=file, document=document, node=node, path=path)


def _is_ours(document: Mapping[str, Any]) -> bool:
    return document.get("kind") in KINDS and document.get("apiVersion") == f"{GROUP}/{VERSION}"


def _unreadable(file: str, message: str, line: int) -> Located:
    return Located(file=file, line=line, finding=Finding("yaml", (), "", message))
