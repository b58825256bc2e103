"""Admission: bodies of AdmissionReview in and out of `decide.guardrails`.

Belongs here: the HTTP side of the webhook, what it remembers of the cluster, and its registration.
Does not belong here: the rules themselves (`decide.guardrails`), certificates (`kube.certs`).
"""
