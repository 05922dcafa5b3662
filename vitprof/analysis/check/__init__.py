"""Whether runs keep the bounds that were set: met, missed or undecided; and which runs cannot be judged at all."""
