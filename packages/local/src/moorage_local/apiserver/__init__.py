"""The local cluster's API server: generic resources described by data, one pipeline for every request.

    server          the whole server; `core` has the parts that the others share
    operations      every verb on objects and subresources, sent to its implementation
    client, http    the two ways in: in process, and as a kube-apiserver over HTTP
    pipeline        authorise, decode, default, admit, validate, store: the same for every kind
    kinds           defaults, checks and table cells of each built-in kind, a file for each
    subresources    bindings, evictions, scale, tokens, logs, streams; and reviews
    admission       limits, quotas, Pod Security, webhooks
    auth, pki       users, tokens, RBAC; certificates
    types           the form of objects: built-in types, schemas, metadata, field errors
    wire            requests, answers, patches, protobuf, tables, SPDY and WebSocket messages
    customresources, discovery, openapi

Belongs here: the work of a kube-apiserver, from authentication to the stored object. Does not
belong here: the work of controllers, the scheduler or the kubelet with the objects.
"""
