"""A short training script that knows nothing of vitprof, and ends with a given exit status.

python -m benchmarks.soak_script STEPS EXIT_STATUS
"""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main(steps: int, status: int) -> None:
    torch.set_num_threads(1)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.ones(steps * 8, 8)), batch_size=8)
    for (batch,) in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        time.sleep(0.005)
    sys.exit(status)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
