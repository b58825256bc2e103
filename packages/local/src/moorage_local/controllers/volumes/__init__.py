"""Claims and volumes: binding, folders as volumes, protection of volumes in use."""
