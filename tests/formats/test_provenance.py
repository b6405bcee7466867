import json
from dataclasses import dataclass

import pytest

from smallfiles.formats import provenance
from smallfiles.samples import Schema


@dataclass(frozen=True)
class Options:
    rows: int = 64


def test_a_record_survives_json_and_equal_ones_are_equal_text():
    schema = Schema(2, 10, 6, name="birds", classes=("crane", "crane"), manifest_digest="sha256:00")
    made = provenance.record("arrow", schema, Options())
    text = provenance.dumps(made)
    assert provenance.loads(text) == made == provenance.loads(text.encode())
    assert provenance.dumps(dict(reversed(made.items()))) == text
    assert made["options"] == {"rows": 64}
    assert provenance.class_names(made) == ("crane", "crane")
    assert provenance.target_of(made) == "label"


@pytest.mark.parametrize("text", [None, "", "[1]", "nonsense", b"\xff\xfe", "[" * 100_000, "3"])
def test_what_is_no_record_reads_as_an_empty_one(text):
    assert provenance.loads(text) == {}


def test_a_record_of_another_shape_gives_no_classes_and_no_kind():
    odd = provenance.loads(json.dumps({"schema": [1], "options": 3, "format": "x"}))
    assert odd == {"format": "x"}
    assert provenance.class_names(odd) == ()
    assert provenance.target_of(odd) is None
