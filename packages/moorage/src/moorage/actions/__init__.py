"""Use cases, once each: read the input of a decision, decide, write.

The REST API, the pages, the command line and the SDK call only these, so that all clients do the same. An action
takes the caller's Kubernetes API, so the caller's rights apply. It raises MoorageError with a `code` of
`moorage.api.errors`, and returns all that a caller may want to print.
Does not belong here: HTTP, text for terminals, choices that can be tested as a table (`decide`).
"""
