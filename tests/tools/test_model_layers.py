import pytest

from model_layers import MODELS, Layer


def parameter_count(layers: tuple[Layer, ...]) -> int:
    return sum(sum(layer.parameter_counts) for layer in layers)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("resnet50", 25_557_032),  # torchvision
        ("resnet18", 11_173_962),  # kuangliu/pytorch-cifar
        ("bert-base", 108_893_186),  # transformers' BertForQuestionAnswering
    ],
)
def test_a_model_has_exactly_the_published_parameters(name, count):
    assert parameter_count(MODELS[name]()) == count


@pytest.mark.parametrize(
    ("name", "multiply_adds"),
    [
        ("resnet50", 4.1e9),
        ("resnet18", 0.56e9),
        (
            "bert-base",
            85e6 * 384,
        ),  # every weight of the twelve blocks meets every token; attention comes on top
    ],
)
def test_a_model_has_about_the_published_arithmetic(name, multiply_adds):
    assert sum(layer.multiply_adds for layer in MODELS[name]()) == pytest.approx(multiply_adds, rel=0.1)


@pytest.mark.parametrize(
    ("name", "gradient_bytes"), [("resnet50", 102.2e6), ("resnet18", 44.7e6), ("bert-base", 438e6)]
)
def test_gradients_are_as_large_as_those_of_the_measured_jobs(name, gradient_bytes):
    # bert-base: the measured trainer exchanged its unused pooler too, 0.5 % more.
    assert 4 * parameter_count(MODELS[name]()) == pytest.approx(gradient_bytes, rel=0.006)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_no_two_layers_share_a_name(name):
    names = [layer.name for layer in MODELS[name]()]
    assert len(names) == len(set(names))
