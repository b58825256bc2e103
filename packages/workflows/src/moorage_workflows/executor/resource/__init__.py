"""`python -m moorage_workflows.executor resource`: the main container of a step with a `resource` template.

It does to the API server what `kubectl` would do with the same words, with the rights of the pod's service account
and no others. Then it waits until the object meets a condition, and writes what the output parameters ask for.

Belongs here: requests to the API server of this cluster, and what is decided by their answers. Does not belong
here: what a template's fields mean (`decide.workflows.resources`), and the step's artifacts and reports.
"""
