"""The errors that users of `moorage.Client` catch; `moorage_kube.errors` describes them."""

from moorage_kube.errors import *  # noqa: F403
