"""Hosts that Ingresses of two namespaces use."""
