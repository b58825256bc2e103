"""The server's loops: periodic work without a request. The first four write into the cluster.

- `idle`: warns of idle work and stops it; `maps`: the status of MapJobs; `budgets`: the status of
  Budgets;
- `sharing`: asks runs to give their place to others; `collector`: readings of use; `cost`: the money
  of a day;
- `outputs`: deletes the output of deleted maps.

`server.service` runs them, `budgets` as part of its feature. Does not belong here: loops that
reconcile objects (`controllers`), and their decisions (`decide`).
"""
