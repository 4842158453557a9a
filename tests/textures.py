"""Textures with every kind of plane, for tests of reading them."""

from __future__ import annotations

import torch

from arr_stream.texture.array import Plane, Texture

WIDTH, HEIGHT = 128, 96


def random_texture(seed: int = 0, device: str = "cpu") -> Texture:
    """128x96, planes at every resolution that the pipeline uses, random contents."""
    generator = torch.Generator().manual_seed(seed)

    def values(first: int, count: int, h: int, w: int) -> Plane:
        return Plane(first, torch.rand(count, h, w, generator=generator).to(device))

    def ids(first: int, h: int, w: int) -> Plane:
        return Plane(first, torch.randint(0, 9, (1, h, w), generator=generator, dtype=torch.int32).to(device))

    def bytes_(first: int, count: int, h: int, w: int) -> Plane:
        data = torch.randint(0, 256, (count, h, w), generator=generator, dtype=torch.uint8)
        return Plane(first, data.to(device), 1 / 255)

    quarter, eighth = (HEIGHT // 4, WIDTH // 4), (HEIGHT // 8, WIDTH // 8)
    planes = [
        bytes_(0, 3, 101, 119),  # the source's own size
        values(3, 1, 1, WIDTH),
        values(4, 1, HEIGHT, 1),
        values(5, 1, *quarter),
        bytes_(6, 2, HEIGHT // 2, WIDTH // 2),
        bytes_(8, 1, HEIGHT // 2, WIDTH // 2),
        bytes_(9, 1, *eighth),
        values(10, 1, *eighth),
        values(11, 1, *eighth),
        values(12, 1, *quarter),
        ids(13, *quarter),
        values(14, 1, *quarter),
        values(15, 1, *quarter),
        values(16, 1, *quarter),
        values(17, 1, *quarter),
        values(18, 16, HEIGHT // 16, WIDTH // 16),
        values(34, 6, *eighth),
    ]
    return Texture((WIDTH, HEIGHT), {plane.first: plane for plane in planes})
