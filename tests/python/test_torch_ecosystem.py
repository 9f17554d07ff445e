"""Libraries that take a DataLoader keep penstock's: accelerate, Lightning and others.

CI installs the small libraries; for the others, `pip install` them to run these tests.
"""

from __future__ import annotations

import gc
import os
import re

import numpy as np
import pytest

import penstock

torch = pytest.importorskip("torch")

from torch_datasets import Numbers  # noqa: E402

pytestmark = pytest.mark.timeout(300)
OPERATORS = []  # of torchvision, defined here and kept
LARGE = "too large for every run: pip install it to run this"


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    """The libraries do not use the network, or write to the tests' folder."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.chdir(tmp_path)
    yield
    gc.collect()


def labels(loader):
    return [y.tolist() for _, y in loader]


# ---- accelerate


@pytest.fixture
def accelerate():
    accelerate = pytest.importorskip("accelerate")
    yield accelerate
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def loader_of(length=10, **options):
    threads = {"num_workers": 1, "use_multiprocessing": False}  # importing torch is slow
    options = {"batch_size": 4, "retries": 1, **threads, **options}
    return penstock.torch.DataLoader(Numbers(length), **options)


def test_accelerate_prepares_the_loader_itself(accelerate):
    with loader_of(shuffle=True, seed=5) as loader, loader_of(shuffle=True, seed=5) as same:
        prepared = accelerate.Accelerator(cpu=True).prepare(loader)
        assert prepared.base_dataloader is loader
        assert isinstance(prepared, penstock.torch.DataLoader)
        for _ in range(2):
            assert labels(prepared) == labels(same)
        assert loader.stats()["delivered"] == 6


def test_accelerate_knows_the_place_of_what_it_gave(accelerate):
    """accelerate takes a batch ahead, and reports the position before it."""
    with loader_of(shuffle=True) as loader:
        prepared = accelerate.Accelerator(cpu=True).prepare(loader)
        batches = iter(prepared)
        next(batches)
        state = prepared.state_dict()
        rest = labels(batches)
    with loader_of(shuffle=True) as other:
        again = accelerate.Accelerator(cpu=True).prepare(other)
        again.load_state_dict(state)
        assert labels(again) == rest


def test_accelerate_skips_first_batches_of_ours(accelerate):
    accelerator = accelerate.Accelerator(cpu=True)
    with loader_of() as loader:
        prepared = accelerator.prepare(loader)
        skipped = accelerator.skip_first_batches(prepared, 1)
        with skipped.base_dataloader as base:
            assert type(base) is penstock.torch.DataLoader
            assert base.retries == 1
            assert labels(skipped) == [[4, 5, 6, 7], [8, 9]]
        with accelerate.skip_first_batches(loader, 2) as rest:
            assert labels(rest) == [[8, 9]]
            assert type(rest) is penstock.torch.DataLoader


def test_accelerate_shards_ours(accelerate):
    from accelerate.data_loader import prepare_data_loader

    accelerate.Accelerator(cpu=True)
    seen = []
    for rank in range(2):
        with loader_of(16) as loader:
            made = prepare_data_loader(loader, num_processes=2, process_index=rank)
            with made.base_dataloader as base:
                assert type(base) is penstock.torch.DataLoader
                assert base.num_workers == base.retries == 1
                assert base.use_multiprocessing is False
                seen.append(labels(made))
    assert seen == [[[0, 1, 2, 3], [8, 9, 10, 11]], [[4, 5, 6, 7], [12, 13, 14, 15]]]


def test_accelerate_rebuilds_a_plain_loader_as_it_did(accelerate):
    plain = torch.utils.data.DataLoader(Numbers(10), batch_size=4)
    prepared = accelerate.Accelerator(cpu=True).prepare(plain)
    assert type(prepared.base_dataloader) is torch.utils.data.DataLoader
    assert len(labels(prepared)) == 3


# ---- Lightning


@pytest.fixture
def lightning():
    return pytest.importorskip("pytorch_lightning")


def module_of(lightning, loader=None):
    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(6, 1)
            self.seen = []

        def training_step(self, batch, _):
            x, y = batch
            self.seen.append(y.tolist())
            return self.layer(x.flatten(1)).mean()

        def predict_step(self, batch, _):
            return batch[1]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

        if loader is not None:

            def train_dataloader(self):
                return loader()

    return Module()


def trainer_of(lightning, **options):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    cpu = {"accelerator": "cpu", "devices": 1}
    return lightning.Trainer(**{**quiet, **cpu, "enable_checkpointing": False, **options})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("hook", [False, True])
def test_lightning_trains_on_the_loader(lightning, hook):
    with loader_of(shuffle=True, seed=5) as loader, loader_of(shuffle=True, seed=5) as same:
        module = module_of(lightning, (lambda: loader) if hook else None)
        trainer = trainer_of(lightning, max_epochs=2)
        trainer.fit(module, **({} if hook else {"train_dataloaders": loader}))
        assert trainer.train_dataloader is loader
        assert module.seen == labels(same) + labels(same)
        assert loader.stats()["delivered"] == 6


@pytest.mark.filterwarnings("ignore")
def test_lightning_predicts_with_a_loader_of_ours(lightning):
    """Lightning makes another loader, whose batch sampler records the indices."""
    with loader_of() as loader:
        trainer = trainer_of(lightning)
        predicted = trainer.predict(module_of(lightning), loader)
        used = trainer.predict_dataloaders
        assert type(used) is penstock.torch.DataLoader
        assert used.retries == 1
        used.close()
    assert [y.tolist() for y in predicted] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.filterwarnings("ignore")
def test_lightning_gives_every_rank_a_loader_of_ours(lightning):
    from pytorch_lightning.utilities.data import _update_dataloader
    from torch.utils.data.distributed import DistributedSampler

    seen = []
    for rank in range(2):
        with loader_of(8) as loader:
            sampler = DistributedSampler(loader.dataset, 2, rank, shuffle=False)
            with _update_dataloader(loader, sampler) as made:
                assert type(made) is penstock.torch.DataLoader
                assert made.retries == 1
                seen.append(labels(made))
    assert seen == [[[0, 2, 4, 6]], [[1, 3, 5, 7]]]


@pytest.mark.filterwarnings("ignore")
def test_lightning_saves_and_loads_the_place_in_mid_epoch(lightning, tmp_path):
    def run(**options):
        checkpoints = lightning.callbacks.ModelCheckpoint(
            tmp_path, "{step}", every_n_train_steps=2, save_top_k=-1
        )
        with loader_of(20, shuffle=True, seed=5) as loader:
            module = module_of(lightning)
            trainer = trainer_of(
                lightning, max_epochs=1, enable_checkpointing=True, callbacks=[checkpoints]
            )
            trainer.fit(module, loader, **options)
            return module.seen

    whole = run()
    assert len(whole) == 5
    assert run(ckpt_path=str(tmp_path / "step=2.ckpt"), weights_only=False) == whole[2:]


# ---- Hugging Face


@pytest.mark.filterwarnings("ignore")
def test_the_trainer_of_hugging_face_trains_on_the_loader(accelerate, tmp_path):
    transformers = pytest.importorskip("transformers", reason=LARGE)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)
            self.seen = []

        def forward(self, x, y):
            self.seen += [y.tolist()]
            return {"loss": self.layer(x.float()).mean()}

    class Pairs(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return {"x": torch.full((2,), float(index)), "y": index}

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self):
            return self.accelerator.prepare(loader)

    with penstock.torch.DataLoader(Pairs(), batch_size=4) as loader:
        options = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
        model = Model()
        arguments = transformers.TrainingArguments(
            str(tmp_path), num_train_epochs=2, logging_strategy="no", **options
        )
        Trainer(model, arguments).train()
        assert model.seen == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2
        assert loader.stats()["delivered"] == 4


@pytest.mark.parametrize("processes", [False, True])
def test_data_sets_of_hugging_face_are_fed(processes):
    datasets = pytest.importorskip("datasets", reason=LARGE)
    columns = {"x": [[float(i), 0.0] for i in range(10)], "y": list(range(10))}
    table = datasets.Dataset.from_dict(columns).with_format("torch")
    options = {"batch_size": 4, "num_workers": 1, "use_multiprocessing": processes}
    with penstock.torch.DataLoader(table, **options) as loader:
        batches = list(loader)
    expected = list(torch.utils.data.DataLoader(table, batch_size=4))
    assert [batch["y"].tolist() for batch in batches] == [b["y"].tolist() for b in expected]
    assert all(torch.equal(a["x"], b["x"]) for a, b in zip(batches, expected, strict=True))
    with penstock.Loader(table.with_format("numpy"), batch_size=5, workers=0) as feed:
        assert [batch["y"].tolist() for batch in feed] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_iterable_data_sets_of_hugging_face_are_shared_among_workers():
    datasets = pytest.importorskip("datasets", reason=LARGE)
    table = datasets.Dataset.from_dict({"y": list(range(12))})
    stream = table.to_iterable_dataset(num_shards=4)
    with penstock.torch.DataLoader(stream, batch_size=3, num_workers=2) as loader:
        seen = [y for batch in loader for y in batch["y"].tolist()]
    plain = torch.utils.data.DataLoader(stream, batch_size=3, num_workers=2)
    assert seen == [y for batch in plain for y in batch["y"].tolist()]
    assert sorted(seen) == list(range(12))


# ---- torchvision


@pytest.fixture
def torchvision():
    """PyPI's wheel is for torch with CUDA; otherwise operators are missing, which no test needs."""
    pytest.importorskip("PIL")
    for _ in range(8):
        try:
            return pytest.importorskip("torchvision", reason=LARGE)
        except RuntimeError as error:
            found = re.search(r"operator torchvision::(\w+) does not exist", str(error))
            if found is None:
                raise
            OPERATORS.append(torch.library.Library("torchvision", "FRAGMENT"))
            OPERATORS[-1].define(f"{found[1]}(Tensor dets) -> Tensor")
    raise AssertionError("operators without end")


@pytest.mark.parametrize("workers", [0, 2])
def test_data_sets_and_transforms_of_torchvision(torchvision, workers, tmp_path):
    from PIL import Image
    from torchvision.transforms import v2

    for kind in ("cat", "dog"):
        os.mkdir(tmp_path / kind)
        for i in range(4):
            pixels = np.full((8, 8, 3), 10 * i + (kind == "dog"), np.uint8)
            Image.fromarray(pixels).save(tmp_path / kind / f"{i}.png")
    steps = [v2.ToImage(), v2.Resize((4, 4)), v2.ToDtype(torch.float32, scale=True)]
    folder = torchvision.datasets.ImageFolder(tmp_path, v2.Compose(steps))
    threads = {"num_workers": workers, "use_multiprocessing": False}
    with penstock.torch.DataLoader(folder, batch_size=4, **threads) as loader:
        made = list(loader)
    expected = list(torch.utils.data.DataLoader(folder, batch_size=4))
    assert [y.tolist() for _, y in made] == [y.tolist() for _, y in expected]
    for (x, _), (wanted, _) in zip(made, expected, strict=True):
        assert type(x) is type(wanted)
        assert torch.equal(x, wanted)
