"""The commands `moor workflow` and `moor cron`, and the part of `moor explain` for workflows."""
