"""A training loop of the user's own: exchanges under DDP and FSDP2, and local updates, attached to its optimizer."""
