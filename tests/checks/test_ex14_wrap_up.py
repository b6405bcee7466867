"""Exercise 14: each known wrong answer gets its own diagnosis, and right ones pass."""

import csv
import math
from pathlib import Path

from PIL import Image
from telling import judged, known_mistakes

from exercises.checks import ex14_wrap_up as ex14
from smallfiles import sources
from smallfiles.pack import PackConfig, pack


def sets(folder, stem=lambda path: path.stem, pattern="*.jpg", load=True):
    survey = folder / "survey"
    with (survey / "trees.csv").open() as table:
        rows = {row["id"] for row in csv.DictReader(table)}
    paths = list((survey / "images").glob(pattern))
    masks = {stem(path) for path in (survey / "masks").iterdir()}
    damaged = set()
    for path in paths:
        try:
            opened = Image.open(path)
            opened.load() if load else None
        except OSError:
            damaged.add(stem(path))
    return rows, {stem(path) for path in paths}, masks, damaged


def right(folder, **options):
    rows, images, masks, damaged = sets(folder, **options)
    return {"no image": rows - images, "no mask": rows - masks, "no row": images - rows, "damaged": damaged}


def but(**changed):
    return lambda folder: {**right(folder), **{n.replace("_", " "): f(folder) for n, f in changed.items()}}


WRONG_FAULTS = [
    (lambda folder: right(folder, stem=lambda path: path.name.split(".")[0]), "cut the suffix only"),
    (lambda folder: right(folder, pattern="*"), "Thumbs.db is no image"),
    (lambda folder: right(folder, load=False), "call load()"),
    (but(no_row=lambda folder: set()), "go through the images as well"),
    (but(no_image=lambda folder: set()), "each id needs images/ID.jpg"),
    (but(no_mask=lambda folder: set()), "each id needs masks/ID.png"),
    (but(damaged=lambda f: right(f)["damaged"] | right(f)["no image"]), "is not a damaged one"),
    (but(no_mask=lambda f: right(f)["no mask"] | right(f)["no row"]), "not in the table"),
    (but(no_row=lambda f: {f"{one}.jpg" for one in right(f)["no row"]}), "names of files"),
    (lambda folder: list(right(folder)), "each fault has one entry"),
]
TestFaults = judged(
    ex14.faults,
    WRONG_FAULTS,
    [right, lambda folder: {name: sorted(ids) for name, ids in right(folder).items()}],
)

COLUMNS = ("image=images/{id}.jpg", "mask=masks/{id}.png", "label=species")
SKIP = PackConfig(on_error="skip")


def packed(folder, out, columns=COLUMNS, config=SKIP, name=lambda key: Path(key).stem):
    report = pack(sources.load(folder / "survey" / "trees.csv", columns=columns), out, config)
    return {name(one.key): one.reason for one in report.skipped}


def told(**faults):
    """Packed rightly, and the list made by hand from these faults."""

    def answer(folder, out):
        packed(folder, out)
        return {one: why for name, why in faults.items() for one in right(folder)[name.replace("_", " ")]}

    return answer


def sorted_by_hand(folder, out):
    """The table is sorted and given to the files in their order."""
    table = folder / "survey" / "trees.csv"
    head, *rows = table.read_text().splitlines()
    ids = [row.split(",")[0] for row in rows]
    rest = sorted(row.partition(",")[2] for row in rows)
    table.write_text("\n".join([head, *(f"{one},{values}" for one, values in zip(ids, rest, strict=True))]))
    return packed(folder, out)


WRONG_PACKED = [
    (lambda folder, out: packed(folder, out, config=PackConfig()), "exception"),
    (
        lambda folder, out: pack(sources.load(folder, ignore="survey/trees.csv"), out, SKIP),
        "pack the table, not the folder",
    ),
    (lambda folder, out: packed(folder, out, COLUMNS[::2]), "leave out what is not whole"),
    (lambda folder, out: packed(folder, out, (*COLUMNS[:2], "kind=species")), "name the column"),
    (sorted_by_hand, "join by id"),
    (lambda folder, out: str(out), "pack to `out`"),
    (lambda folder, out: list(packed(folder, out)), "return why a row was left out"),
    (lambda folder, out: packed(folder, out, name=str), "Path(key).stem is the id"),
    (
        lambda folder, out: packed(folder, out, name=lambda key: Path(key).name.split(".")[0]),
        "cut the suffix only",
    ),
    (told(no_image="none", no_mask="none", damaged="cut off", no_row="no row"), "these images have no row"),
    (told(no_image="none", no_mask="none"), "the report of `pack` names all"),
    (told(no_image="none", no_mask="", damaged="cut off"), "nobody can decide"),
]
TestPacked = judged(
    ex14.packed, WRONG_PACKED, [packed, told(no_image="none", no_mask="none", damaged="cut off")]
)


def breaks_even(round_up=math.ceil, never=math.inf):
    return lambda copy, other, staged: round_up(copy / (other - staged)) if other > staged else never


WRONG_BREAK_EVENS = [
    (breaks_even(never=0), "never pays off: math.inf"),
    (lambda copy, other, staged: math.ceil(copy / (other - staged)), "never pays off: math.inf"),
    (lambda copy, other, staged: math.ceil(copy / 5), "divide the seconds of the copy"),
    (lambda copy, other, staged: "30", "one number"),
    (lambda *case: 42 if case[0] == 217.0 else breaks_even()(*case), "need not be yours"),
]
TestKnownCopies = known_mistakes(ex14.break_even, ex14.COPY_MISTAKES, ex14.PAYING)
TestBreakEven = judged(
    ex14.break_even, WRONG_BREAK_EVENS, [breaks_even(), breaks_even(lambda n: float(math.ceil(n)))]
)


def training(trees, nodes, cpus, epochs, numbers, way=None, **changed):
    """The right answer, with some of its entries changed."""
    opens, read = 2 * trees / numbers["opens_per_s"], trees * numbers["tree_mb"] / numbers["read_mb_s"]
    decode = trees * numbers["cpu_ms"] / 1000 / nodes / cpus
    whole = {
        "files": epochs * max(opens, read, decode),
        "shards": epochs * max(read, decode),
        "staged": nodes * read + epochs * decode,
    } | changed
    return {**whole, "way": way or min(whole, key=whole.get)}


def but(way):
    """From a mistake in one way to an answer that makes it."""
    return lambda wrong: lambda *given: {**training(*given), way: wrong(*given)}


TestFiles, TestShards, TestStaged = (
    known_mistakes(ex14.defence, ex14.mistakes_of(way), ex14.CASES, but(way)) for way in ex14.WAYS
)
WRONG_DEFENCES = [
    (lambda *given: training(*given, way="staged"), "compare whole trainings"),
    (lambda *given: training(*given, way="shards"), "the shortest training"),
    (lambda *given: training(*given, way="files"), "the shortest training"),
    (lambda *given: training(*given, staged="long", way="shards"), "one number, in seconds"),
    (lambda *given: training(*given)["way"], "four entries"),
    (lambda t, n, c, e, numbers: training(t, n, c, 1 if e == 5 else e, numbers), "need not be yours"),
]
TestDefence = judged(ex14.defence, WRONG_DEFENCES, [training])
