"""Resource templates: the meaning of their fields, and the order for the executor that carries them out.
Pure.

`flags`, `conditions` and `jsonpath` are used by the lint and by the executor alike. Does not belong
here: requests to an API server (`moorage_workflows.executor.resource`).
"""
