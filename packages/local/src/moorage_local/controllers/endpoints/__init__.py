"""Which pods stand behind each Service: EndpointSlices, and Endpoints for those who still read them.

https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/
"""
