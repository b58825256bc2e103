"""VolumeBackups: a Job for each time in their schedule, and for each restore."""
