"""A plain DataLoader comes out: Lightning and Accelerate take it as it is."""

import itertools

import loading_sets as sets
import pytest
import torch

from smallfiles.loading import BadSampleError, LoaderConfig, make_loader

MODES = [
    LoaderConfig(mode="main", batch=8),
    LoaderConfig(mode="threads", workers=2, batch=8),
    LoaderConfig(mode="processes", workers=2, batch=8),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return sets.write(sets.stub_samples(60), tmp_path_factory.mktemp("set") / "x.arrow")


@pytest.mark.parametrize("order", ["random", "stream"])
@pytest.mark.parametrize("config", MODES, ids=lambda config: config.mode)
def test_accelerate_gets_the_same_epochs(path, config, order):
    accelerate = pytest.importorskip("accelerate")
    config = LoaderConfig(**{**config.__dict__, "order": order})
    loader = make_loader(path, config, transform=sets.Stub())
    prepared = accelerate.Accelerator(cpu=True).prepare(make_loader(path, config, transform=sets.Stub()))
    assert len(prepared) == len(loader)
    for _ in range(2):
        ours = sets.digest(loader)
        if order == "stream" and config.mode == "threads":
            # Accelerate makes a loader of its own around the data set, which has no threads: it takes the
            # streams in turn.
            assert sorted(ours) == sorted(sets.digest(prepared))
        else:
            assert sets.digest(prepared) == ours


def test_accelerate_meets_a_corrupt_image_as_a_sentence(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    path = sets.write(sets.stub_samples(60, bad=(7,)), tmp_path / "x.arrow")
    for config in MODES:
        loader = accelerate.Accelerator(cpu=True).prepare(make_loader(path, config, transform=sets.Stub()))
        with pytest.raises(BadSampleError, match=r"d1/0007\.jpg"):
            list(loader)


@pytest.mark.parametrize("config", MODES, ids=lambda config: config.mode)
def test_accelerate_goes_on_where_a_loader_was_stopped(path, config):
    accelerate = pytest.importorskip("accelerate")
    stopped, again = (make_loader(path, config, transform=sets.Stub()) for _ in range(2))
    seen = sets.numbers(itertools.islice(stopped, 3))
    again.load_state_dict(stopped.state_dict())
    seen += [batch["index"].tolist() for batch in accelerate.Accelerator(cpu=True).prepare(again)]
    assert seen == sets.numbers(make_loader(path, config, transform=sets.Stub()))


def lightning_run(tmp_path, loader, **settings):
    """Indices of each batch that a Trainer saw."""
    lightning = pytest.importorskip("lightning")

    class Watching(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)
            self.seen = []

        def training_step(self, batch, number):
            self.seen.append(batch["index"].tolist())
            return self.layer(batch["image"].float().mean((2, 3))).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-6)

    model = Watching()
    trainer = lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=tmp_path,
        **settings,
    )
    trainer.fit(model, loader, ckpt_path=None)
    return model.seen


@pytest.mark.parametrize("config", MODES, ids=lambda config: config.mode)
def test_lightning_sees_every_sample_once_in_each_epoch(tmp_path, path, config):
    loader = make_loader(path, config, transform=sets.Stub())
    expected = [batch.tolist() for epoch in range(2) for batch in loader.plan.batches(epoch)]
    assert lightning_run(tmp_path, loader, max_epochs=2) == expected


@pytest.mark.parametrize("config", MODES, ids=lambda config: config.mode)
def test_lightning_goes_on_where_it_was_stopped(tmp_path, path, config):
    stopped, again = (make_loader(path, config, transform=sets.Stub()) for _ in range(2))
    seen = lightning_run(tmp_path, stopped, max_steps=3)
    assert len(seen) == 3
    again.load_state_dict({**stopped.state_dict(), "epoch": 0, "batch": 3})
    seen += lightning_run(tmp_path, again, max_epochs=1)
    assert seen == [batch.tolist() for batch in again.plan.batches(0)]
