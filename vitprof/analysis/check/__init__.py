"""Whether runs keep the bounds that somebody set: met, missed, or undecided; and what cannot be judged at all."""
