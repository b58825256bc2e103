"""`moor demo`: the platform shown on this machine, by the commands that people type.

`command` is the click command, `stage` types commands and waits, `script` is what is shown; `files` are the
programs that the demo's runs execute: standard library only, none of them knows Moorage.
"""
