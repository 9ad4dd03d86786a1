"""What the architectures of the zoo say of themselves, one per file."""
