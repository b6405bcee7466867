"""Parts, trainings and choices: each known wrong answer gets its own diagnosis, every right way passes."""

import functools
from dataclasses import replace

import pytest
from telling import assert_told, assert_told_apart, judged

from exercises.checks import ex11_choose_a_format as ex11
from smallfiles.scaling import WAYS, simulate

RIGHT = {"microscopy": ("staged", 0.11), "ImageNet-21k": ("shards", 2.9), "hard negatives": ("packed", 6.26)}


def pencil(work, storage, way, nodes, *, part="", change=None, seeks=1, requests=None):
    """The solution, with one part changed."""
    spread = storage.stripes if way.striped else storage.targets
    read_s = work.sample_bytes / storage.target_bytes_s
    found = {
        "metadata": work.samples * way.operations / storage.metadata_ops_s,
        "targets": work.samples * (read_s + seeks * (requests or way.requests) * storage.request_s) / spread,
        "network": work.samples * work.sample_bytes / (nodes * storage.node_bytes_s),
        "GPUs": work.samples / (nodes * work.gpus * work.batch) * work.step_s,
    }
    if change:
        found[part] = change(found[part], work, storage, way, nodes)
    return found


def wrong(part, change):
    return lambda *case: pencil(*case, part=part, change=change)


WRONG_PARTS = [
    (wrong("metadata", lambda t, w, s, y, n: t / n), "all nodes share"),
    (wrong("metadata", lambda t, w, s, y, n: w.samples / s.metadata_ops_s), "way.operations"),
    (wrong("targets", lambda t, w, s, y, n: t / n), "all nodes share"),
    (functools.partial(pencil, seeks=0), "a seek"),
    (functools.partial(pencil, requests=1), "less than one"),
    (wrong("targets", lambda t, w, s, y, n: t * (s.stripes if y.striped else s.targets)), "by their number"),
    (wrong("targets", lambda t, w, s, y, n: t * (s.stripes / s.targets) ** y.striped), "storage.stripes"),
    (wrong("network", lambda t, w, s, y, n: t * n), "one node's network"),
    (wrong("network", lambda t, w, s, y, n: 8 * t), "not bits"),
    (wrong("GPUs", lambda t, w, s, y, n: t * n), "GPUs of one node"),
    (wrong("GPUs", lambda t, w, s, y, n: t * w.gpus), "work.gpus"),
    (wrong("GPUs", lambda t, w, s, y, n: t * w.batch), "work.batch"),
    (lambda *case: {"all": 1.0}, "these names"),
    (wrong("network", lambda t, w, s, y, n: t * (8 if n == 1 else n)), "need not be yours"),
]
TestParts = judged(ex11.parts, WRONG_PARTS, [pencil])


def training(
    work, storage, way, nodes, epochs, *, copies=1, of=None, epoch=None, combine=max, times=1.0, **more
):
    """The solution, with one thing changed."""
    seconds, everything = pencil(work, storage, way, nodes), work.samples * work.sample_bytes
    if not way.staged:
        return times * epochs * combine(seconds.values())
    at_once = storage.targets * storage.target_bytes_s
    copy = max(everything / storage.node_bytes_s, (of or nodes) * everything / at_once)
    if more.get("target_time"):
        with_seeks = pencil(work, storage, replace(way, requests=1), nodes)["targets"]
        copy = max(everything / storage.node_bytes_s, nodes * with_seeks)
    join = more.get("join", sum)
    return times * join((copies * copy, epochs * (combine(seconds.values()) if epoch else seconds["GPUs"])))


WRONG_TRAININGS = [
    (lambda *c: training(*c, combine=sum), "take the slowest"),
    (lambda w, s, y, n, e: training(w, s, y, n, 1), "this is one epoch"),
    (lambda w, s, y, n, e: e * pencil(w, s, y, n)["GPUs"], "never waits"),
    (lambda *c: training(*c, copies=20), "do not multiply"),
    (lambda *c: training(*c, of=1), "`nodes` times"),
    (lambda *c: training(*c, epoch=True), "only the GPUs"),
    (lambda *c: training(*c, target_time=True), "a copy reads long runs"),
    (lambda *c: training(*c, join=max), "comes before the first epoch"),
    (lambda *c: training(*c, times=1 / 3600), "these are hours"),
]
TestTraining = judged(ex11.training_s, WRONG_TRAININGS, [training])


def test_the_cases_tell_all_known_mistakes_apart():
    for name in ex11.NAMES:
        assert_told_apart(ex11.mistakes_of(name), ex11.CASES)
    assert_told_apart(ex11.TRAINING_MISTAKES, ex11.TRAININGS)


@pytest.mark.parametrize(
    ("project", "answer", "diagnosis"),
    [
        ("ImageNet-21k", ("staged", 3.3), "larger than what a node can keep"),
        ("hard negatives", ("shards", 6.26), "from start to end"),
        ("microscopy", ("shards", 0.165), "another way that is possible takes 0.111 h"),
        ("ImageNet-21k", ("shards", 10_400), "by 3,600"),
        ("ImageNet-21k", "shards", "and hours"),
    ],
)
def test_a_wrong_choice_gets_its_diagnosis(project, answer, diagnosis):
    assert_told(ex11.choice(RIGHT | {project: answer}), diagnosis)


def test_the_right_choices_pass_and_the_simulation_agrees_with_them():
    assert ex11.choice(RIGHT)
    for name, project in ex11.PROJECTS.items():
        case = project.work, project.storage
        found = {way: simulate(*case, WAYS[way], project.nodes) for way in ex11.hours_of(project)}
        total = {way: one.first_epoch_s + (project.epochs - 1) * one.epoch_s for way, one in found.items()}
        chosen = total[RIGHT[name][0]]
        assert chosen <= 1.05 * min(total.values()), (name, total)
