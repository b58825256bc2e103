"""Install, upgrade and remove Moorage on an existing cluster.

Belongs here: reading from and writing to the cluster, as `decide.install` decides.
Does not belong here: the shipped objects (`model.manifests`), texts for users (`cli.install`).
"""
