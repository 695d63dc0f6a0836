"""Measure the speed of backbones: images a second of embedding and of a training step, beside timm and onnxruntime.

    python benchmarks/backbones.py --device cuda            ViT-S, ViT-B and ResNet-50 in bf16, beside timm
    python benchmarks/backbones.py --device cpu             the same in float32, beside onnxruntime

Weights are random: speed does not depend on them. On a GPU each network runs eager and compiled; timm's model of the
same name runs its own forward pass, with the same types, sizes and layout. A training step embeds a batch,
back-propagates the multi-similarity loss and updates the weights with AdamW. On a CPU onnxruntime runs the exported
file with the same number of threads. Each figure is the best of several repetitions, in turn. A run writes
benchmarks/results/backbones_DEVICE.json and docs/models.md.
"""

import argparse
import copy
import os
import tempfile
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

import common
from tuplet import losses, models
from tuplet.models import Embedder

NAMES = ("vit_small_patch14_dinov2", "vit_base_patch14_dinov2", "resnet50")
#: A label and the function to time.
Timed = tuple[str, Callable[[], Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--names", nargs="+", default=NAMES)
    parser.add_argument("--batch", type=int, default=None, help="images at once; 128, or 4 on a CPU")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each figure")
    arguments = parser.parse_args()
    device = arguments.device
    batch = arguments.batch or (4 if device == "cpu" else 128)
    images = torch.randint(0, 256, (batch, 3, arguments.size, arguments.size), dtype=torch.uint8, device=device)
    rows = []
    for name in arguments.names:
        torch.manual_seed(0)
        embedder = models.create(name, dim=512, preprocessing={"size": arguments.size}).to(device)
        timed = on_cpu(embedder, images) if device == "cpu" else on_gpu(name, embedder, images)
        found = {label: batch / best for label, best in best_seconds(timed, device, arguments.seconds).items()}
        rows.append({"network": name, "batch": batch, "size": arguments.size, "images_per_second": found})
        print(
            "\n".join(f"{name}, {label}: {common.number(speed)} images/s" for label, speed in found.items()), flush=True
        )
    print(table(rows))
    about: dict[str, Any] = {
        "device": common.machine(device),
        "versions": common.versions("timm", "onnxruntime"),
        "rows": rows,
    }
    key = f"backbones {device.partition(':')[0]}"
    common.save(key.replace(" ", "_"), about)
    used = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    setting = f"Images a second on {about['device']}, {batch} images of {arguments.size}² at once ({used}):"
    common.write_between("models.md", key, f"{setting}\n\n{table(rows)}")


def on_gpu(name: str, embedder: Embedder, images: Tensor) -> list[Timed]:
    """Return embedding and training, eager and compiled, ours and timm's."""
    mixed = torch.autocast("cuda", torch.bfloat16)
    labels = torch.arange(len(images), device=images.device) // 4
    loss = losses.MultiSimilarityLoss()

    def embed(network: nn.Module) -> Callable[[], Any]:
        def run() -> Tensor:
            with torch.inference_mode(), mixed:
                return network(images)

        return run

    def train(network: nn.Module) -> Callable[[], Any]:
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-6, fused=True)

        def run() -> None:
            with mixed:
                vectors = network(images)
            loss(vectors.float(), labels).backward()
            optimizer.step()
            optimizer.zero_grad()

        return run

    class Peer(nn.Module):
        """timm's model with the same preparation, head and normalisation."""

        mean: Tensor
        std: Tensor

        def __init__(self) -> None:
            super().__init__()
            import timm

            size = {} if name == "resnet50" else {"img_size": images.shape[-1]}
            self.model = timm.create_model(name, num_classes=512, **size)
            self.register_buffer("mean", embedder.mean.clone())
            self.register_buffer("std", embedder.std.clone())

        def forward(self, x: Tensor) -> Tensor:
            x = ((x.float() - self.mean) / self.std).to(memory_format=torch.channels_last)
            return nn.functional.normalize(self.model(x).float())

    peer = Peer().to(images.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    evaluated, trained = embedder.eval(), models.create(name, dim=512, preprocessing={"size": images.shape[-1]})
    trained = trained.to(images.device).train()
    return [
        ("embed", embed(evaluated)),
        ("embed, compiled", embed(evaluated.compiled())),
        ("embed, timm", embed(peer.eval())),
        ("embed, timm compiled", embed(cast(nn.Module, torch.compile(peer.eval(), dynamic=False)))),
        ("train", train(trained)),
        ("train, compiled", train(trained.compiled())),
        ("train, timm", train(_trainable(peer))),
        ("train, timm compiled", train(cast(nn.Module, torch.compile(_trainable(peer), dynamic=False)))),
    ]


def _trainable(peer: nn.Module) -> nn.Module:
    """Return a copy in training mode, so that embedding keeps its own."""
    return copy.deepcopy(peer).train()


def on_cpu(embedder: Embedder, images: Tensor) -> list[Timed]:
    """Return embedding by torch and by onnxruntime, with the same weights and threads."""
    import onnxruntime

    embedder.eval()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "embedder.onnx")
        models.export_onnx(embedder, path)
        session = onnxruntime.InferenceSession(path, options)
    pixels = images.numpy()
    difference = (torch.from_numpy(session.run(None, {"images": pixels})[0]) - embedder.embed(images)).abs().max()
    assert difference < 1e-3, f"onnxruntime returns other vectors, by {difference}"
    return [
        ("embed", lambda: embedder.embed(images, batch_size=len(images))),
        ("embed, onnxruntime", lambda: session.run(None, {"images": pixels})),
    ]


def best_seconds(timed: list[Timed], device: str, limit: float) -> dict[str, float]:
    """Return the least seconds of each function over rounds in which all take turns."""
    best = dict.fromkeys((label for label, _ in timed), float("inf"))
    for _ in range(2):  # compile, then fill caches
        for _, function in timed:
            function()
    spent = 0.0
    while spent < limit * len(timed):
        # Several calls in a turn: the threads of onnxruntime go on spinning after its last call, and slow torch down.
        for label, function in (pair for pair in timed for _ in range(4)):
            took = common.seconds(function, device)
            best[label], spent = min(best[label], took), spent + took
    return best


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a table of images a second."""
    labels = list(dict.fromkeys(label for row in rows for label in row["images_per_second"]))
    speeds = {row["network"]: row["images_per_second"] for row in rows}
    cells = [
        [name, *(common.number(found[label]) if label in found else "–" for label in labels)]
        for name, found in speeds.items()
    ]
    return common.table(["network", *labels], cells)


if __name__ == "__main__":
    main()
