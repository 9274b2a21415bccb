"""What is worth keeping: which window tails and states stay reusable."""
