"""The stored data of workflows: runs, their nodes, reports of steps, memoized outputs, and artifacts.

Belongs here: the SQL store, its asynchronous interface, and the folder or bucket of artifacts. Does not belong
here: the next steps of a run (`decide.workflows`), access rights (`server`), the loop (`controllers.workflow`).
"""
