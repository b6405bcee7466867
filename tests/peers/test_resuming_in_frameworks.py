"""A training that was stopped goes on with the samples it has not seen, in Lightning and Accelerate."""

import numpy as np
import pytest
import torch

from smallfiles import formats
from smallfiles.loading import LoaderConfig, make_loader
from smallfiles.samples import Sample, Schema

COUNT, BATCH, STOP = 60, 8, 3
MODES = [
    LoaderConfig(mode="main", batch=BATCH),
    LoaderConfig(mode="threads", workers=2, batch=BATCH),
    LoaderConfig(mode="processes", workers=2, batch=BATCH),
]


class Grey:
    """A picture of one colour, made of the first byte."""

    shape = (4, 4, 3)
    dtype = np.dtype(np.uint8)

    def into(self, data, rng, out):
        out[...] = bytes(data)[0]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    out = tmp_path_factory.mktemp("set") / "x.arrow"
    samples = (Sample(f"{number}.jpg", bytes([number]) * 9, number % 3) for number in range(COUNT))
    schema = Schema(count=COUNT, total_bytes=9 * COUNT, largest_bytes=9)
    formats.get("arrow").write(samples, out, schema=schema, options=None, digest=False)
    return out


def loader_of(path, config):
    return make_loader(path, config, transform=Grey())


@pytest.mark.parametrize("config", MODES, ids=lambda config: config.mode)
def test_a_plain_data_loader_comes_out(path, config):
    assert isinstance(loader_of(path, config), torch.utils.data.DataLoader)


@pytest.mark.parametrize("config", MODES, ids=lambda config: config.mode)
def test_accelerate_goes_on_where_it_was_stopped(path, config):
    accelerate = pytest.importorskip("accelerate")
    stopped = loader_of(path, config)
    seen = []
    for number, batch in enumerate(stopped, 1):
        seen += batch["index"].tolist()
        if number == STOP:
            state = stopped.state_dict()
            break
    again = loader_of(path, config)
    again.load_state_dict(state)
    prepared = accelerate.Accelerator(cpu=True).prepare(again)
    for batch in prepared:
        seen += batch["index"].tolist()
    assert sorted(seen) == list(range(COUNT))
    whole = [index for batch in loader_of(path, config) for index in batch["index"].tolist()]
    assert seen == whole


@pytest.mark.parametrize("config", MODES, ids=lambda config: config.mode)
def test_lightning_goes_on_where_it_was_stopped(path, config, tmp_path):
    lightning = pytest.importorskip("lightning")

    class Watching(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(3, 1), []

        def training_step(self, batch, number):
            self.seen += batch["index"].tolist()
            assert (batch["image"][:, 0, 0, 0] == batch["index"]).all()
            return self.layer(batch["image"].float().mean((2, 3))).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-6)

    def run(loader, **limits):
        model = Watching()
        trainer = lightning.Trainer(
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            default_root_dir=tmp_path,
            **limits,
        )
        trainer.fit(model, loader)
        return model.seen

    stopped = loader_of(path, config)
    first = run(stopped, max_steps=STOP)
    assert len(first) == STOP * BATCH
    state = {**stopped.state_dict(), "epoch": 0, "batch": STOP}
    again = loader_of(path, config)
    again.load_state_dict(state)
    rest = run(again, max_epochs=1)
    assert sorted(first + rest) == list(range(COUNT))
