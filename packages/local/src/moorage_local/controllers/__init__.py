"""What kube-controller-manager does, for the local cluster: a folder per controller, `plan.py` in each.

A plan is a pure function from what was read to the steps to take; the controller beside it reads and writes.
`manager.ControllerManager` runs them all. Scheduling and running pods belong elsewhere.
"""
