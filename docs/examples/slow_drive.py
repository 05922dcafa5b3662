"""Trains on samples that come from a slow drive: 4 ms each, 8 for a batch, 12 ms of work."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)


class FromDrive(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(0.004)  # what the drive takes
        return torch.full((3, 32, 32), index / 4000), index % 2


loader = DataLoader(FromDrive(), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for images, labels in loader:
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.012)  # what a larger model would take
