"""What is kept of workflows: runs, their nodes, what their steps reported, memoized outputs, and artifacts.

Belongs here: the SQL store, its asynchronous face, and the folder or bucket of artifacts. Does not belong here:
what a run does next (`decide.workflows`), who may read what is kept (`server`), the loop (`controllers.workflow`).
"""
