"""`python -m moorage_workflows.executor resource`: the main container of a step with a `resource` template.

It sends the requests to the API server that `kubectl` would send with the same words, with the rights of
the pod's service account only. Then it waits until the object meets a condition, and writes the output
parameters.

Belongs here: requests to the API server of this cluster, and decisions by their answers. Does not belong
here: the meaning of a template's fields (`decide.workflows.resources`), and the step's artifacts and
reports.
"""
