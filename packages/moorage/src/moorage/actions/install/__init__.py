"""Moorage on a cluster of others: installed, upgraded, removed.

Belongs here: reading from and writing to the cluster, as `decide.install` says.
Does not belong here: what is shipped (`model.manifests`), words for people (`cli.install`).
"""
