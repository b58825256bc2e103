"""Records of runs' attempts after their pods were deleted.

Facts in SQL, and the end of each pod's log in files.

Belongs here: the store, the folder of logs, and the keeper that feeds both. Does not belong here: the state
of a run (`decide.runs`), and the rights of readers (`server.rest`).
"""
