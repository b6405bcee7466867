"""Exercise 12: each wrong cause and each cure that only hides a symptom gets its own diagnosis."""

import pytest
import torch
from telling import judged

from exercises.checks import ex12_when_it_breaks as ex12


def but(right, **changed):
    return {**right, **changed}


WRONG_CAUSES = [
    (but(ex12.RIGHT, A="shared memory is full"), "the process may use 1"),
    (but(ex12.RIGHT, B="a copy that was interrupted"), "does not reach the internet"),
    (but(ex12.RIGHT, C="memory limit of the job"), "this is signal 7"),
    (but(ex12.RIGHT, D="shared position of an open file"), "only its crop repeats"),
    (but(ex12.RIGHT, D="same order in every epoch"), "it is the crops that repeat"),
    (but(ex12.RIGHT, E="limit of inodes"), "another error (28)"),
    (but(ex12.RIGHT, F="a copy that was interrupted"), "the number of images is right"),
    (but(ex12.RIGHT, F="shared position of an open file"), "without workers too"),
    (but(ex12.RIGHT, C="bus error"), "the words of the list"),
    (but(ex12.RIGHT, E=None), "the answer to job E is missing"),
    (list(ex12.RIGHT.values()), "write one text per job"),
]
TestCauses = judged(ex12.causes, WRONG_CAUSES, [ex12.RIGHT, but(ex12.RIGHT, more="left alone")])

A = 'srun --cpus-per-task="$SLURM_CPUS_PER_TASK" python train.py --workers 8'
B = 'TORCH_HOME="$SCRATCH/torch" srun python finetune.py --model resnet50'
C = "srun --cpus-per-task=16 python train.py --workers 16 --prefetch 2 --batch 256"
LINES = {"A": A, "B": B, "C": C}
WRONG_LINES = [
    (but(LINES, A=ex12.ORIGINAL["A"]), "srun does not take over the script's CPUs"),
    (but(LINES, A=A.replace('"', "'")), "in single quotes"),
    (but(LINES, A="srun python train.py --workers 1"), "one worker fits one CPU"),
    (but(LINES, A="srun python train.py --workers 8 --cpus-per-task=8"), "srun does not take over"),
    (but(LINES, A=A.replace("workers 8", "workers 16")), "the 8 workers were right"),
    (but(LINES, A="python train.py --workers 8"), "start the program with srun"),
    (but(LINES, A="srun -c8 sleep 1 --workers 8"), "leave the program"),
    (but(LINES, B=B.replace("finetune.py", "other.py")), "leave the program"),
    (but(LINES, B=B.replace("resnet50", "resnet18")), "leave the arguments"),
    (but(LINES, B='srun --export=TORCH_HOME="$SCRATCH/torch" python finetune.py'), "without ALL"),
    (but(LINES, B=ex12.ORIGINAL["B"]), "the file is there already"),
    (but(LINES, B="srun python finetune.py --model resnet50 TORCH_HOME=$SCRATCH/torch"), "before srun"),
    (but(LINES, B=f"false wget x; {ex12.ORIGINAL['B']}"), "needs a network"),
    (but(LINES, B=B.replace("/torch", "/torch/hub/checkpoints")), "the folder above"),
    (but(LINES, B=B.replace('"', "'")), "in single quotes"),
    (but(LINES, C=ex12.ORIGINAL["C"]), "must fit into /dev/shm"),
    (but(LINES, C=f"{ex12.ORIGINAL['C'].replace('srun', 'srun --mem=256G')}"), "keeps its own size"),
    (but(LINES, C=C.replace("prefetch 2", "prefetch 4")), "must fit into /dev/shm"),
    (but(LINES, C=C.replace("batch 256", "batch 32")), "another training"),
    (but(LINES, C=C.replace("workers 16", "workers 2")), "starve the GPU"),
    (but(LINES, C=C.replace("--prefetch 2", "")), "keep the option --prefetch"),
]
RIGHT_LINES = [
    LINES,
    but(LINES, A="srun -c8 python train.py --workers=8", B=f"export {B.replace(' srun', '; srun')}"),
    but(LINES, A="SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK srun python train.py --workers 8"),
    but(LINES, B='srun --export=ALL,TORCH_HOME="$SCRATCH/torch" python finetune.py --model resnet50'),
    but(LINES, B='srun env TORCH_HOME="$SCRATCH/torch" python finetune.py --model=resnet50'),
    but(LINES, C=C.replace("16 --prefetch 2", "8 --prefetch=4")),
]
TestLines = judged(ex12.lines, WRONG_LINES, RIGHT_LINES)

D = "random = np.random.default_rng(torch.randint(1 << 62, ()).item())"
E = "kept.append(batch.clone())"
F = 'name = stem.replace("%", "%25").replace(".", "%2E") + ".jpg"'
PROGRAMS = {"D": D, "E": E, "F": F}
WRONG_PROGRAMS = [
    (but(PROGRAMS, D=ex12.ORIGINAL["D"]), "copies of one generator"),
    (but(PROGRAMS, D="random = np.random.default_rng(0)"), "copies of one generator"),
    (but(PROGRAMS, D="random = np.random.default_rng(index)"), "the epochs repeat"),
    (but(PROGRAMS, D="random = np.random.default_rng(torch.initial_seed())"), "each sample the same"),
    (
        but(PROGRAMS, D="random = np.random.default_rng(torch.initial_seed() + index)"),
        "with a sum of seed and index",
    ),
    (but(PROGRAMS, D="random = np.random.default_rng([torch.initial_seed(), index])"), "persistent_workers"),
    (but(PROGRAMS, D="random = np.random"), "must be a generator"),
    (but(PROGRAMS, D="self.random = np.random.default_rng()"), "must be a generator"),
    (but(PROGRAMS, E=ex12.ORIGINAL["E"]), "views of the same shared memory"),
    (but(PROGRAMS, E="kept.append(batch.detach())"), "views of the same shared memory"),
    (but(PROGRAMS, E="kept.append(batch.numpy())"), "views of the same shared memory"),
    (but(PROGRAMS, E="del batch"), "append a copy of it"),
    (but(PROGRAMS, E="kept.append(batch.clone()"), "exception"),
    (but(PROGRAMS, F=ex12.ORIGINAL["F"]), "before the first dot for the key"),
    (but(PROGRAMS, F='name = stem.split(".")[0] + ".jpg"'), "two images now have one name"),
    (but(PROGRAMS, F='name = stem.replace(".", "_") + ".jpg"'), "two images now have one name"),
    (but(PROGRAMS, F='name = stem.replace(".", "")+ ".jpg"'), "two images now have one name"),
    (but(PROGRAMS, F='name = stem.replace(".", "%2E") + ".jpg"'), "write % as %25 first"),
    (but(PROGRAMS, F='name = stem.replace(".", "%2E").replace("%", "%25") + ".jpg"'), "write % as %25 first"),
    (but(PROGRAMS, F='name = stem.replace(".", "%2E")'), "the suffix is the field"),
]
RIGHT_PROGRAMS = [
    PROGRAMS,
    but(PROGRAMS, D="random = np.random.default_rng()", E="kept.append(batch.numpy().copy())"),
    but(PROGRAMS, D="random = vars(self).setdefault('own', np.random.default_rng(torch.initial_seed()))"),
    but(PROGRAMS, E="kept += [torch.clone(batch)]", F="name = stem.encode().hex() + '.jpg'"),
]
TestPrograms = judged(ex12.programs, WRONG_PROGRAMS, RIGHT_PROGRAMS)


@pytest.mark.parametrize("check", [ex12.causes, ex12.lines, ex12.programs])
@pytest.mark.parametrize("answers", [{}, dict.fromkeys("ABCDEF"), ex12.ORIGINAL])
def test_marked_lines_that_nobody_touched_are_not_started(check, answers):
    assert check(answers).state == "not started"


def test_weights_where_torch_home_says_are_found_without_a_network(tmp_path, monkeypatch):
    """Or the cure of job B would cure nothing."""
    folder = tmp_path / "torch" / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    torch.save({"weight": torch.ones(1)}, folder / "resnet50.pth")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    found = torch.hub.load_state_dict_from_url("https://nowhere.invalid/resnet50.pth")
    assert found["weight"].item() == 1
