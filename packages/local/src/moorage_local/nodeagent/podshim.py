"""Start one pod's shim: `python -S -E -s podshim.py POD_DIR`.

This file has no other code, so that the interpreter uses the compiled modules of `shim`: a script is compiled at
every start.
"""

import sys

if __name__ == "__main__":
    from shim.entry import main  # type: ignore[import-not-found]  # next to this file: sys.path[0] is its folder

    del sys.path[0]
    sys.exit(main(sys.argv))
