"""Reviews of tokens and access: the server answers them and never stores them."""

from __future__ import annotations

from moorage_local.apiserver.kinds.kind import Rules

_REVIEW = Rules(virtual=True)

RULES = {
    ("authentication.k8s.io", "tokenreviews"): _REVIEW,
    ("authentication.k8s.io", "selfsubjectreviews"): _REVIEW,
    ("authorization.k8s.io", "subjectaccessreviews"): _REVIEW,
    ("authorization.k8s.io", "localsubjectaccessreviews"): _REVIEW,
    ("authorization.k8s.io", "selfsubjectaccessreviews"): _REVIEW,
    ("authorization.k8s.io", "selfsubjectrulesreviews"): _REVIEW,
}
