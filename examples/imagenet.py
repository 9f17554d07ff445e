"""Train a ResNet-18 (He and others, 2015) in torch on a folder of images, such as ImageNet.

Run as ``python examples/imagenet.py folder [epochs] [side] [batch_size]``. Each folder in `folder`
is a class; a fifth of each is for validation. Batches are made while the network trains.
"""

import os
import sys
import time

import torch
from torch import nn

import penstock
from penstock import image

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NORMALIZE = image.normalize((123.7, 116.3, 103.5), (58.4, 57.1, 57.4))


def convolution(channels: int, out: int, size: int, stride: int) -> nn.Sequential:
    layer = nn.Conv2d(channels, out, size, stride, size // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(out))


class Block(nn.Module):
    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        first, second = convolution(channels, out, 3, stride), convolution(out, out, 3, 1)
        self.main = nn.Sequential(first, nn.ReLU(), second)
        self.shortcut = convolution(channels, out, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.main(x) + self.shortcut(x))


def resnet18(classes: int) -> nn.Sequential:
    stages = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
    blocks = [block for a, b, stride in stages for block in (Block(a, b, stride), Block(b, b, 1))]
    blocks = [convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1), *blocks]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


def feed(folder: str, subset: str, side: int, size: int) -> penstock.torch.TensorLoader:
    data = penstock.Dataset.image_folder(folder, validation_split=0.2, subset=subset, seed=1)
    cut = [image.resize(side * 8 // 7, side * 8 // 7), image.center_crop(side, side)]
    if subset == "training":
        data = data.shuffle(seed=1)
        cut = [image.random_resized_crop(side, side), image.random_flip()]
    for step in (image.decode(), *cut, NORMALIZE, image.to_chw()):
        data = data.map(step)
    return penstock.torch.feed(data.map(penstock.select("image", "label")).batch(size))


def main(folder: str, epochs: int = 90, side: int = 224, size: int = 64) -> None:
    torch.manual_seed(1)
    model = resnet18(sum(entry.is_dir() for entry in os.scandir(folder))).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    training, validation = (feed(folder, name, side, size) for name in ("training", "validation"))
    with training, validation:
        for epoch in range(epochs):
            began, images = time.time(), 0
            for x, y in training:
                loss = nn.functional.cross_entropy(model.train()(x.to(DEVICE)), y.to(DEVICE))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                images += len(y)
            schedule.step()
            rate = images / (time.time() - began)
            with torch.no_grad():
                right = [model.eval()(x.to(DEVICE)).argmax(1).cpu() == y for x, y in validation]
            accuracy = 100 * torch.cat(right).float().mean()
            print(f"epoch {epoch}: {accuracy:.1f}% right, {rate:.0f} images/s")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
