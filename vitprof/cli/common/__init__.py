"""What several commands share: the terminal, progress, stopping, options."""
