"""The training loop: one run from data to an evaluated embedder, written into a folder as it goes."""

import copy
import os
import platform
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import tuplet
from tuplet import data as room
from tuplet import models
from tuplet.data import Dataset
from tuplet.losses import RowLoss
from tuplet.models import Embedder
from tuplet.models.folder import read as read_embedder
from tuplet.progress import track
from tuplet.training.average import Average
from tuplet.training.examples import Examples, facts, make_examples
from tuplet.training.folder import Events, RunFolder
from tuplet.training.gradients import backward, random_state, set_random_state
from tuplet.training.objective import make_loss, make_objective, usual_normalize
from tuplet.training.optimizer import clip, make_optimizer, set_rate
from tuplet.training.processes import Team, team
from tuplet.training.resolve import Unsaid, plain, resolve
from tuplet.training.sampler import class_share, make_sampler, usual_sampler
from tuplet.training.settings import Settings
from tuplet.training.testing import everything, recalls, vectors_of


@dataclass(frozen=True)
class Run:
    """A finished run: the best embedder, its metrics on the test split, and the folder that holds everything."""

    embedder: Embedder
    metrics: dict[str, Any]
    folder: Path


def train(
    data: str | os.PathLike[str] | Dataset,
    out: str | os.PathLike[str],
    *,
    recipe: str | None = None,
    loss: str | RowLoss | None = None,
    model: str | Embedder = Unsaid("resnet50"),
    steps: int | None = None,
    seed: int = 0,
    resume: bool = True,
    **overrides: Any,
) -> Run:
    """Train an embedder and keep everything about the run in the folder `out`."""
    source = data if isinstance(data, Dataset) else room.open(data)
    said = {"loss": loss, "model": model, "steps": steps, "seed": seed}
    settings = resolve(recipe, {**{k: v for k, v in said.items() if v is not None}, **overrides}, source)
    about = {
        "tuplet": tuplet.__version__,
        "data": repr(data) if isinstance(data, Dataset) else str(data),
        "recipe": recipe,
        "settings": plain(settings),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    with team(settings.device) as together:
        # The caller's random numbers are left as they were.
        with torch.random.fork_rng([together.device] if together.device.type == "cuda" else []):
            return _run(source, RunFolder(out), settings, about, resume, together)


def _run(data: Dataset, folder: RunFolder, settings: Settings, about: dict[str, Any], resume: bool, team: Team) -> Run:
    device = team.device
    torch.manual_seed(settings.seed)
    embedder = make_embedder(settings, data).to(device)
    examples = make_examples(data, settings, embedder, device)
    trained = examples.train
    probe = make_loss(settings.loss, settings.loss_options, 1, 1)
    sampler_name = settings.sampler or usual_sampler(probe)

    def embed(which: list[int]) -> torch.Tensor:
        return examples.embed(embedder, trained.store, which)

    sampler = make_sampler(sampler_name, settings, trained.data, embed)
    objective = make_objective(settings, embedder, len(trained.data.classes), class_share(sampler_name, settings))
    objective.to(device)
    optimizer = make_optimizer(settings, embedder, objective)
    scaler = torch.amp.GradScaler(device.type, enabled=settings.precision == "float16")
    average = Average(embedder, settings.average) if settings.average else None
    kept = embedder if average is None else average.embedder
    stateful: dict[str, Any] = {"embedder": embedder, "objective": objective, "optimizer": optimizer, "scaler": scaler}
    if average is not None:
        stateful["average"] = average.embedder
    torch.manual_seed(settings.seed + team.rank)
    progress = Progress()

    if not resume and team.leads:
        folder.clear()
    identity = {"settings": about["settings"], "data": facts(data)}
    state = team.from_leader(folder.read_checkpoint() if team.leads and resume else None)
    if state is not None:
        check_identity(state["identity"], identity, folder.path)
        for name, part in stateful.items():
            part.load_state_dict(state[name])
        sampler.load_state_dict(state["sampler"])
        set_random_state(state["random"][team.rank], device)
        progress = Progress(**state["progress"])
    if team.leads:
        folder.write_json("run.json", about)
    events = Events(folder.path / "events.jsonl", progress.events) if team.leads else None
    network = team.parallel(embedder)
    embedder.train()
    stream = _forever(trained.store, sampler, device)
    amp = torch.autocast(device.type, getattr(torch, settings.precision), enabled=settings.precision != "float32")
    started = time.perf_counter() - progress.seconds

    def checkpoint() -> None:
        random = team.of_all(random_state(device))
        if team.leads and events is not None:
            progress.events = events.sync()
            epoch, batch = divmod(progress.step, len(sampler))
            where = {**sampler.state_dict(), "epoch": epoch, "batch": batch}
            parts = {name: part.state_dict() for name, part in stateful.items()}
            now = {"sampler": where, "random": random, "progress": asdict(progress), "identity": identity}
            folder.write_checkpoint({**parts, **now})

    for step in track(range(progress.step, settings.steps), "training"):
        batch = next(stream)
        rate = set_rate(optimizer, settings, step)
        inputs = examples.inputs(batch, step)

        def forward(x: torch.Tensor) -> torch.Tensor:
            with amp:
                return network(x)

        value, embeddings = backward(
            forward,
            inputs,
            lambda v: objective(embedder.split(v), batch.labels, step, team.many),
            scaler.scale,
            settings.piece_size,
            network.no_sync if team.many else nullcontext,
        )
        loss = value.item()
        scaler.unscale_(optimizer)
        clip(settings, optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        objective.remember(embedder.split(embeddings), batch.labels, team.many)
        if average is not None:
            average.update(step)
        progress.step = step + 1
        progress.recent.append(loss)
        progress.seconds = time.perf_counter() - started
        last = progress.step == settings.steps
        if progress.step % settings.log_every == 0 or last:
            if events is not None:
                speed = settings.batch_size * progress.step / progress.seconds
                mean = sum(progress.recent) / len(progress.recent)
                events.write(
                    "train",
                    step=progress.step,
                    loss=mean,
                    rate=rate,
                    examples_per_second=speed,
                    seconds=progress.seconds,
                )
            progress.recent = []
        if progress.step % settings.evaluate_every == 0 or last:
            with amp:
                vectors = vectors_of(kept, examples, examples.validation, team)
            found = team.from_leader(recalls(vectors, examples.validation.data) if team.leads else {})
            if events is not None:
                events.write("evaluation", step=progress.step, **found)
            better = found["recall_at_1"] > progress.best
            progress.stale = 0 if better else progress.stale + 1
            if better:
                progress.best, progress.best_step = found["recall_at_1"], progress.step
                if team.leads:
                    folder.save_embedder("best", kept)
            last = last or (settings.patience is not None and progress.stale >= settings.patience)
            if team.leads:
                folder.save_embedder("last", kept)
        if last or progress.step % (settings.checkpoint_every or settings.evaluate_every) == 0:
            checkpoint()
        if last:
            break
    return _finish(embedder, examples, folder, settings, progress, events, team)


def _finish(
    embedder: Embedder,
    examples: Examples,
    folder: RunFolder,
    settings: Settings,
    progress: "Progress",
    events: Events | None,
    team: Team,
) -> Run:
    embedder.eval()
    if team.leads:
        embedder.load_state_dict(read_embedder(folder.path / "best")[1])
    team.align(embedder)
    test = examples.test
    vectors = vectors_of(embedder, examples, test, team).float().cpu()
    metrics: dict[str, Any] = {}
    if team.leads:
        metrics = {
            **everything(vectors, test.data, settings.seed),
            "step": progress.best_step,
            "split": "test",
            "chosen_on": "validation" if settings.validation else "test",
        }
        folder.write_tensors(
            "vectors.safetensors", {"embeddings": vectors, "labels": test.data.labels, "indices": test.indices}
        )
        if events is not None:
            events.write(
                "end",
                step=progress.step,
                best_step=progress.best_step,
                recall_at_1=metrics["recall_at_1"],
                seconds=progress.seconds,
            )
            events.sync()
        folder.write_json("evaluation.json", metrics)
    return Run(embedder.cpu(), team.from_leader(metrics), folder.path)


@dataclass
class Progress:
    step: int = 0
    best: float = -1.0
    best_step: int = 0
    stale: int = 0
    seconds: float = 0.0
    recent: list[float] = field(default_factory=list)
    events: int = 0


def _forever(store: room.Store, sampler: Any, device: torch.device) -> Iterator[room.Batch]:
    while True:
        yield from room.batches(store, sampler, device)


def make_embedder(settings: Settings, data: Dataset) -> Embedder:
    if isinstance(settings.model, Embedder):
        return copy.deepcopy(settings.model)
    options = dict(settings.model_options)
    if data.features is not None and settings.model == "mlp":
        options.setdefault("features", data.features.shape[1])
    chosen = {"size": settings.size, "resize": settings.resize, "how": settings.fit}
    chosen = {k: v for k, v in chosen.items() if v is not None}
    normalize = settings.normalize
    if normalize is None:
        normalize = usual_normalize(make_loss(settings.loss, settings.loss_options, 1, 1))
    embedder = models.create(
        settings.model,
        dim=settings.dim,
        levels=settings.levels,
        pooling=settings.pooling,
        normalize=normalize,
        weights=settings.weights,
        preprocessing=chosen or None,
        **options,
    )
    if settings.frozen_batchnorm:
        embedder.freeze_batchnorm(affine=settings.frozen_batchnorm is True)
    return embedder


def check_identity(then: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    if then != now:
        raise ValueError(f"{path} holds a run with other settings; choose another folder or resume=False")
