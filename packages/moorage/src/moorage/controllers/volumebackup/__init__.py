"""VolumeBackups: a Job for each moment of their schedule, and for each restore."""
