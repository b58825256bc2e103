"""The Helm chart, from the same objects as `deploy/base`. Templates have as little logic as possible.

A template uses values, `default`, `quote`, `toYaml`, `nindent`, `if`, `else`, `with`, `range` and a host of a URL.
`tests/helmtemplates.py` evaluates only these, and the result is compared with `moor install`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from moorage.model.definitions import is_shared
from moorage.model.info import INFO_VALUES
from moorage.model.manifests import ALL, IMAGE, QUEUE_SECRET, SERVER, USAGE_CLAIM, make_ingress
from moorage.model.manifests.deployments import share_server
from moorage.model.names import INFO_CONFIGMAP, SYSTEM_NAMESPACE
from moorage_kube.resources import Obj

Dump = Callable[[Sequence[Any]], str]

KEEP = {"helm.sh/resource-policy": "keep"}
"""On what holds data: accounts, history, and definitions, whose removal would delete all objects of the kind."""
_MARK = "@@{}@@"
_HOST = "host.of.public.url"


def make_chart(objects: Mapping[str, Sequence[Obj]], *, version: str, dump: Dump, note: str) -> dict[str, str]:
    """Path → text of every file of the chart. `objects`: by their file in the tree."""
    files = {
        "Chart.yaml": note + dump([_chart(version)]),
        "values.yaml": note + _values(version, objects, dump),
        "values.schema.json": json.dumps(_schema(), indent=2) + "\n",
        "templates/ingress.yaml": note + _ingress(dump),
    }
    for path, objs in objects.items():
        texts = [_template(obj, dump) for obj in objs if not _is_own_namespace(obj)]
        files[f"templates/{path}"] = note + "---\n".join(texts)
    return files


def _is_own_namespace(obj: Obj) -> bool:
    """Whether it is the release's own namespace, which Helm creates."""
    return bool(obj["kind"] == "Namespace" and obj["metadata"]["name"] == SYSTEM_NAMESPACE)


def _template(obj: Obj, dump: Dump) -> str:
    name = obj["metadata"]["name"]
    match obj["kind"]:
        case "Deployment" if name == SERVER.full_name:
            shared = copy.deepcopy(obj)
            share_server(shared)
            return _either("databaseSecret", _deployment(shared, dump, database=True), _deployment(obj, dump))
        case "Deployment":
            return _deployment(obj, dump)
        case "ConfigMap" if name == INFO_CONFIGMAP:
            return _plain(obj, dump) + "".join(
                f"  {{{{- with .Values.{value} }}}}\n  {key}: {{{{ . | quote }}}}\n  {{{{- end }}}}\n"
                for key, value in INFO_VALUES.items()
            )
        case "PersistentVolumeClaim" if name == USAGE_CLAIM:
            storage = "  {{- with .Values.storageClass }}\n  storageClassName: {{ . | quote }}\n  {{- end }}\n"
            return _either("databaseSecret", "", _plain(_keep(obj), dump) + storage)
        case "CustomResourceDefinition" if is_shared(obj):
            return _either("workflowDefinitions", _plain(_keep(obj), dump), "")
        case "CustomResourceDefinition" | "Namespace":
            return _plain(_keep(obj), dump)
    return _plain(obj, dump)


def _keep(obj: Obj) -> Obj:
    """Mark an object so that Helm does not delete it with the release."""
    meta = obj["metadata"]
    return {**obj, "metadata": {**meta, "annotations": {**(meta.get("annotations") or {}), **KEEP}}}


def _plain(obj: Obj, dump: Dump) -> str:
    text = dump([obj])
    if "{{" in text:
        raise ValueError(f"{obj['kind']} {obj['metadata']['name']} holds braces, which Helm would read")
    return text


def _either(value: str, text: str, otherwise: str) -> str:
    return f"{{{{- if .Values.{value} }}}}\n{text}{{{{- else }}}}\n{otherwise}{{{{- end }}}}\n"


def _deployment(obj: Obj, dump: Dump, *, database: bool = False) -> str:
    """The template of a Deployment.

    Write markers as YAML in place of the values, then replace them in the text.
    """
    obj = copy.deepcopy(obj)
    spec = obj["spec"]
    service = str(obj["metadata"]["name"]).removeprefix("moorage-")
    marks = {"replicas": f"{{{{ .Values.replicas.{service} | default {spec['replicas']} }}}}"}
    spec["replicas"] = _MARK.format("replicas")
    pod = spec["template"]["spec"]
    pod[_MARK.format("placement")] = None
    [container] = pod["containers"]
    container["image"] = _MARK.format("image")
    marks["image"] = "{{ .Values.image | quote }}"
    container["resources"] = _MARK.format("resources")
    marks["resources"] = f"\n          {{{{- toYaml .Values.resources.{service} | nindent 10 }}}}"
    if database:
        for entry in container["env"]:
            source = (entry.get("valueFrom") or {}).get("secretKeyRef") or {}
            if source.get("name") == QUEUE_SECRET:
                entry["valueFrom"]["secretKeyRef"] = {"name": _MARK.format("secret"), "key": source["key"]}
                marks["secret"] = "{{ .Values.databaseSecret | quote }}"
    text = _plain(obj, dump)
    for mark, directive in marks.items():
        quoted = f"'{_MARK.format(mark)}'"
        if quoted not in text:
            raise ValueError(f"no place of {mark} in the Deployment {service}")
        text = text.replace(f" {quoted}" if directive.startswith("\n") else quoted, directive)
    return text.replace(f"      '{_MARK.format('placement')}': null\n", _PLACEMENT)


_PLACEMENT = """\
      {{- with .Values.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .Values.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .Values.imagePullSecrets }}
      imagePullSecrets:
      {{- range . }}
      - name: {{ . | quote }}
      {{- end }}
      {{- end }}
"""


def _ingress(dump: Dump) -> str:
    """The Ingress as in `moor install`: only if an address and a class are set."""
    obj = make_ingress(f"http://{_HOST}", "CLASS")
    host = "{{ (urlParse .Values.publicUrl).hostname }}"
    text = _plain(obj, dump).replace(_HOST, host).replace("CLASS", "{{ .Values.ingressClass | quote }}")
    secure = f"""\
  {{{{- if hasPrefix "https:" .Values.publicUrl }}}}
  tls:
  - hosts:
    - {host}
    {{{{- with .Values.tlsSecret }}}}
    secretName: {{{{ . | quote }}}}
    {{{{- end }}}}
  {{{{- end }}}}
"""
    chosen = "{{- if .Values.publicUrl }}\n{{- if .Values.ingressClass }}\n"
    return chosen + text + secure + "{{- end }}\n{{- end }}\n"


def _chart(version: str) -> Obj:
    return {
        "apiVersion": "v2",
        "name": "moorage",
        "description": "A platform for teams that share GPUs: runs, maps, workspaces, datasets",
        "type": "application",
        "version": version,
        "appVersion": version,
        "kubeVersion": ">=1.30.0-0",
    }


_TEXTS = {  # values that are texts, with their meaning
    "image": "image of the services, with its tag",
    "publicUrl": "where people reach the server, such as https://moorage.example.org; one address",
    "kubernetesUrl": "where people reach the Kubernetes API",
    "kubernetesCa": 'its certificate authority, PEM in base64, or "system"',
    "workspaceUrl": "addresses of workspaces: https://*.apps.example.org",
    "ingressClass": "IngressClass of the server and of workspaces; empty: the server has no Ingress",
    "tlsSecret": "Secret of type kubernetes.io/tls for these Ingresses",
    "trustedProxies": "networks whose X-Forwarded headers are believed, with commas between them",
    "storageClass": "StorageClass of the server's volume; empty: the default",
    "pauseImage": "image of the pods that hold places of machines",
    "runImage": "image of runs that name none, such as python:3.12-slim, in teams that are created later",
    "databaseSecret": "Secret in moorage-system with the url of PostgreSQL; with it the server has two replicas",
}


_DEFINITIONS = "whether to define Argo's kinds (Workflow, CronWorkflow, …); false where Argo is installed"


def _values(version: str, objects: Mapping[str, Sequence[Obj]], dump: Dump) -> str:
    resources = {
        str(obj["metadata"]["name"]).removeprefix("moorage-"): obj["spec"]["template"]["spec"]["containers"][0][
            "resources"
        ]
        for objs in objects.values()
        for obj in objs
        if obj["kind"] == "Deployment"
    }
    lines = []
    for name, meaning in _TEXTS.items():
        default = f"{IMAGE}:{version}" if name == "image" else ""
        lines.append(f"# {meaning}\n{name}: {json.dumps(default)}\n")
    lines.append(f"# {_DEFINITIONS}\nworkflowDefinitions: true\n")
    lines.append("# pods of each service; null: 2, and of the server 1 without a database\n")
    lines.append(dump([{"replicas": {service.name: None for service in ALL}}]))
    lines.append("# requests and limits of each service\n")
    lines.append(dump([{"resources": resources}]))
    lines.append("# where the pods of the services may run\nnodeSelector: {}\ntolerations: []\n")
    lines.append("# names of Secrets\nimagePullSecrets: []\n")
    return "".join(lines)


def _schema() -> Obj:
    """The schema of the values; unknown names are refused. https://helm.sh/docs/topics/charts/#schema-files"""
    amounts = {"type": "object", "additionalProperties": {"type": ["string", "number"]}}
    resources = _object({"requests": amounts, "limits": amounts})
    texts: dict[str, Obj] = {name: {"type": "string", "description": meaning} for name, meaning in _TEXTS.items()}
    texts["image"]["minLength"] = 1
    texts["publicUrl"]["pattern"] = "^(https?://[^/,\\s]+)?$"
    texts["workspaceUrl"]["pattern"] = "^(https?://\\*\\..+)?$"
    return {
        "$schema": "https://json-schema.org/draft-07/schema#",
        **_object(
            {
                **texts,
                "workflowDefinitions": {"type": "boolean", "description": _DEFINITIONS},
                "replicas": _object({name: {"type": ["integer", "null"], "minimum": 1} for name in _names()}),
                "resources": _object(dict.fromkeys(_names(), resources)),
                "nodeSelector": {"type": "object", "additionalProperties": {"type": "string"}},
                "tolerations": {"type": "array", "items": {"type": "object"}},
                "imagePullSecrets": {"type": "array", "items": {"type": "string"}},
                "global": {"type": "object"},  # Helm's own
            }
        ),
    }


def _object(properties: Mapping[str, Obj]) -> Obj:
    return {"type": "object", "additionalProperties": False, "properties": dict(properties)}


def _names() -> Iterable[str]:
    return [service.name for service in ALL]
