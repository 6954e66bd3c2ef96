"""The four networks of the Srifty paper (arXiv 2011.14243) from torchvision, on made-up pictures."""

import torch
import torchvision
from torch.nn import functional

PIXELS = 64  # a side; AlexNet needs 63 at least. 224 is what ImageNet training uses.
CLASSES = 1000


def make_batch(batch):
    """`batch` pictures and their classes."""
    return torch.randn(batch, 3, PIXELS, PIXELS), torch.randint(CLASSES, (batch,))


def loss(model, data):
    pictures, classes = data
    return functional.cross_entropy(model(pictures), classes)


def with_optimizer(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    return model, optimizer, make_batch, loss


def resnet50():
    return with_optimizer(torchvision.models.resnet50())


def vgg19():
    return with_optimizer(torchvision.models.vgg19())


def squeezenet():
    return with_optimizer(torchvision.models.squeezenet1_1())


def alexnet():
    return with_optimizer(torchvision.models.alexnet())
