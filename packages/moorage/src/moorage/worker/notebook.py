"""Run a notebook from top to bottom: `moor run notebook.ipynb` starts this inside the pod.

    python3 -c SOURCE NOTEBOOK OUTPUT PARAMETERS

OUTPUT is a file, or empty: then `$MOORAGE_CHECKPOINT_DIR/NAME.out.ipynb`, or NAME.out.ipynb in the working
directory. PARAMETERS is a JSON object; it becomes a cell behind the one tagged "parameters", or the first, as
in papermill. The output of cells is printed; the notebook with its outputs is written after each cell, so a
killed run keeps the outputs of the finished cells.

Exit code: 0, or 1 when a cell raised, 2 when the notebook or the image cannot be used.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

MISSING = """\
error: this image cannot run notebooks: it has no module {name}
hint: choose an image with Jupyter, or add to yours: pip install nbclient nbformat ipykernel
"""


def main(words: list[str]) -> int:
    # the image must have these packages: this file has no others
    source, target, parameters = words[0], words[1], json.loads(words[2])
    try:
        import nbformat as formats
        from nbclient import NotebookClient
        from nbclient.exceptions import CellExecutionError
    except ImportError as error:
        sys.stderr.write(MISSING.format(name=getattr(error, "name", None) or "nbclient"))
        return 2
    # read the notebook
    nbformat: Any = formats
    try:
        notebook = nbformat.read(source, as_version=4)
    except OSError as error:
        sys.stderr.write(f"error: cannot read {source}: {error.strerror}\n")
        return 2
    except Exception as error:  # nbformat raises any error of json and its schema
        sys.stderr.write(f"error: {source} is not a notebook: {error}\n")
        return 2
    # parameters become a cell after the one tagged for them
    if parameters:
        inject(notebook, parameters, nbformat.v4.new_code_cell)
    target = target or default_target(source)
    os.makedirs(os.path.dirname(os.path.abspath(target)), exist_ok=True)

    # the file is complete at any time: it is replaced after each cell
    def write() -> None:
        scratch = f"{target}.{os.getpid()}"
        nbformat.write(notebook, scratch)
        os.replace(scratch, target)

    def executed(cell: dict[str, Any], cell_index: int, **_: object) -> None:
        show(cell, cell_index, len(notebook.cells))
        write()

    # paths in the notebook are relative to its folder
    folder = os.path.dirname(os.path.abspath(source))
    client = NotebookClient(
        notebook, timeout=None, resources={"metadata": {"path": folder}}, on_cell_executed=executed
    )
    # an error of a cell fails the run, with all output so far in the file
    code = 0
    try:
        client.execute()
    except CellExecutionError as error:
        sys.stderr.write(f"error: a cell of {source} raised\n{error}\n")
        code = 1
    except Exception as error:
        name = type(error).__name__
        if name == "NoSuchKernel":
            sys.stderr.write(f"error: this image has no kernel {getattr(error, 'name', '')!r} for {source}\n")
            sys.stderr.write("hint: add it to the image: pip install ipykernel\n")
            return 2
        sys.stderr.write(f"error: {source} did not run to its end: {name}: {error}\n")
        code = 1
    write()
    sys.stderr.write(f"wrote {os.path.abspath(target)}\n")
    return code


def inject(notebook: dict[str, Any], parameters: dict[str, Any], new_cell: Any) -> None:
    """A cell that sets the parameters, behind the one with their defaults."""
    text = "# parameters of this run\n" + "\n".join(f"{name} = {value!r}" for name, value in parameters.items())
    cell = new_cell(text, metadata={"tags": ["injected-parameters"]})
    cells = notebook["cells"]
    tagged = [at for at, cell in enumerate(cells) if "parameters" in (cell["metadata"].get("tags") or ())]
    cells[:] = [cell for cell in cells if "injected-parameters" not in (cell["metadata"].get("tags") or ())]
    cells.insert(tagged[0] + 1 if tagged else 0, cell)


def default_target(source: str) -> str:
    name = os.path.splitext(os.path.basename(source))[0] + ".out.ipynb"
    kept = os.environ.get("MOORAGE_CHECKPOINT_DIR")
    return os.path.join(kept, name) if kept else os.path.join(os.path.dirname(source), name)


def show(cell: dict[str, Any], index: int, total: int) -> None:
    """The output of a cell, as text."""
    outputs = cell.get("outputs") or ()
    for output in outputs:
        if output["output_type"] == "stream":
            (sys.stderr if output.get("name") == "stderr" else sys.stdout).write(output["text"])
        elif "data" in output and "text/plain" in output["data"]:
            sys.stdout.write(output["data"]["text/plain"] + "\n")
    sys.stdout.flush()
    state = "failed" if any(output["output_type"] == "error" for output in outputs) else "done"
    sys.stderr.write(f"[cell {index + 1} of {total} {state}]\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
