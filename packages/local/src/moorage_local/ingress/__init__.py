"""The ingress of the local cluster: a reverse proxy on one loopback port, in a process of its own.

    table       pure: Ingresses, Services and EndpointSlices → which host and path leads where; the look-up in it
    http1       pure: heads of requests and answers, read strictly
    proxy       the proxy: HTTP/1.1 streamed both ways, WebSocket passed through as bytes
    publisher   in the control plane's process: writes the table for the proxy, and the status of Ingresses
    __main__    the process

The control plane writes the table into the file `run/ingress.json`, the proxy looks at it ten times a second: so
the proxy needs no access to the API, goes on with the last table while the control plane restarts, and is no more
than the standard library (a fifth of a second and 20 MB less than a web framework).

What is different from the ingress of a real cluster: HTTP only (`spec.tls` is ignored), no annotations, no UDP or
TCP. Does not belong here: who may see what (the applications and the platform's gateway decide that).
"""
