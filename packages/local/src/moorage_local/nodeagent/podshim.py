"""Start one pod's shim: `python -S -E -s podshim.py POD_DIR`.

A file of its own so that the interpreter finds the modules of `shim` compiled: a script is compiled anew at every
start.
"""

import sys

if __name__ == "__main__":
    from shim.entry import main  # type: ignore[import-not-found]  # beside this file: sys.path[0] is its folder

    del sys.path[0]
    sys.exit(main(sys.argv))
