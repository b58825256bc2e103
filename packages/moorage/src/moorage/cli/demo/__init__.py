"""`moor demo`: the platform on this machine, shown by the commands that users type.

`command` is the click command, `runner` types commands and waits, `script` lists the steps. `files` are the
programs of the demo's runs: standard library only, and independent of Moorage.
"""
