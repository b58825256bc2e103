"""The commands `moor workflow` and `moor cron`, and what `moor explain` says of workflows."""
