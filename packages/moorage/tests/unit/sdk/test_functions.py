"""Functions as they are packed for images that have nothing but Python."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.sdk import functions
from moorage.worker.mapworker import child
from moorage.worker.mapworker.child import decode, encode
from moorage_kube.errors import UsageError

WORKER = str(Path(child.__file__).parent)


def contents(packed: bytes) -> tuple[dict[str, str], list[str]]:
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        return json.loads(archive.read("map.json")), archive.namelist()


@pytest.mark.processes
def test_a_pickled_function_loads_where_cloudpickle_is_not_installed(tmp_path):
    pytest.importorskip("cloudpickle")
    base = 40
    packed = functions.pack(lambda x: x + base)
    about, names = contents(packed)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert about == {"pickle": "function.pkl", "python": version, "codec": "auto"}
    assert {"cloudpickle/cloudpickle.py", "cloudpickle/LICENSE"} <= set(names)
    (tmp_path / "function.zip").write_bytes(packed)
    code = f"import sys; sys.path.insert(0, {WORKER!r}); import child; print(child.load('function.zip')[0](2))"
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == "42\n", done.stderr


def test_the_same_function_packs_to_the_same_bytes():
    assert functions.pack("json:dumps") == functions.pack("json:dumps")


def test_a_module_in_this_directory_goes_along_with_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def f(x): return x")
    assert contents(functions.pack("mine:f")) == ({"entry": "mine:f", "codec": "auto"}, ["map.json", "mine.py"])


@pytest.mark.parametrize("entry", ["mine", ":f", "mine:", ""])
def test_what_names_no_function_is_refused(entry):
    with pytest.raises(UsageError, match="is not a function"):
        functions.pack(entry)


def test_a_function_with_much_data_in_it_is_refused_with_its_size():
    pytest.importorskip("cloudpickle")
    import random

    much = random.Random(1).randbytes(1_000_000)
    with pytest.raises(UsageError, match=r"packs to .*; at most 900Ki"):
        functions.pack(lambda x: much[x])


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.just({"$pickle": "x"}),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


def same(value: object, other: object) -> bool:
    if isinstance(value, float) and math.isnan(value):
        return isinstance(other, float) and math.isnan(other)
    if isinstance(value, list | tuple):
        return type(value) is type(other) and len(value) == len(other) and all(map(same, value, other))
    if isinstance(value, dict):
        return (
            isinstance(other, dict)
            and list(value) == list(other)
            and all(same(value[key], other[key]) for key in value)
        )
    return type(value) is type(other) and value == other


@given(values)
def test_every_value_comes_back_as_it_was(value):
    sent = json.dumps(encode(value, "auto"), allow_nan=False)
    assert same(value, decode(json.loads(sent), "auto"))


@pytest.mark.parametrize("value", ["2019-10-03", 17, {"day": "x", "n": [1, 2.5, None, True]}])
def test_plain_values_stay_readable(value):
    assert encode(value, "auto") == value


def test_a_function_with_a_token_in_it_is_not_sent_to_a_cluster(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.py").write_text("def run(x): return x")
    (tmp_path / "tokened.py").write_text("TOKEN = 'hf_" + "x1" * 17 + "'\ndef run(x): return x")
    functions.check_sendable(functions.pack("plain:run"))
    packed = functions.pack("tokened:run")  # for this machine
    with pytest.raises(UsageError, match="contains a token of Hugging Face") as refused:
        functions.check_sendable(packed)
    assert "Secret" in refused.value.hint
