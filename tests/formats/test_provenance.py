import json
from dataclasses import dataclass

import pytest

from smallfiles.formats.table import dump_record, load_record, record_of, recorded_classes, recorded_target
from smallfiles.samples import Schema


@dataclass(frozen=True)
class Options:
    rows: int = 64


def test_a_record_survives_json_and_equal_ones_are_equal_text():
    schema = Schema(2, 10, 6, name="birds", classes=("crane", "crane"), manifest_digest="sha256:00")
    made = record_of("arrow", schema, Options())
    text = dump_record(made)
    assert load_record(text) == made == load_record(text.encode())
    assert dump_record(dict(reversed(made.items()))) == text
    assert made["options"] == {"rows": 64}
    assert recorded_classes(made) == ("crane", "crane")
    assert recorded_target(made) == "label"


@pytest.mark.parametrize("text", [None, "", "[1]", "nonsense", b"\xff\xfe", "[" * 100_000, "3"])
def test_what_is_no_record_reads_as_an_empty_one(text):
    assert load_record(text) == {}


def test_a_record_of_another_shape_gives_no_classes_and_no_kind():
    odd = load_record(json.dumps({"schema": [1], "options": 3, "format": "x"}))
    assert odd == {"format": "x"}
    assert recorded_classes(odd) == ()
    assert recorded_target(odd) is None
