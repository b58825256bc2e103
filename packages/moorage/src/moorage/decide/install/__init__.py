"""An installation of Moorage on a cluster: its values, the objects it makes, and the steps to write or remove
them.

Belongs here: `values` (the admin's choices), `overlay` (the choices applied to the objects that we ship), `record`
(the record of the installation on the cluster), `changes` (differences from the cluster's objects), `steps` (the
order of writes), `removal` (the objects to remove and to leave). Does not belong here: reading from or writing to
a cluster (`actions.install`).
"""
