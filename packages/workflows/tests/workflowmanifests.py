"""Templates and manifests of workflows that the tests of several subjects play."""

from __future__ import annotations

# For `spec.templates`: a step that prints its input.
SAY_TEMPLATE = """\
- name: say
  inputs: {parameters: [{name: x, default: "0"}]}
  container: {image: busybox, command: [echo, "{{inputs.parameters.x}}"]}
"""

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
