"""Delete objects that depend on deleted ones: owned objects, contents of namespaces; also old events and pods."""
