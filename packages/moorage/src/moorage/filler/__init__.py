"""What runs in pods that move data: it fills datasets, copies into and out of volumes, writes and reads backups.

Belongs here: the part that touches files and object stores, in Moorage's own image (or, on the local cluster, in
the environment that Moorage runs in). Does not belong here: Kubernetes. A process of this package is told all it
needs by its command line and environment, and tells how it stands by lines of JSON on its standard output.
"""
