"""A client and a namespace for each test on a cluster."""

from moorage_testing.namespaces import api as api
from moorage_testing.namespaces import namespace as namespace
