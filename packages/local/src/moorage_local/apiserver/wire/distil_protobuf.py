"""Generate `protobuf.json` from the Go sources of the API types: the protobuf number of each field.

    python -m moorage_local.apiserver.wire.distil_protobuf k8s.io > protobuf.json

`k8s.io` is a folder with `api`, `apimachinery` and `apiextensions-apiserver`, such as a vendor folder. The
types themselves are in `builtin.json`; this file adds `{type: {number: name}}`. A name that begins with `*`
is a pointer: its zero value is sent only if it was set. A name that begins with `>` is a struct that is
inline in JSON: the rest of the name is its type, and its fields belong to the enclosing type.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from moorage_local.apiserver.types.schema import builtin

_STRUCT = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^\t(?:(\w+) +)?([\w.*\[\]]+) +`([^`]*)`", re.MULTILINE)
_NUMBER = re.compile(r'protobuf:"[a-z0-9]+,(\d+)')
_JSON = re.compile(r'json:"([^",]*)')


def numbers_of(folder: Path) -> dict[str, dict[str, str]]:
    """Return all structs with numbered fields in the folder, by their OpenAPI name."""
    numbers: dict[str, dict[str, str]] = {}
    for source in sorted(folder.rglob("*.go")):
        if source.name.startswith("zz_") or source.name.endswith(("_test.go", ".pb.go")):
            continue
        package = "io.k8s." + ".".join(source.relative_to(folder).parts[:-1])
        for name, body in _STRUCT.findall(source.read_text()):
            fields = {}
            for field, kind, tag in _FIELD.findall(body):
                number, json_name = _NUMBER.search(tag), _JSON.search(tag)
                if number is None:
                    continue
                plain = kind.lstrip("*")
                if json_name is None or not json_name[1]:
                    fields[number[1]] = f">{package}.{plain or field}"
                else:
                    fields[number[1]] = ("*" if kind.startswith("*") else "") + json_name[1]
            if fields:
                numbers[f"{package}.{name}"] = fields
    return numbers


def wanted(numbers: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """Return only the built-in types and the structs that are inline in them."""
    todo, out = list(builtin()["types"]), {}
    while todo:
        name = todo.pop()
        if name in out or name not in numbers:
            continue
        out[name] = numbers[name]
        todo += [number[1:] for number in numbers[name].values() if number.startswith(">")]
    return out


if __name__ == "__main__":
    json.dump(wanted(numbers_of(Path(sys.argv[1]))), sys.stdout, separators=(",", ":"), sort_keys=True)
    sys.stdout.write("\n")
