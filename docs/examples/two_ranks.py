"""Trains on two ranks (torchrun --nproc-per-node 2): rank 1 reads from a slower drive."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
rank = dist.get_rank()


class FromDrive(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(0.004 if rank == 1 else 0.001)
        return torch.full((3, 32, 32), index / 4000), index % 2


loader = DataLoader(FromDrive(), batch_size=8, shuffle=True)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Flatten(), nn.Linear(3072, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for images, labels in loader:
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.004)
