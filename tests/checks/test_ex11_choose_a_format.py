"""Parts, trainings and choices: each known wrong answer gets its own diagnosis, every right way passes."""

import pytest
from telling import assert_told, judged, known_mistakes

from exercises.checks import ex11_choose_a_format as ex11
from smallfiles.scaling import WAYS, simulate

RIGHT = {"microscopy": ("staged", 0.11), "ImageNet-21k": ("shards", 2.9), "hard negatives": ("packed", 6.26)}


def pencil(work, storage, way, nodes):
    """The solution of the first task, as one writes it."""
    spread = storage.stripes if way.striped else storage.targets
    read_s = work.sample_bytes / storage.target_bytes_s
    return {
        "metadata": work.samples * way.operations / storage.metadata_ops_s,
        "targets": work.samples * (read_s + way.requests * storage.request_s) / spread,
        "network": work.samples * work.sample_bytes / (nodes * storage.node_bytes_s),
        "GPUs": work.samples / (nodes * work.gpus * work.batch) * work.step_s,
    }


def but(name):
    """From a mistake in one part to an answer that makes it."""
    return lambda wrong: lambda *case: {**pencil(*case), name: wrong(*case)}


def misread(work, storage, way, nodes):
    return pencil(work, storage, way, nodes)["network"] * (8 if nodes == 1 else nodes)


WRONG_PARTS = [(lambda *case: {"all": 1.0}, "these names"), (but("network")(misread), "need not be yours")]
TestParts = judged(ex11.parts, WRONG_PARTS, [pencil])
TestMetadata, TestTargets, TestNetwork, TestGpus = (
    known_mistakes(ex11.parts, ex11.mistakes_of(name), ex11.CASES, but(name)) for name in ex11.NAMES
)


def training(work, storage, way, nodes, epochs):
    """The solution of the second task."""
    seconds, everything = pencil(work, storage, way, nodes), work.samples * work.sample_bytes
    if not way.staged:
        return epochs * max(seconds.values())
    at_once = storage.targets * storage.target_bytes_s
    return max(everything / storage.node_bytes_s, nodes * everything / at_once) + epochs * seconds["GPUs"]


WRONG_TRAININGS = [(lambda w, s, y, n, e: e * pencil(w, s, y, n)["GPUs"], "never waits")]
TestTraining = judged(ex11.training_s, WRONG_TRAININGS, [training])
TestKnownTrainings = known_mistakes(ex11.training_s, ex11.TRAINING_MISTAKES, ex11.TRAININGS)


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
