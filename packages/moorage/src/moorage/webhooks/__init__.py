"""Admission: AdmissionReviews in, decisions of `decide.admission` out.

Belongs here: the HTTP side of the webhook, its caches of the cluster, and its registration.
Does not belong here: the rules themselves (`decide.admission`), certificates (`cluster.certs`).
"""
