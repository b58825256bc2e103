"""The pods behind each Service: EndpointSlices, and Endpoints for clients that still read them.

https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/
"""
