"""Templates and manifests of workflows that the tests of several subjects play."""

from __future__ import annotations

from typing import Any

import yaml

# For `spec.templates`: a step that prints its input.
SAY = {
    "name": "say",
    "inputs": {"parameters": [{"name": "x", "default": "0"}]},
    "container": {"image": "busybox", "command": ["echo", "{{inputs.parameters.x}}"]},
}


def a_workflow(text: str) -> dict[str, Any]:
    """A manifest with the spec, or only the templates, of this YAML text.

    Its entrypoint is main, and `say` is added to templates that lack it.
    """
    given = yaml.safe_load(text)
    spec = {"entrypoint": "main", "templates": [], **({"templates": given} if isinstance(given, list) else given)}
    if "say" not in {template["name"] for template in spec["templates"]}:
        spec["templates"].append(SAY)
    return {"spec": spec}


# A step within a template that ends before `last` has outputs with global names, and `last` uses one of them.
NESTED_EXPORT = """
spec:
  entrypoint: main
  templates:
  - name: main
    steps:
    - - {name: all, template: inner}
    - - name: last
        template: say
        arguments: {parameters: [{name: x, value: "{{workflow.outputs.parameters.g}}"}]}
  - name: inner
    steps: [[{name: make, template: make}]]
  - name: make
    outputs:
      parameters: [{name: y, globalName: g, valueFrom: {path: /y}}]
      artifacts: [{name: f, globalName: file, path: /f, artifactGC: {strategy: OnWorkflowDeletion}}]
    container: {image: busybox, command: [echo]}
  - name: say
    inputs: {parameters: [{name: x}]}
    container: {image: busybox, command: [echo, "{{inputs.parameters.x}}"]}
"""
