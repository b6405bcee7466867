"""`manifest`: list samples with targets; `pack`: many small files become one; `annotate`: later fields."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smallfiles.cli.arguments import Verbs, add_path, add_run, add_source_flags, load_source, parse_options
from smallfiles.cli.output import in_seconds, look_at, report, say, since
from smallfiles.errors import first_few
from smallfiles.options import add_flags, explicit_fields, from_args
from smallfiles.pack import PackConfig
from smallfiles.progress import bytes_text, plural, say_notes
from smallfiles.selection import Choice, parse_rule

if TYPE_CHECKING:
    from smallfiles.pack import PackReport
    from smallfiles.sources import Source


def _add_manifest(verbs: Verbs) -> None:
    parser = add_run(verbs, "manifest", run_manifest)
    add_path(parser, "dir", "DIR|TABLE", "a folder, a tar file, a table, a packed output or a manifest")
    help = "output file (default: the name of the source with .json, in this folder)"
    parser.add_argument("-o", "--output", type=Path, metavar="M.json", help=help)
    parser.add_argument("--flat", action="store_true", help="write the flat form {path: label}")
    add_source_flags(parser)


def run_manifest(arguments: argparse.Namespace) -> int:
    """List the samples of a data set with their targets.

    A walk over a million files is expensive on a parallel file system. With a manifest it happens once, and
    every later step reads one file. The kind of data set is recognised; --source overrides this.

    Examples:
        smallfiles manifest data -o data.json
        smallfiles manifest ILSVRC --source imagenet --split val -o val.json
        smallfiles manifest train.tar --source tarball -o train.json
        smallfiles manifest labels.parquet --root images --field 'image={id}.jpg' -o train.json
    """
    from smallfiles.atomic import created, refuse_existing

    path = arguments.output or Path(f"{arguments.dir.resolve().name.removesuffix('.json')}.json")
    refuse_existing(path)
    from smallfiles.sources import ManifestConfig

    config = from_args(ManifestConfig, arguments)
    source = config.load(arguments.dir)
    say_notes(source.notes)
    with created(path):
        config.save(source, path)
    below = source.root is None or source.root.resolve().is_relative_to(path.parent.resolve())
    if not config.flat and not below:
        say(f"note: the data is not below {path.parent}: add --root when you use this manifest")
    facts = _facts(source, path, since(arguments))
    size = f" ({bytes_text(facts['bytes'])})" if facts["bytes"] is not None else ""
    return report(
        arguments,
        facts,
        f"wrote {path}: {facts['samples']:,} samples{size} in {in_seconds(facts['seconds'])}",
        f"{facts['kind']}, split {facts['split']}, {_targets(source)}",
        facts["digest"],
    )


def _facts(source: Source, path: Path, seconds: float) -> dict[str, Any]:
    manifest = source.manifest
    sizes = manifest.sizes
    return {
        "path": path,
        "samples": len(manifest),
        "bytes": None if sizes is None else int(sizes.sum()),
        "seconds": seconds,
        "kind": source.kind,
        "split": manifest.split,
        "target": manifest.target_kind,
        "classes": len(manifest.classes),
        "digest": manifest.digest,
        "notes": list(source.notes),
    }


def _targets(source: Source) -> str:
    classes = source.manifest.classes
    if source.manifest.target_kind == "captions":
        return "captions"
    return (
        f"{len(classes):,} classes: {first_few(classes, len(classes))}" if classes else "labels without names"
    )


def add(verbs: Verbs) -> None:
    """Add the verbs."""
    _add_manifest(verbs)
    parser = add_run(verbs, "pack", run)
    help = "a folder, a tar, a table of paths (.csv, .jsonl, .parquet ...), a manifest or what pack wrote"
    add_path(parser, "dir", "DIR|TABLE|M.json", help)
    add_path(parser, "out", "OUT", "the packed file or folder of shards")
    parser.add_argument("--dry-run", action="store_true", help="say size and inodes saved, write nothing")
    add_flags(parser, PackConfig, ("shuffle", "resize"))
    add_flags(parser.add_mutually_exclusive_group(), PackConfig, ("part", "merge"))
    add_flags(parser, PackConfig, ("format",))
    several: dict[str, Any] = {"action": "append", "default": []}
    help = "an option of the format, listed above; repeatable"
    parser.add_argument("-O", "--option", metavar="KEY=VALUE", help=help, **several)
    add_flags(parser, PackConfig, ("in_flight", "verify", "on_error", "check", "pixels", "quality"))
    add_flags(parser, PackConfig, ("digest", "storage_timeout_s"))
    add_source_flags(parser)
    parser = add_run(verbs, "annotate", run_annotate)
    add_path(parser, "out", "OUT", "a packed file or folder of shards")
    add_path(parser, "table", "TABLE", ".csv, .tsv, .jsonl, .parquet or .arrow")
    help = "keys of the samples, or their file names or stems"
    parser.add_argument("--key", metavar="COLUMN", required=True, help=help)
    help = "a column to add, and its name as a field (all but the keys); may be repeated"
    parser.add_argument("--field", metavar="NAME=COLUMN", help=help, **several)
    parser.add_argument("--name", help="in the name of the new file (the stem of TABLE)")
    parser = add_run(verbs, "split", run_split)
    add_path(parser, "out", "OUT", "a packed file or folder of shards")
    help = "the share of each split, such as train=0.8,val=0.2"
    parser.add_argument("--rule", type=parse_rule, metavar="NAME=SHARE,...", required=True, help=help)
    add_flags(parser, Choice, ("split_by", "stratify", "split_seed"))


def config_of(arguments: argparse.Namespace) -> PackConfig:
    """Build the configuration from a parsed command line."""
    from smallfiles import formats

    name = formats.name_of(arguments.out, getattr(arguments, "format", None))
    options = parse_options(formats.get(name).Options, arguments.option) if arguments.option else None
    return from_args(PackConfig, arguments, options=options)


def run(arguments: argparse.Namespace) -> int:
    """Pack many small files into one, verified before it gets its name.

    The suffix of OUT chooses the format:
      x.arrow, x.h5, x.tar (one shard), x.tars (a folder of shards), x.sqfs (an image that can be mounted),
      x.files (plain files), or a suffix of an installed package (x.lmdb of contrib/smallfiles-lmdb).
    A table has one row per file: a column of paths (relative to it, or to --root) and one of labels or
    captions. Usual names (filename, path; label, class, species, text) need no --field, class names are
    numbered in sorted order, and every other column becomes a value of each sample. A file more per sample is
    --field mask=masks/{id}.png, and --field age=years renames a value. Parquet files that hold the files
    themselves, as Hugging Face publishes them, are read with their folder. In a folder without images the
    files of the most frequent data suffix (.npy, .wav ...) are packed. A folder of COCO, YOLO or Pascal VOC
    is packed with its boxes, and images/ beside masks/ with the masks.
    Options of a format are -O NAME=VALUE:
      x.arrow  rows_per_batch=64, max_batch_bytes=67108864, layout=smallfiles (or juelich, for the loaders of
               the course in Jülich)
      x.h5     layout=blob (or vlen, for these loaders)
      x.tars   max_bytes=1073741824 and max_count=100000 per shard
      x.sqfs   compression=none (or gzip, zstd), level, block_bytes=131072, fragments=false
    OUT appears under its name only when it is complete and verified. A killed run never looks finished:
    the same command resumes it or starts over.
    A camera's EXIF orientation is kept, and training ignores it, as torchvision does. To turn these images
    without any loss, run jpegtran or exiftran before you pack them.
    --resize scales every image whose shorter side is longer than PIXELS down to that length: epochs become
    several times as fast, and detail is gone for good. Scaled images become JPEGs of 8 bits of red, green and
    blue, turned upright, without EXIF and without alpha, which training ignores too. --quality is lowered for
    a JPEG that would be larger than its source. Images that are small enough and need no turn keep their
    bytes. Images with a palette or with 1, 16 or 32 bits per pixel are refused where scaling would change
    their values. Masks beside images (PNG) get the nearest pixels and stay PNG with their palette. Boxes and
    segments are scaled with their image, and images with keypoints are refused. A folder of masks alone looks
    like photographs and is scaled like them. Shards and parts are cut by the sizes of the sources. With
    --pixels, the pixels of each scaled image become a .npy file, whose key ends in .npy. Such files have 2 to
    4 times the bytes, and no epoch decodes them again.

    Examples:
        smallfiles pack data train.arrow
        smallfiles pack labels.csv train.arrow --field image=filename --field label=species
        smallfiles pack labels.csv train.arrow --field mask=masks/{id}.png --field score=label
        smallfiles pack images train.arrow --labels labels.csv
        smallfiles pack data.json train.h5 --verify full
        smallfiles pack data.json train.tars --shuffle 0 --dry-run
        smallfiles pack data.json train.tars --part 3/8   # then, once: --merge
        smallfiles pack data.json train.arrow -O rows_per_batch=64
        smallfiles pack data.json small.arrow --resize 256
    """
    from smallfiles.pack import refuse_finished

    config = config_of(arguments)  # what makes no sense, or is done, is refused before a long walk
    if not arguments.dry_run:
        refuse_finished(arguments.out, config)
    source = load_source(arguments.dir, arguments)
    return _dry_run(arguments, source, config) if arguments.dry_run else _pack(arguments, source, config)


def _pack(arguments: argparse.Namespace, source: Source, config: PackConfig) -> int:
    from smallfiles.pack import pack

    _warn(source)
    for line in _striping(arguments.out, source):
        say(line)
    done = pack(source, arguments.out, config)
    lines = [*_lines(done)]
    if config.part is None:
        lines += [*_order(arguments, source, config), look_at(arguments.out, config.format)]
    return report(arguments, done.as_json(), *lines)


def _lines(done: PackReport) -> Iterator[str]:
    if done.reused:
        yield f"{done.path} is there already, packed from the same manifest with the same options"
        return
    rate = done.samples / max(done.seconds, 1e-9)
    yield (
        f"packed {plural(done.samples, 'sample')} ({bytes_text(done.payload_bytes)}) into {done.path} "
        f"in {in_seconds(done.seconds)}, {rate:,.0f} samples/s"
    )
    verified = (
        f"{plural(done.verified, 'sample')} read back and compared" if done.verified else "not read back"
    )
    yield f"{plural(done.files, 'file')}, {bytes_text(done.file_bytes)}; {verified}"
    if done.resize is not None:
        yield done.resize.sentence()
    if done.exif_rotated:
        as_they_are = (
            "packed as they are, and training sees them unturned, as with torchvision; exiftran turns them"
        )
        turned = as_they_are if done.resize is None else "turned upright"
        yield f"{plural(done.exif_rotated, 'image')} that EXIF says to turn: {turned}"
    if done.undecoded:
        yield f"{plural(done.undecoded, 'sample')} not decoded: --check decode knows images and .npy"
    if done.resumed:
        yield f"{plural(done.resumed, 'sample')} packed by an earlier run, and kept"
    if done.skipped:
        yield f"{plural(len(done.skipped), 'sample')} left out; see {done.path}.faults.json"


def _order(arguments: argparse.Namespace, source: Source, config: PackConfig) -> Iterator[str]:
    """Yield a note if samples lie in the order of their classes, which readers of shards do not mix well."""
    sharded = arguments.out.name.endswith(".tars")
    if sharded and config.shuffle is None and source.manifest.in_class_order:
        yield (
            "its classes lie one after the other: our streams mix a few dozen of them; for more, and for "
            "webdataset, which reads shard after shard, pack with --shuffle SEED"
        )


def _warn(source: Source) -> None:
    """Say so if this is a login node and the work is heavy."""
    from smallfiles.machine import warn_on_login_node

    files = len(source.manifest) if hasattr(source.store, "root") else 0
    warn_on_login_node("packing", size_bytes=_bytes_of(source), files=files)


def _striping(out: Path, source: Source) -> Iterator[str]:
    """Yield a note on the striping to set on Lustre before one large file is written."""
    from smallfiles.machine import striping_note

    if out.suffix not in (".tars", ".files"):
        note = striping_note(out.absolute().parent, _bytes_of(source))
        yield from () if note is None else (f"note: {note}",)


def _bytes_of(source: Source) -> int:
    return 0 if source.manifest.sizes is None else int(source.manifest.sizes.sum())


def _dry_run(arguments: argparse.Namespace, source: Source, config: PackConfig) -> int:
    from smallfiles.pack import plan

    planned = plan(source, arguments.out, config)
    saved = planned.inodes_now - planned.inodes_then
    numbers = ("samples", "files", "inodes_now", "inodes_then", "free_bytes")
    totals = {"dry_run": True, "bytes": planned.payload_bytes, "seconds": 0.0, "inodes_saved": saved}
    record: dict[str, Any] = totals | {name: getattr(planned, name) for name in numbers}
    sentences = []
    if planned.resize is not None:
        record["resize"] = planned.resize.as_json()
        sentences = [planned.resize.sentence(planned=True)]
    what = f"{plural(planned.samples, 'sample')} ({bytes_text(planned.payload_bytes)})"
    return report(
        arguments,
        record,
        f"would pack {what} into {arguments.out}",
        f"{plural(planned.files, 'data file')}; {bytes_text(planned.free_bytes)} are free there",
        *sentences,
        *_order(arguments, source, config),
        *_striping(arguments.out, source),
        f"inodes: {planned.inodes_now:,} now, {planned.inodes_then:,} then, {saved:,} saved",
    )


def run_annotate(arguments: argparse.Namespace) -> int:
    """Add the columns of a table to a packed set, without writing any of it again.

    Writes OUT.NAME.fields.arrow beside OUT, whatever its format, and its digest. From then on these fields
    are read as if they had been packed; packing OUT again into another file packs them too. Rows are matched
    by key, file name or stem in any order: each sample needs exactly one, others are named and left out.
    The file is bound to the keys of the samples and their order, and refused beside any others. `verify`
    checks it too; `stage`, `push` and `pull` take it along. To undo it, delete it.

    Examples:
        smallfiles annotate train.arrow scores.csv --key filename
        smallfiles annotate train.tars people.parquet --key '{id}.jpg' --field age=years --name people
    """
    from smallfiles.pack import annotate

    done = annotate(
        *(arguments.out, arguments.table, arguments.key), fields=arguments.field, name=arguments.name
    )
    say_notes(done.notes)
    fields = ", ".join(f"{name} ({kind})" for name, kind in done.fields.items())
    where = f"{plural(done.samples, 'sample')} of {arguments.out}"
    return report(
        arguments,
        asdict(done) | {"seconds": round(done.seconds, 3)},
        f"added {fields} to {where} in {in_seconds(done.seconds)}",
        f"{done.path} ({bytes_text(done.file_bytes)})",
    )


def run_split(arguments: argparse.Namespace) -> int:
    """Divide a packed set into train, val, ... by a rule, without writing any of it again.

    Writes the field `split` into OUT.split.fields.arrow, as annotate does, so that all ranks, nodes and
    programs use one split: train OUT --split train, LoaderConfig(split="val"), or pack OUT val.arrow --split
    val. A hash of the key decides: each sample stays in its split when others are added and the same rule is
    given again. With --split-by all samples with one value of a field are in one split; the shares are then
    those of the values. With --stratify each value of a field, such as the label, is split separately. To
    undo it, delete the file.

    Examples:
        smallfiles split all.arrow --rule train=0.8,val=0.2
        smallfiles split all.arrow --rule train=0.8,val=0.1,test=0.1 --split-by patient
        smallfiles split all.arrow --rule train=0.8,val=0.2 --stratify label
    """
    from smallfiles.pack import split

    more = {name: getattr(arguments, name) for name in explicit_fields(Choice, arguments)}
    path, found = split(arguments.out, arguments.rule, **more)
    lines = [
        f"{name}: {plural(count, 'sample')} ({found.shares[name]:.1%}, the rule says {share:.1%})"
        + (f", {plural(found.groups[name], 'value')} of {more['split_by']}" if found.groups else "")
        for (name, share), count in zip(arguments.rule.items(), found.samples.values(), strict=True)
    ]
    if found.groups:
        total, field = sum(found.groups.values()) - found.in_several, more["split_by"]
        lines.append(f"of {plural(total, 'value')} of {field}, {found.in_several} lie in more than one split")
    for name, shares in found.classes.items():
        lines.append(f"{name}: " + ", ".join(f"{split} {share:.1%}" for split, share in shares.items()))
    facts = {"path": path, "rule": arguments.rule, **more, **asdict(found), "seconds": since(arguments)}
    return report(arguments, facts, *lines, f"{path}: the field split")
