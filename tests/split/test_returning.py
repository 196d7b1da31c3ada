"""Models of other libraries: one field of their answer, cut like any other."""

import pytest
import torch

from splitveil.split import Returning, cut, names_to_cut
from worlds.networks import IMAGES, Asking, seeded, through


def test_the_field_of_an_object_or_a_dict_is_returned() -> None:
    class AsDict(Asking):
        def forward(self, pixels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"logits": super().forward(pixels).logits}

    expected = seeded(Asking).eval()(IMAGES).logits
    for build in (Asking, AsDict):
        assert torch.equal(Returning(seeded(build), "logits").eval()(IMAGES), expected)


def test_a_question_about_dtypes_does_not_stop_the_cut_and_is_answered_for_the_models_own() -> None:
    model = Returning(seeded(Asking), "logits").eval()
    split = cut(model, after="model.layers.0", example=IMAGES)
    assert torch.equal(through(split, IMAGES), model(IMAGES))
    assert not any(name.startswith("body.model.classifier") for name in split.client.encoder.state_dict())


def hugging_face_vit():
    transformers = pytest.importorskip("transformers")
    size = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.ViTConfig(**size, image_size=8, patch_size=4, num_labels=10)
    return transformers.ViTForImageClassification(config), "model.vit.layers.1"


def hugging_face_resnet():
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=10)
    return transformers.ResNetForImageClassification(config), "model.resnet.encoder.stages.0"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # other libraries' warnings are theirs
@pytest.mark.parametrize("build", [hugging_face_vit, hugging_face_resnet])
def test_a_hugging_face_model_is_cut_exactly_where_it_is_installed(build) -> None:
    theirs, after = build()
    model = Returning(theirs, "logits").eval()
    if after not in dict(model.named_modules()):  # older releases keep the layers in an encoder
        after = after.replace("vit.layers", "vit.encoder.layer")
    assert after in names_to_cut(model, IMAGES)
    split = cut(model, after=after, example=IMAGES).eval()
    assert torch.equal(through(split, IMAGES), model(IMAGES))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "after"), [("resnet18", "layer1"), ("vit_tiny_patch16_224", "blocks.2")])
def test_a_timm_model_is_cut_exactly_where_it_is_installed(name: str, after: str) -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model(name, pretrained=False, num_classes=10).eval()
    x = torch.rand(2, 3, 224, 224)
    assert torch.equal(through(cut(model, after=after, example=x).eval(), x), model(x))
