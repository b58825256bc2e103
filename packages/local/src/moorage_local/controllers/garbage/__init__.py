"""What goes when something else went: owned objects, contents of namespaces, old events, left-over pods."""
