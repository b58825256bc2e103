"""Workspaces: `plan` decides, `objects` builds, `controller` reads and writes."""
