"""The ingress of the local cluster: a reverse proxy on one loopback port, in a separate process.

    table       pure: Ingresses, Services and EndpointSlices → the backend of a host and path
    http1       pure: heads of requests and answers, read strictly
    proxy       the proxy: HTTP/1.1 streamed both ways, WebSocket passed through as bytes
    publisher   in the control plane's process: writes the table for the proxy, and the status of Ingresses
    __main__    the process

The control plane writes the table into the file `run/ingress.json`, the proxy checks it ten times a second. So
the proxy needs no access to the API, continues with the last table while the control plane restarts, and uses only
the standard library (a fifth of a second and 20 MB less than a web framework).

Differences from the ingress of a real cluster: HTTP only (`spec.tls` is ignored), no annotations, no UDP or
TCP. Does not belong here: access rules (the applications and the platform's gateway have them).
"""
