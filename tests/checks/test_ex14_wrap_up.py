"""Exercise 14: each known wrong answer gets its own diagnosis, and right ones pass."""

import csv

from PIL import Image
from telling import judged

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


def packed(folder, out, columns=COLUMNS, config=SKIP):
    return pack(sources.load(folder / "survey" / "trees.csv", columns=columns), out, config)


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
    (lambda folder, out: pack(sources.load(folder), out, SKIP), "pack the table, not the folder"),
    (lambda folder, out: packed(folder, out, COLUMNS[::2]), "leave out what is not whole"),
    (lambda folder, out: packed(folder, out, (*COLUMNS[:2], "kind=species")), "name the column"),
    (sorted_by_hand, "join by id"),
    (lambda folder, out: str(out), "pack to `out`"),
]
TestPacked = judged(ex14.packed, WRONG_PACKED, [packed])


def seconds(trees, nodes, cpus, numbers, opens=1.0, decode=1.0, limit=None, way=None):
    opens_s = opens * 2 * trees / numbers["opens_per_s"]
    decode_s = decode * trees * numbers["cpu_ms"] / 1000 / nodes / cpus
    longer = "opens" if opens_s > decode_s else "CPUs"
    way = way or {"opens": "packed", "CPUs": "files"}[longer]
    return {"opens_s": opens_s, "decode_s": decode_s, "limit": limit or longer, "way": way}


WRONG_DEFENCES = [
    (lambda t, n, c, m: seconds(t, n, c, m, opens=0.5), "its image and its mask"),
    (lambda t, n, c, m: seconds(t, n, c, m, opens=1 / n), "more nodes do not open faster"),
    (lambda t, n, c, m: seconds(t, n, c, m, opens=2), "counts whole files"),
    (lambda t, n, c, m: seconds(t, n, c, m, decode=1000), "in milliseconds"),
    (lambda t, n, c, m: seconds(t, n, c, m, decode=n), "divide by the nodes"),
    (lambda t, n, c, m: seconds(t, n, c, m, decode=c), "divide by them"),
    (lambda t, n, c, m: seconds(t, n, c, m, decode=n * c), "all CPUs of all nodes"),
    (lambda t, n, c, m: seconds(t, n, c, m, limit="both"), "the longer one is the limit"),
    (lambda t, n, c, m: seconds(t, n, c, m, way="packed"), "packing removes opens"),
    (lambda t, n, c, m: seconds(t, n, c, m, way="files"), "packing removes opens"),
    (lambda t, n, c, m: {**seconds(t, n, c, m), "opens_s": "long"}, "one number, in seconds"),
]
TestDefence = judged(ex14.defence, WRONG_DEFENCES, [seconds])
