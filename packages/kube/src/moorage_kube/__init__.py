"""Kubernetes' own rules and a client of its API: quantities, selectors, resources, API verbs, informers.

Belongs here: rules that any Kubernetes client, controller or server needs, and nothing specific to Moorage. The
platform and the local cluster share them. `remote` holds the client over a network; the other modules need none.
Does not belong here: our kinds, decisions, and the server's side of the API.
"""

__version__ = "0.1.0"
