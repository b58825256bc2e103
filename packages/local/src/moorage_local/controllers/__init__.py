"""The local cluster's kube-controller-manager: a folder per controller, `plan.py` in each.

A plan is a pure function from the observed state to the steps to take; `controller.py` reads and writes.
`manager.ControllerManager` runs them all. Scheduling and running pods belong elsewhere.
"""
