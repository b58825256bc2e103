"""Output parameters of a resource template: the results of `jsonPath` and `jqFilter` on the object."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moorage.decide.evaluation import TextError
from moorage_kube.resources import Obj
from moorage_workflows.decide.workflows.resources import jsonpath
from moorage_workflows.executor.errors import StepError


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One parameter. `path`: the file for its value. Empty `json_path` and `jq_filter`: the default."""

    name: str
    path: str
    json_path: str = ""
    jq_filter: str = ""
    default: str = ""


def write_outputs(outputs: Iterable[Output], obj: Obj | None) -> None:
    """Write the value of each output; without an object, the defaults. Raises StepError with the parameter."""
    for output in outputs:
        try:
            value = output.default if obj is None else value_of(output, obj)
            path = Path(output.path)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(value + "\n", encoding="utf-8")  # the reader removes one newline
        except (StepError, TextError) as error:
            raise StepError(f"output parameter {output.name!r}: {error.message}") from error
        except OSError as error:
            raise StepError(f"output parameter {output.name!r} cannot be written: {error}") from error


def value_of(output: Output, obj: Obj) -> str:
    """Return the value of an output. Raises StepError; TextError for an invalid JSONPath."""
    if output.json_path:
        return jsonpath.render(jsonpath.parse(output.json_path), obj)
    return filtered(output.jq_filter, obj)


def filtered(program: str, obj: Mapping[str, Any]) -> str:
    """The output of a jq program on the object: texts as they are, all else as JSON, a line each.

    Raises StepError with jq's own message.
    """
    import jq

    try:
        results = jq.compile(program).input_text(json.dumps(obj, ensure_ascii=False)).all()
    except ValueError as error:
        raise StepError(f"jqFilter {program!r}: {error}") from error
    lines = [
        result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, separators=(",", ":"))
        for result in results
    ]
    return "\n".join(lines).strip()
