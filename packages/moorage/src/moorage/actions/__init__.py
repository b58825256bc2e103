"""Use cases, once each: read what a decision depends on, decide, write.

The REST API, the pages, the command line and the SDK call these and nothing below, so that each way in does the
same. An action takes the Kubernetes API of the one who asks: cluster rights decide. It raises MoorageError with a
`code` of `moorage.api.errors`, and says what a caller may want to tell in what it returns.
Does not belong here: HTTP, text for terminals, choices that can be tested as a table (`decide`).
"""
