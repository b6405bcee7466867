"""Training programs of others have the same losses with `PackedFolder` as with the class that they use.

Each function below makes the calls of a public program, in miniature: pytorch/examples (`imagenet/main.py`,
`dcgan/main.py`), torchvision's references, timm's `train.py`, Lightning, Accelerate, and the `Trainer` and
the example of Transformers. `docs/recipes.md` has the lines to change, and `results/programs.md` the runs of
the originals.
"""

import pickle
import random
import tempfile

import numpy as np
import pytest
from PIL import Image

from smallfiles import PackedFolder
from smallfiles.cli import main

torch = pytest.importorskip("torch", reason="torch is not installed")
torchvision = pytest.importorskip("torchvision", reason="torchvision is not installed")

from torch.nn import functional  # noqa: E402
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, default_collate  # noqa: E402
from torchvision import transforms  # noqa: E402
from torchvision.datasets import ImageFolder, VOCSegmentation  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

TRAIN = [transforms.RandomResizedCrop(16), transforms.RandomHorizontalFlip(), transforms.ToTensor()]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Pictures in folders of classes, a tree as Pascal VOC's with masks, and packed files of both."""
    place = tmp_path_factory.mktemp("sets")
    rng = np.random.default_rng(0)
    voc = place / "VOCdevkit/VOC2012"
    (voc / "ImageSets/Segmentation").mkdir(parents=True)
    rows = ["image,mask"]
    for number in range(24):
        noise = Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8))
        for folder in (place / "train" / f"class{number % 3}", voc / "JPEGImages", voc / "SegmentationClass"):
            folder.mkdir(parents=True, exist_ok=True)
        noise.save(place / f"train/class{number % 3}/{number:02}.jpg")
        noise.save(voc / f"JPEGImages/{number:02}.jpg")
        mask = Image.fromarray(rng.integers(0, 3, (24, 32), np.uint8)).convert("P")
        mask.save(voc / f"SegmentationClass/{number:02}.png")
        rows.append(f"JPEGImages/{number:02}.jpg,SegmentationClass/{number:02}.png")
    names = "\n".join(f"{number:02}" for number in range(24))
    (voc / "ImageSets/Segmentation/train.txt").write_text(names)
    (place / "voc.csv").write_text("\n".join(rows))
    words = ["--root", str(voc), "--field", "image=image", "--field", "mask=mask"]
    assert main(["pack", str(place / "voc.csv"), str(place / "voc.arrow"), *words]) == 0
    assert main(["pack", str(place / "train"), str(place / "train.arrow")]) == 0
    return place


def seed():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def network(outputs=3):
    return torch.nn.Sequential(
        torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(48, outputs)
    )


def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for images, labels in loader:
        loss = functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def imagenet_main(data):
    data.transform = transforms.Compose(TRAIN)
    sampler = torch.utils.data.distributed.DistributedSampler(data, num_replicas=2, rank=1)
    model, losses = network(len(data.classes)), []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        losses += train(model, DataLoader(data, 4, num_workers=2, sampler=sampler, persistent_workers=False))
    return losses


def dcgan_main(data):
    data.transform = transforms.Compose(
        [transforms.Resize(16), transforms.CenterCrop(16), transforms.ToTensor()]
    )
    return [batch[0].square().mean().item() for batch in DataLoader(data, 8, shuffle=True, num_workers=1)]


def torchvision_classification(data):
    data.transform = transforms.Compose(TRAIN)
    data = pickle.loads(pickle.dumps((data, "train")))[0]  # --cache-dataset
    mix = v2.RandomChoice([v2.MixUp(num_classes=3), v2.CutMix(num_classes=3)])

    def collate(batch):
        return mix(*default_collate(batch))

    losses = train(
        network(len(data.classes)), DataLoader(data, 4, sampler=RandomSampler(data), collate_fn=collate)
    )
    return losses + train(network(), DataLoader(data, 4, sampler=SequentialSampler(data)))


def timm_train(data):
    timm = pytest.importorskip("timm.data", reason="timm is not installed")
    mixup = timm.Mixup(mixup_alpha=0.2, num_classes=3)
    options = {"input_size": (3, 16, 16), "batch_size": 4, "num_workers": 1, "use_prefetcher": False}
    loader = timm.create_loader(data, is_training=True, device=torch.device("cpu"), re_prob=0.5, **options)
    model, losses = network(len(data.class_to_idx)), []
    for images, labels in loader:
        images, labels = mixup(images, labels)
        losses.append(functional.cross_entropy(model(images), labels).item())
    timm.create_loader(data, is_training=False, device=torch.device("cpu"), **options)
    return losses + [images.mean().item() for images, _ in loader]


def lightning_imagenet(data):
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")
    data.transform = transforms.Compose(TRAIN)
    lightning.seed_everything(1, workers=True, verbose=False)

    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.losses = network(len(data.classes)), []

        def training_step(self, batch, _):
            loss = functional.cross_entropy(self.model(batch[0]), batch[1])
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

        def train_dataloader(self):
            return DataLoader(data, 4, shuffle=True, num_workers=1)

    model = Classifier()
    quiet = dict.fromkeys(
        ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False
    )
    lightning.Trainer(accelerator="cpu", max_epochs=2, **quiet).fit(model)
    return model.losses


def accelerate_example(data):
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    accelerate.utils.set_seed(1)
    data.transform = transforms.Compose(TRAIN)
    accelerator = accelerate.Accelerator(cpu=True)
    model = network(len(data.classes))
    loader = DataLoader(data, shuffle=True, batch_size=4, num_workers=1)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), loader)
    losses = []
    for images, labels in loader:
        loss = functional.cross_entropy(model(images), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.gather_for_metrics(loss.detach()).item())
    return losses


def transformers_trainer(data):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    data.transform = transforms.Compose(TRAIN)
    transformers.set_seed(1)
    sizes = {"hidden_sizes": [8] * 4, "depths": [1] * 4, "embedding_size": 8}
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=3, **sizes))

    def collate(batch):
        images, labels = default_collate(batch)
        return {"pixel_values": images, "labels": labels}

    quiet = {"report_to": "none", "save_strategy": "no", "use_cpu": True, "disable_tqdm": True}
    arguments = transformers.TrainingArguments(
        tempfile.gettempdir(), per_device_train_batch_size=4, num_train_epochs=1, logging_steps=1, **quiet
    )
    trainer = transformers.Trainer(
        model, arguments, data_collator=collate, train_dataset=data, eval_dataset=data
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return [*losses, trainer.evaluate()["eval_loss"]]


def transformers_example(data):
    """As `run_image_classification.py`: its transforms are set on a data set of Hugging Face."""
    view = transforms.Compose(TRAIN)

    def transform(rows):
        return {**rows, "pixels": [view(image.convert("RGB")) for image in rows["image"]]}

    data.set_transform(transform)

    def collate(rows):
        return torch.stack([row["pixels"] for row in rows]), torch.tensor([row["label"] for row in rows])

    loader = DataLoader(data, 4, sampler=RandomSampler(data), num_workers=1, collate_fn=collate)
    return train(network(len(data.features["label"].names)), loader)


def test_the_example_of_transformers_has_the_same_losses(place, tmp_path):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")

    def load(kind, files):
        return datasets.load_dataset(kind, data_files=str(files), cache_dir=str(tmp_path), split="train")

    packed = load("arrow", place / "train.arrow").rename_columns({"data": "image"})
    packed = packed.cast_column("image", datasets.Image())
    assert_equal_losses(transformers_example, load("imagefolder", place / "train/**"), packed, count=6)


def assert_equal_losses(program, *sets, count=3):
    """A program has at least `count` losses, and the same with each data set."""
    losses = []
    for data in sets:
        seed()
        losses.append(program(data))
    assert losses[0] == losses[1] and len(losses[0]) >= count


PLAIN = [imagenet_main, dcgan_main, torchvision_classification]
LIBRARIES = [timm_train, lightning_imagenet, accelerate_example, transformers_trainer]


@pytest.mark.parametrize("program", PLAIN + LIBRARIES)
def test_a_program_for_image_folder_has_the_same_losses(place, program):
    sets = ImageFolder(str(place / "train")), PackedFolder(str(place / "train.arrow"))
    assert_equal_losses(program, *sets, count=7 if program is transformers_trainer else 3)


def segmentation(data):
    """As torchvision's references: joint transforms, and batches that are padded to their largest image."""
    model, losses = torch.nn.Conv2d(3, 3, 1), []

    def collate(batch):
        images, masks = zip(*batch, strict=True)
        return torch.stack(images), torch.stack(masks)

    loader = DataLoader(
        data, 2, sampler=RandomSampler(data), num_workers=1, collate_fn=collate, drop_last=True
    )
    for images, masks in loader:
        losses.append(functional.cross_entropy(model(images), masks, ignore_index=255).item())
    return losses


def both(image, mask):
    size = random.randint(12, 20)
    image, mask = (
        transforms.functional.resize(each, size, transforms.InterpolationMode.NEAREST)
        for each in (image, mask)
    )
    image, mask = (transforms.functional.center_crop(each, 12) for each in (image, mask))
    return transforms.functional.to_tensor(image), torch.as_tensor(np.array(mask), dtype=torch.int64)


def test_torchvisions_segmentation_has_the_same_losses(place):
    theirs = VOCSegmentation(str(place), image_set="train", transforms=both)
    ours = PackedFolder(place / "voc.arrow", fields="mask", transforms=both)
    assert_equal_losses(segmentation, theirs, ours, count=12)
