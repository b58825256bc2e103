"""Claims and volumes: binding, folders as volumes, protection of what is in use."""
