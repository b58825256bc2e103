"""What is kept of runs' attempts when their pods are gone: facts in SQL, and the end of each pod's log in files.

Belongs here: the store, the folder of logs, and the keeper that feeds both. Does not belong here: what a run is
(`decide.runs`), and who may read what is kept (`server.rest`).
"""
