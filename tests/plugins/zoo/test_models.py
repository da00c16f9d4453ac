"""ResNets: their shapes and sizes."""

import pytest
import torch

from tests.core.model.test_models import create


def size(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "parameters", "features"),
    [("resnet18", 11_689_512, 512), ("resnet50", 25_557_032, 2048)],
)
def test_resnets_have_the_published_size_and_resolution(name, parameters, features):
    with torch.device("meta"):
        model = create(name, {}, 1, 3, 224, 224, num_classes=1000)
        assert size(model) == parameters
        x = model.maxpool(model.conv1(torch.zeros(1, 3, 224, 224)))
        assert x.shape == (1, 64, 56, 56)
        x = model.layer4(model.layer3(model.layer2(model.layer1(x))))
        assert x.shape == (1, features, 7, 7)
        assert model(torch.zeros(2, 3, 224, 224)).shape == (2, 1000)


def test_a_resnet50_has_the_names_and_strides_of_published_weights():
    with torch.device("meta"):
        model = create("resnet50", {}, 1, 3, 224, 224)
    names, block = model.state_dict().keys(), model.layer2[0]
    assert len(names) == 320
    assert {"bn1.running_var", "layer1.0.downsample.1.bias", "layer3.5.conv3.weight"} <= names
    assert not any("layer1.1.downsample" in name for name in names)
    assert [each.stride[0] for each in (block.conv1, block.conv2, block.conv3)] == [1, 2, 1]


def test_small_images_keep_their_resolution_in_the_stem():
    with torch.device("meta"):
        small, large = create("resnet18", {}, 1, 3, 32, 32), create("resnet18", {}, 1, 3, 65, 65)
        assert small.maxpool(small.conv1(torch.zeros(1, 3, 32, 32))).shape == (1, 64, 32, 32)
        asked = create("resnet18", {"stem": "imagenet"}, 1, 3, 32, 32)
    assert (small.conv1.stride, large.conv1.stride, asked.conv1.stride) == ((1, 1), (2, 2), (2, 2))


def test_resnets_start_as_he_et_al_and_blocks_as_their_shortcut_if_asked():
    torch.manual_seed(0)
    model = create("resnet18", {"zero_init_last": True}, 1, 3, 32, 32)
    weight = model.layer4[1].conv1.weight
    assert weight.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)
    assert model.layer1[0].bn2.weight.abs().max() == 0 and model.layer1[0].bn1.weight.min() == 1
    x = torch.rand(1, 64, 4, 4)
    assert torch.equal(model.layer1[0](x), x)
    assert create("resnet18", {}, 1, 3, 32, 32).layer1[0].bn2.weight.min() == 1
