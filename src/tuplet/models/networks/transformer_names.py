"""Translate the names in published files of vision transformers to those of timm."""

import re

import torch

from tuplet.models.backbone import State

#: Prefixes of the image tower; where one occurs, tensors without it belong to something else, such as a text tower.
_TOWERS = ("visual.trunk.", "visual.", "vision_model.")
_PREFIXES = r"^(module|backbone|dinov2|dinov2_with_registers|vit)\."

#: Patterns and their replacements, applied in this order.
_NAMES = tuple(
    (re.compile(pattern), new)
    for pattern, new in (
        # Meta's DINOv2
        (r"^register_tokens$", "reg_token"),
        (r"\.mlp\.w12\.", ".mlp.fc1."),
        (r"\.mlp\.w3\.", ".mlp.fc2."),
        # OpenAI's CLIP and OpenCLIP
        (r"^class_embedding$", "cls_token"),
        (r"^positional_embedding$", "pos_embed"),
        (r"^conv1\.", "patch_embed.proj."),
        (r"^ln_pre\.", "norm_pre."),
        (r"^ln_post\.", "norm."),
        (r"^transformer\.resblocks\.", "blocks."),
        (r"\.ln_([12])\.", r".norm\1."),
        (r"\.attn\.in_proj_(weight|bias)$", r".attn.qkv.\1"),
        (r"\.attn\.out_proj\.", ".attn.proj."),
        (r"\.mlp\.c_fc\.", ".mlp.fc1."),
        (r"\.mlp\.c_proj\.", ".mlp.fc2."),
        # Hugging Face: ViT, DINO, DINOv2 and CLIP
        (r"^embeddings\.(cls_token|class_embedding)$", "cls_token"),
        (r"^embeddings\.mask_token$", "mask_token"),
        (r"^embeddings\.register_tokens$", "reg_token"),
        (r"^embeddings\.(position_embeddings|position_embedding\.weight)$", "pos_embed"),
        (r"^embeddings\.(patch_embeddings\.projection|patch_embedding)\.", "patch_embed.proj."),
        (r"^(layernorm|post_layernorm)\.", "norm."),
        (r"^pre_layrnorm\.", "norm_pre."),
        (r"^classifier\.", "head."),
        (r"^visual_projection\.", "head."),
        (r"^encoder\.layers?\.", "blocks."),
        (r"^layers?\.(?=\d)", "blocks."),
        (r"\.(attention\.attention|self_attn|attention)\.(query|key|value|[qkv]_proj)\.", r".attn.\2."),
        (r"\.attn\.([qkv])(uery|ey|alue|_proj)\.", r".attn.\1."),
        (r"\.(attention\.output\.dense|self_attn\.out_proj|attention\.o_proj)\.", ".attn.proj."),
        (r"\.layernorm_before\.", ".norm1."),
        (r"\.layernorm_after\.", ".norm2."),
        (r"\.layer_norm([12])\.", r".norm\1."),
        (r"\.layer_scale([12])\.lambda1$", r".ls\1.gamma"),
        (r"(\.intermediate\.dense|\.mlp\.weights_in)\.", ".mlp.fc1."),
        (r"(\.\d+\.output\.dense)\.", lambda found: found[1].removesuffix(".output.dense") + ".mlp.fc2."),
        (r"\.mlp\.weights_out\.", ".mlp.fc2."),
    )
)


def timm_names(state: State) -> State:
    """Return the tensors of an image tower under timm's names; text towers are left out.

    >>> sorted(timm_names({"visual.conv1.weight": torch.zeros(8, 3, 4, 4), "token_embedding.weight": torch.zeros(2)}))
    ['patch_embed.proj.weight']
    """
    if tower := next((tower for tower in _TOWERS if any(name.startswith(tower) for name in state)), ""):
        kept = {name: value for name, value in state.items() if name.startswith((tower, "visual_projection."))}
        state = {name.removeprefix(tower): value for name, value in kept.items()}
    found: State = {}
    for name, value in state.items():
        name = re.sub(_PREFIXES, "", name)
        for pattern, new in _NAMES:
            name = pattern.sub(new, name)
        found[name] = value
    for name in [name for name in found if ".attn.q." in name]:  # three layers in one
        parts = [found.pop(name.replace(".attn.q.", f".attn.{part}.")) for part in "qkv"]
        found[name.replace(".attn.q.", ".attn.qkv.")] = torch.cat(parts)
    if "proj" in found:  # CLIP's projection
        found["head.weight"] = found.pop("proj").T
    found.pop("embeddings.position_ids", None)
    shapes = {
        "cls_token": (1, 1, -1),
        "pos_embed": (1, -1, found["cls_token"].shape[-1] if "cls_token" in found else -1),
    }
    for name, shape in shapes.items():
        if name in found:
            found[name] = found[name].reshape(shape)
    return found
