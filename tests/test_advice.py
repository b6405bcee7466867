"""What messages advise can be done: each flag that one names is a flag of the verbs that can say it."""

import ast
import re
from pathlib import Path

import pytest

from smallfiles.cli import flags_of_verbs, main

ROOT = Path(__file__).resolve().parents[1]
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
VERBS = flags_of_verbs()
BENCH = [verb for verb in VERBS if verb.startswith("bench ")]

OF_OTHERS = {
    *("--mem", "--cpus-per-task", "--pty", "--me", "--nproc-per-node"),  # Slurm, torchrun
    *("--shm-size", "--sparse", "--rm", "--no-build-isolation"),  # containers, tar, zstd, pip
}
SAID_BY = {
    "measure": BENCH,
    "measure/cache.py": ["bench read"],
    "measure/loading": ["bench load"],
    "measure/reading.py": ["bench read"],
    "advise.py": ["train"],  # it writes that command
    "doctor.py": ["pack"],  # it speaks of what an extra brings to that command
    "profile": ["profile"],
    "sources/annotations/boxes.py": ["pack"],
    "profile/audit.py": ["audit"],
    "profile/findings.py": ["audit"],
    "demo": ["demo"],
    "digests.py": ["verify"],
    "cli/output.py": list(VERBS),
    "formats/squashfs.py": ["manifest", "pack", "verify"],
    "formats/tar/__init__.py": ["manifest", "pack", "verify"],
    "formats/tar/headers.py": ["manifest", "pack", "verify"],
    "formats/tar/fields.py": ["manifest", "pack", "verify"],
    "images": ["pack"],
    "manifest": ["manifest", "pack", "verify"],
    "folders.py": ["manifest", "pack", "verify"],
    "fields.py": ["manifest", "pack", "verify", "annotate"],
    "links.py": ["manifest", "pack", "verify"],
    "loading/packed_folder.py": ["pack"],  # it speaks of that command
    "storage.py": ["pack", "verify", "train"],
    "formats": ["pack", "verify", "inspect"],
    "loading/plan.py": ["train", "epoch", "ring fill"],
    "machine/ranks.py": ["train", "epoch", "ring fill"],
    "loading/worker_errors.py": ["bench load", "train", "epoch"],
    "jobs": ["train", "epoch"],
    "pack": ["pack"],
    "pack/verifying.py": ["verify"],
    "pack/annotating.py": ["annotate"],
    "ring": ["ring fill"],
    "selection": ["inspect", "train", "epoch"],
    "sources": ["manifest", "pack", "verify"],
    "staging": ["stage"],
    "locks.py": ["stage"],
    "training": ["train"],
}
"""The verbs that reach a room, or a module of one; a message of a room is followed by all of them."""


def modules():
    """Name and path of all that verbs and `slurm/submit` reach."""
    for folder in (ROOT / "smallfiles", ROOT / "helpers" / "jobs"):
        home = folder if folder.name == "smallfiles" else folder.parent
        yield from ((path.relative_to(home).as_posix(), path) for path in sorted(folder.rglob("*.py")))


def messages():
    """Place, verbs and words of every string that names a flag and is neither a docstring nor a help."""
    for name, path in modules():
        if name.startswith(("cli/", "jobs/__main__")) and name != "cli/output.py":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        bodies = [node.body for node in ast.walk(tree) if isinstance(getattr(node, "body", None), list)]
        docstrings = {each.value for body in bodies for each in body if isinstance(each, ast.Expr)}
        for node in ast.walk(tree):
            words = node.value if isinstance(node, ast.Constant) and node not in docstrings else None
            if isinstance(words, str) and FLAG.search(words) and " " in words.strip():
                yield pytest.param(name, words, id=f"{name}:{node.lineno}")


def saying(name):
    """The verbs that can say what stands in a module; None where no table says so."""
    parts = name.split("/")
    places = ["/".join(parts[:n]) for n in range(len(parts), 0, -1)]
    return next((SAID_BY[place] for place in places if place in SAID_BY), None)


def in_other_words(flag, words):
    """Whether the sentence says itself whose flag it is: "pack with --on-error", "helpers bench … --save"."""
    return any(re.search(rf"\b{verb.split()[0]}\b", words) for verb in VERBS if flag in VERBS[verb])


@pytest.mark.parametrize(("name", "words"), list(messages()))
def test_every_flag_that_a_message_names_exists_where_it_is_said(name, words):
    for flag in set(FLAG.findall(words)) - OF_OTHERS:
        assert any(flag in flags for flags in VERBS.values()), f"no verb has {flag}"
        if in_other_words(flag, words):
            continue
        verbs = saying(name)
        assert verbs is not None, f"say in SAID_BY who can say what is in {name}"
        assert not [verb for verb in verbs if flag not in VERBS[verb]], f"not all of {verbs} have {flag}"


def sentences():
    """Place and words of what errors say, in the modules that verbs reach."""
    for name, path in modules():
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and {each.arg for each in call.keywords} >= {
                "expected",
                "next_step",
            }:
                for said in [*call.args, *(each.value for each in call.keywords)]:
                    for part in ast.walk(said):
                        if isinstance(part, ast.Constant) and isinstance(part.value, str):
                            yield f"{name}:{part.lineno}", part.value


def test_no_error_speaks_of_a_flag_as_python_does():
    """`split=val` is what a script writes; at the command line it is `--split val`."""
    dests = {flag.strip("-").replace("-", "_") for flags in VERBS.values() for flag in flags}
    spoken = re.compile(r"(?<![\w.-])([a-z_]+)=(?![={>])")
    found = [(place, words) for place, words in sentences() if set(spoken.findall(words)) & dests]
    assert not found


def test_a_flag_of_another_verb_is_said_to_be_one(tmp_path, capsys):
    for split in ("val", "test"):
        image = tmp_path / "set" / split / "cat" / "x.jpg"
        image.parent.mkdir(parents=True)
        image.write_bytes(b"\xff\xd8\xff\xd9")
    assert main(["bench", "pack", str(tmp_path / "set")]) == 1
    assert "(--split is a flag of: " in capsys.readouterr().err
    assert main(["manifest", str(tmp_path / "set"), "-o", str(tmp_path / "m.json")]) == 1
    told = capsys.readouterr().err
    assert "--split" in told and "is a flag of" not in told
