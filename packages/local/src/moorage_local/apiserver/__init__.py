"""The local cluster's API server: generic resources described by data, one pipeline for every request.

    server          the whole, put together; `core` is what its parts share
    operations      every verb on objects and subresources, sent to where it is done
    client, http    the two ways in: in process, and as a kube-apiserver over HTTP
    pipeline        authorise, decode, default, admit, validate, store: the same for every kind
    kinds           defaults, checks and table cells of each built-in kind, a file for each
    subresources    bindings, evictions, scale, tokens, logs, streams; and reviews
    admission       limits, quotas, Pod Security, webhooks
    auth, pki       users, tokens, RBAC; certificates
    types           what objects look like: built-in types, schemas, metadata, field errors
    wire            requests, answers, patches, protobuf, tables, SPDY and WebSocket messages
    customresources, discovery, openapi

Belongs here: what a kube-apiserver does, from authentication to the stored object. Does not
belong here: what controllers, the scheduler or the kubelet do with the objects.
"""
