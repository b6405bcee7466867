"""`manifest`: list the samples of a data set with their targets."""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from smallfiles.cli.arguments import Verbs, add_run, add_source_flags
from smallfiles.cli.output import in_seconds, report, say
from smallfiles.errors import first_few
from smallfiles.options import from_args
from smallfiles.progress import bytes_text, say_notes

if TYPE_CHECKING:
    from smallfiles.sources import Source


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_run(verbs, "manifest", run)
    parser.add_argument(
        "dir",
        type=Path,
        metavar="DIR|TABLE",
        help="a folder, a tar file, a table, a packed output or a manifest",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="M.json",
        help="output file (default: the name of the source with .json, in this folder)",
    )
    parser.add_argument("--flat", action="store_true", help="write the flat form {path: label}")
    add_source_flags(parser)


def run(arguments: argparse.Namespace) -> int:
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

    began = perf_counter()
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
    facts = _facts(source, path, perf_counter() - began)
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
        "path": str(path),
        "samples": len(manifest),
        "bytes": None if sizes is None else int(sizes.sum()),
        "seconds": round(seconds, 3),
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
