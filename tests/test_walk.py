"""A sample passes few modules: a JPEG from its folder to `x.arrow`, and sample 17 of `x.tars` to a batch.

A module is crossed if one of its functions is called, also in a thread. A call turns back if it leads from a
module into one that imports it, directly or through others.
"""

import sys
import threading

import pytest
from PIL import Image
from test_layers import ROOT, imported, sources

from smallfiles import formats
from smallfiles.loading import SampleDataset, field_batches
from smallfiles.pack import PackConfig, pack
from smallfiles.sources import load

HOME = f"{ROOT / 'smallfiles'}/"


def walk(run):
    """The modules that a call crosses, and its calls from one module into another."""
    crossed, calls = set(), set()

    def entered(frame, event, _):
        name = frame.f_code.co_filename.removeprefix(HOME)
        if event != "call" or frame.f_code.co_filename == name or frame.f_code.co_name == "<module>":
            return
        crossed.add(name)
        while (frame := frame.f_back) is not None and not frame.f_code.co_filename.startswith(HOME):
            pass
        if frame is not None:
            calls.add((frame.f_code.co_filename.removeprefix(HOME), name))

    threading.setprofile(entered)
    sys.setprofile(entered)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return crossed, calls


def above():
    """Module -> all modules that it imports, directly or through others."""
    direct = {}
    for path in sources("smallfiles"):
        found = [
            "/".join(parts[1:end]) for _, parts in imported(path) for end in (len(parts), len(parts) - 1)
        ]
        names = {f"{each}{end}" for each in found for end in (".py", "/__init__.py")}
        direct[str(path).removeprefix(HOME)] = {
            each for each in names if (ROOT / "smallfiles" / each).is_file()
        }
    while True:
        more = {name: set().union(below, *(direct[each] for each in below)) for name, below in direct.items()}
        if more == direct:
            return direct
        direct = more


@pytest.fixture
def pictures(tmp_path):
    for number in range(60):
        file = tmp_path / "data" / f"class{number % 3}" / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (number, 0, 0)).save(file)
    return tmp_path / "data"


def test_a_jpeg_crosses_few_modules_from_its_folder_to_an_arrow_file(pictures):
    pack(load(pictures), pictures.with_name("before.arrow"))  # so that everything is imported
    crossed, calls = walk(lambda: pack(load(pictures), pictures.with_name("x.arrow")))
    over = above()
    back = [(one, other) for one, other in calls if one in over[other] and other not in over[one]]
    assert len(crossed) <= 40, sorted(crossed)
    assert len(back) < 15, sorted(back)


def test_a_sample_of_shards_crosses_few_modules_on_its_way_to_a_batch(pictures):
    pack(load(pictures), pictures.with_name("x.tars"), PackConfig(shuffle=0))
    whole = SampleDataset(field_batches(formats.open(pictures.with_name("x.tars"))))
    one = SampleDataset(field_batches(formats.open(pictures.with_name("x.tars"))))
    whole[16], len(one)
    crossed, _ = walk(lambda: one[17])
    assert "loading/makers.py" in crossed and len(crossed) <= 12, sorted(crossed)
