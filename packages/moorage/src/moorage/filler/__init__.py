"""Programs for pods that move data: fill datasets, copy into and out of volumes, write and read backups.

Belongs here: the part that touches files and object stores, in Moorage's own image (or, on the local cluster, in
the environment of Moorage). Does not belong here: Kubernetes. A process of this package gets all its
parameters by its command line and environment, and reports its progress by lines of JSON on its standard output.
"""
