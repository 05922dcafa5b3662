"""A training script as many are: a Dataset that prepares one image after another.

Nothing in it knows vitprof.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

BATCH = 16
STEPS = 600


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Noise in place of photos, cropped, flipped and recoloured as those would be."""

    def __init__(self) -> None:
        self.photos = torch.rand(8, 3, 240, 320)
        steps = [
            transforms.RandomResizedCrop(160),
            transforms.RandomHorizontalFlip(),
            transforms.ColorJitter(0.4, 0.4),
        ]
        self.transform = transforms.Compose(
            [*steps, transforms.Normalize((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))]
        )

    def __len__(self) -> int:
        return BATCH * STEPS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(self.photos[index % len(self.photos)]), index % 4


def main() -> None:
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = DataLoader(Images(), batch_size=BATCH, shuffle=True)
    layers = nn.Conv2d(3, 32, 16, stride=16), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 10 * 10, 4)
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
