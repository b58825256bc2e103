"""The file that a command starts with."""

from __future__ import annotations

import pytest

from moorage.decide.runs.scripts import script_of
from moorage.present.commandlines import command_words


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("python train.py --epochs 3", "train.py"),
        ("python3 -u src/train.py", "src/train.py"),
        ("bash ./run.sh", "run.sh"),
        ("./bin/train", "bin/train"),
        ("python train.py; echo $? | tee log", "train.py"),
        ("python train.py\necho done", "train.py"),
        pytest.param("python -c 'print(1)' train.py", "", id="a text"),
        pytest.param("python -m pkg train.py", "", id="a module"),
        pytest.param("python /app/train.py", "", id="a file of the image"),
        pytest.param("python ../train.py", "", id="outside of the folder"),
        pytest.param("cd /app && python train.py", "", id="another folder"),
        pytest.param("python $FILE/train.py", "", id="a variable"),
        pytest.param("A=b/c python train.py", "", id="an assignment"),
        pytest.param("echo 'a\nb'", "", id="an open quotation in its first line"),
        pytest.param("python data.csv", "", id="not a script"),
        pytest.param("nvidia-smi", "", id="a program"),
    ],
)
def test_the_file_that_a_command_starts_with(text, script):
    assert script_of(command_words(text)) == script


def test_an_empty_command_has_no_file():
    assert script_of(()) == ""
