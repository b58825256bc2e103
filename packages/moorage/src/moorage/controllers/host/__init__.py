"""Hosts that Ingresses of two namespaces name."""
